"""`fedclade deploy init`: a small Flower project that `flwr run` takes."""

from pathlib import Path

from fedclade.errors import FedcladeError

PYPROJECT = """\
[project]
name = "{name}"
version = "0.1.0"
description = "A clustered federation"
license = "MIT"
requires-python = ">=3.11"
dependencies = ["fedclade[flower]"]

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

# The settings of a run, under the names of `fedclade run`. `flwr run . --run-config 'rounds=20 method.name="hicfl"'`
# beats them; what is not listed here goes into `set`: --run-config 'set="method.n_clusters=2"'.
[tool.flwr.app.config]
out = ""          # the run folder, where the server runs. One that holds a run goes on with it. "": a new one in runs/
clients = 3       # begin when so many have come,
wait = 60         # or after so many seconds with those who are there. Later ones join as newcomers
keys = true       # a client's name belongs to its node's key. false: only for trying out without keys
model = ""        # `fedclade models`, or my_module:make_net. "": one that fits the data
rounds = 5
seed = 0
rows = ""         # training rows that a client keeps at most
evaluate-every = 1
evaluate-local-every = 0
timeout = 3600    # seconds that a piece of clients' work may take
quorum = 0.0      # the share of those who train a model that must answer, or the model stays as it is
config = ""       # a TOML file with more of them, where the server runs; it beats what stands here
set = ""

[tool.flwr.app.config.method]
name = "fedclust"

[tool.flwr.app.config.training]
local-epochs = 2
batch-size = 16
learning-rate = 0.05
momentum = 0.5
"""

SERVER = '''\
"""What the server does: find the clusters and train a model for each."""

from fedclade.deploy.server import server_app

app = server_app()
'''

CLIENT = '''\
"""What a node does when it is asked. Its rows lie where its node-config says, and stay there."""

from fedclade.deploy.node import client_app

app = client_app()
'''

README = """\
# {name}

A federation that finds the groups among its clients and trains one model for each, on Flower.

Try it on this machine, with TLS and node keys made on the spot, and everything taken down at the end:

    fedclade deploy up --nodes 3 .

On real machines (fedclade's docs/deploy.md tells all steps) the SuperLink runs with certificates and
`--enable-supernode-auth`, each owner of data makes a key pair, you register the public keys, and each owner starts

    flower-supernode --superlink HOST:8000 --root-certificates ca.crt --auth-supernode-private-key KEY \\
        --node-config 'name="anna" data="folder:/srv/anna"'

`data` is a folder with one file (.npz, .csv, .parquet; look at it with `fedclade data show --data folder:PATH`) or a
function of the owner's, `my_module:load`, that returns `(x, y)` or `(x, y, x_test, y_test)`. Rows never leave the node.

    flwr run . my-federation --stream --run-config 'out="runs/first" rounds=20'
    fedclade show runs/first

Settings are in `pyproject.toml`.
"""


def init(folder: Path) -> list[Path]:
    """Write the project into a folder that is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedcladeError(f"{folder} exists and is not empty: choose another folder")
    name = "".join(c if c.isalnum() else "-" for c in folder.absolute().name.lower()).strip("-") or "federation"
    texts = {
        "pyproject.toml": PYPROJECT.format(name=name[:30].strip("-")),
        "server_app.py": SERVER,
        "client_app.py": CLIENT,
        "README.md": README.format(name=name),
        ".gitignore": "runs/\n",  # Flower packs whatever is not ignored
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FedcladeError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error
    return [folder / file for file in texts]
