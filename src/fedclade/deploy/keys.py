"""Certificates for a server and keys for nodes."""

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedclade.errors import FedcladeError

DAYS = 365
HERE = ("localhost", "127.0.0.1")  # a SuperLink's own SuperExec calls it by these


def make_certificates(folder: Path, hosts: Sequence[str] = ()) -> list[Path]:
    """`ca.crt`, and `server.pem` with `server.key` for a server of these names and addresses, good for a year."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.now(UTC)

    def certificate(name: str, key: Any, issuer: str, signer: Any, is_authority: bool) -> Any:
        named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, word)]) for word in (name, issuer)]
        builder = x509.CertificateBuilder().subject_name(named[0]).issuer_name(named[1]).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(minutes=5))
        builder = builder.not_valid_after(now + timedelta(days=DAYS))
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = builder.add_extension(authority, critical=False)
        if is_authority:
            usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        else:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(signer, hashes.SHA256())

    names = [_host(host) for host in dict.fromkeys((*hosts, *HERE))]
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    _write(folder / "ca.crt", _pem(certificate("fedclade", authority, "fedclade", authority, True)))
    _write(folder / "server.pem", _pem(certificate((*hosts, *HERE)[0][:64], server, "fedclade", authority, False)))
    _write(folder / "server.key", _private(server, "PKCS8"), secret=True)
    return [folder / name for name in ("ca.crt", "server.pem", "server.key")]


def _host(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", name):
        raise FedcladeError(f"{name!r} is neither a host name nor an address: give it as nodes will, without a port")
    return x509.DNSName(name)


def binding_of(public: Path) -> str:
    """A node's public key as a run's record has it: as Flower's grid tells it."""
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_ssh_public_key(public.read_bytes())
    except OSError as error:
        raise FedcladeError(f"cannot read {public}: {error.strerror or error}") from None
    except ValueError:
        raise FedcladeError(f"{public} is no public key: give the file that ends in .pub") from None
    formats = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(*formats).hex()


def make_node_key(path: Path) -> Path:
    """A node's private key at `path` and its public key beside it; returns the public one's path."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, _private(key, "OpenSSH"), secret=True)
    public = path.with_name(f"{path.name}.pub")
    formats = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    _write(public, key.public_key().public_bytes(*formats))
    return public


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _private(key: Any, form: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, getattr(PrivateFormat, form), NoEncryption())


def _write(path: Path, content: bytes, secret: bool = False) -> None:
    """A file that, if secret, nobody else can ever open."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
        file.write(content)
