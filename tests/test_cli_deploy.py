"""`fedclade deploy`: the project it writes, and what it says when something is missing."""

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedclade.cli import app
from fedclade.deploy.keys import make_certificates, make_node_key
from fedclade.deploy.local import ending_as_by_ctrl_c
from fedclade.deploy.project import init
from fedclade.errors import FedcladeError
from fedclade.methods import name_of

WITHOUT_FLOWER = """
import importlib.util, sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("flwr", "ray"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nothing())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "flwr" else find(name, package)
import fedclade
from fedclade.flower import Clustered
from fedclade.methods import FedClust
for use in (
    lambda: fedclade.run("digits", engine="flower", clients=2),
    lambda: fedclade.run("digits", engine="flower-sim", clients=2, rounds=0),
    lambda: Clustered(FedClust()),
):
    try:
        use()
    except fedclade.FedcladeError as error:
        print(error)
print(fedclade.run("digits", clients=2, rounds=0, workers=1))
"""


def test_init_writes_a_project_whose_settings_are_ours(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.common.config import flatten_dict

    from fedclade.deploy.server import settings_of

    done = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "My Hospitals")])
    assert done.exit_code == 0, done.output
    project = tomllib.loads((tmp_path / "My Hospitals" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-hospitals"
    assert project["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "server_app:app",
        "clientapp": "client_app:app",
    }
    settings = settings_of(flatten_dict(project["tool"]["flwr"]["app"]["config"]))
    assert name_of(settings.method) == "fedclust"
    assert settings.model is None
    with pytest.raises(FedcladeError, match="not empty"):
        init(tmp_path / "My Hospitals")


def test_up_wants_a_project(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedclade", "deploy", "up", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "make one with `fedclade deploy init" in done.stderr


def test_a_kill_ends_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ending_as_by_ctrl_c():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_without_flower_all_else_works_and_one_line_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_FLOWER], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.partition(": ")[2] for line in lines[:3]] == [
        "pip install 'fedclade[flower]'",
        "pip install 'fedclade[flower-sim]'",
        "pip install 'fedclade[flower]'",
    ]
    assert lines[3].startswith("<Result of clade")


def test_certificates_hold_for_the_hosts_and_for_the_server_itself(tmp_path: Path) -> None:
    x509 = pytest.importorskip("cryptography.x509")
    done = CliRunner().invoke(app, ["deploy", "certificates", "fed.example.org", "10.1.2.3", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    server, authority = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes()) for name in ("server.pem", "ca.crt")
    )
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"fed.example.org", "localhost"}
    assert {str(one) for one in names.get_values_for_type(x509.IPAddress)} == {"10.1.2.3", "127.0.0.1"}
    server.verify_directly_issued_by(authority)
    with pytest.raises(FedcladeError, match="neither a host name nor an address"):
        make_certificates(tmp_path, ["https://fed.example.org:8000"])


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    make_certificates(tmp_path)
    public = make_node_key(tmp_path / "anna")
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    for secret in ("server.key", "anna"):
        assert (tmp_path / secret).stat().st_mode & 0o077 == 0
