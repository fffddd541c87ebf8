"""Certificates and node keys for trying a federation out on one machine. They are made on the spot and never reused."""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any


def make_certificates(folder: Path) -> None:
    """`ca.crt`, and `server.pem` with `server.key` for this machine's own address, good for 30 days."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.now(UTC)

    def certificate(name: str, key: Any, issuer: str, signer: Any, is_authority: bool) -> Any:
        named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, word)]) for word in (name, issuer)]
        builder = x509.CertificateBuilder().subject_name(named[0]).issuer_name(named[1]).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(minutes=5))
        builder = builder.not_valid_after(now + timedelta(days=30))
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = builder.add_extension(authority, critical=False)
        if is_authority:
            usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        else:
            here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(here), critical=False)
        return builder.sign(signer, hashes.SHA256())

    folder.mkdir(parents=True, exist_ok=True)
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    _write(folder / "ca.crt", _pem(certificate("fedclade trial", authority, "fedclade trial", authority, True)))
    _write(folder / "server.pem", _pem(certificate("localhost", server, "fedclade trial", authority, False)))
    _write(folder / "server.key", _private(server, "PKCS8"), secret=True)


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
