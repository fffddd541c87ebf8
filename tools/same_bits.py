"""Do a fixed set of runs give the same weights as before?

    python tools/same_bits.py record before.json     # every method: in one process, in workers, simulated, on nodes
    python tools/same_bits.py compare before.json after.json

A run's fingerprint is the SHA-256 of its clusters, the model that serves each client and each client's locally trained
model. It holds for one machine: other processors round otherwise. Two files can be of two checkouts.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import torch

import fedclade
from fedclade import api
from fedclade.methods import METHODS
from fedclade.settings import Settings

sys.path.insert(0, str(Path(fedclade.__file__).parents[2] / "tests"))  # of the checkout that is looked at

TRAINING = {"local_epochs": 1, "batch_size": 10, "learning_rate": 0.1, "momentum": 0.5}
SHORT: dict[str, dict[str, Any]] = {  # so that each does what it is for within a few rounds
    "cfl": {"eps1": 10.0, "eps2": 1e-4, "min_round": 1},
    "clusterfl": {"relation_every": 2},
    "dynamic": {"calibrate_every": 2, "divide_every": 2},
    "fedclust": {"n_clusters": 2},
    "fedgroup": {"n_clusters": 2},
    "fedsccs": {"n_clusters": 2, "warmup": 2, "selection": "power-of-choice"},
    "fesem": {"n_clusters": 2},
    "fl-hc": {"n_clusters": 2, "warmup": 1},
    "flis": {"n_clusters": 2},
    "flux": {"gain": 1.0},
    "hicfl": {"epsilon": 1.5, "tests": "sliding", "rho_stop": 1.0},
    "ifca": {"n_clusters": 2},
    "kcenter": {"n_clusters": 2, "warmup": 2},
    "pacfl": {"n_clusters": 2},
    "random": {"n_clusters": 2, "warmup": 2, "selection": "least-selected"},
    "wc": {"n_clusters": 2, "warmup": 2, "selection": "random"},
}
SIMULATED = (
    "clade", "fedavg", "fedclust", "ifca", "ditto", "pacfl", "fedstack", "scaffold", "apfl", "fedem", "flux", "fedrc",
)  # fmt: skip


def settings_of(name: str, participation: float) -> dict[str, Any]:
    """The same conditions for every method, where they are the run's setting and where they are the method's."""
    given: dict[str, Any] = {"rounds": 6, "training": TRAINING, "seed": 3}
    method = {"name": name, **SHORT.get(name, {})}
    if "rule" in METHODS["hicfl"].model_fields:  # before our rule was a method of its own
        method |= {"hicfl": {"rule": "paper"}, "agreement": {"name": "hicfl"}}.get(name, {})
    if "participation" in Settings.model_fields:
        given["participation"] = participation
    else:
        method["fraction"] = participation
    return {**given, "method": method}


def fingerprint(folder: Path) -> str:
    """Of what a finished run left: clusters, models and the clients' own models."""
    digest = hashlib.sha256()
    members = json.loads((folder / "clusters.json").read_text())["members"]
    digest.update(json.dumps(members, sort_keys=True).encode())
    from safetensors.numpy import load_file

    for path in sorted((folder / "models").glob("*.safetensors")):
        for key, value in sorted(load_file(path).items()):
            digest.update(f"{path.stem} {key} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]


def served(result: Any) -> str:
    """Of the models that serve clients and of those that they trained."""
    digest = hashlib.sha256()
    local = getattr(result, "local_model_of", None) or result.own_model_of
    for client in sorted(client for members in result.clusters.values() for client in members):
        digest.update(client.encode() + np.ascontiguousarray(result.weights_for(client)).tobytes())
        try:
            state = local(client).state_dict()
        except Exception:  # it never trained
            continue
        for value in state.values():
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:16]


def on_nodes(folder: Path, name: str, participation: float) -> str:
    from engines.test_deployed import grid_of
    from fedclade.deploy import worker
    from fedclade.deploy.server import serve

    worker.hand_over = worker.perform
    given = settings_of(name, participation)
    config = {"clients": 4, "wait": 0.5, "rounds": 3, "seed": 3, "keys": True, "out": str(folder)}
    config |= {f"training.{key.replace('_', '-')}": value for key, value in given["training"].items()}
    config |= {f"method.{key.replace('_', '-')}": value for key, value in given["method"].items()}
    if "participation" in given:
        config["participation"] = participation
    serve(grid_of(folder.parent / "rows"), config)
    return fingerprint(folder)


def rows_of_nodes(place: Path) -> None:
    try:
        from synthetic import planted
    except ImportError:  # its earlier name
        from planting import planted

    federation = planted(n_clients=4)
    (place / "all").mkdir(parents=True)
    for client in federation.clients:
        x, y = federation.x, federation.y
        np.savez(
            place / "all" / f"{client.name}.npz",
            x=x[client.train], y=y[client.train], x_test=x[client.test], y_test=y[client.test],
        )  # fmt: skip


def record(path: Path) -> None:
    torch.set_num_threads(1)
    bits: dict[str, str] = {}

    def keep(key: str, value: str) -> None:
        bits[key] = value
        path.write_text(json.dumps(bits, indent=1, sort_keys=True) + "\n")
        print(key, value, flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        rows_of_nodes(place / "rows")
        for name in sorted({*METHODS, "agreement"}):
            for participation in (1.0, 0.5):
                given = {"split": "label-groups:2", "clients": 6, "rows": 40, **settings_of(name, participation)}
                result = api.run(
                    "digits",
                    model=None if name == "fedstack" else "mlp",
                    workers=1,
                    out=place / f"l-{name}-{participation}",
                    **given,
                )
                keep(f"local/{name}/{participation}", fingerprint(result.path) + served(result))
            if name != "centralized":
                keep(f"nodes/{name}", on_nodes(place / f"n-{name}", name, 1.0))
        for name in SIMULATED:
            given = {"split": "label-groups:2", "clients": 6, "rows": 40, **settings_of(name, 1.0)}
            for engine, workers in (("local", 2), ("flower-sim", 2)):
                out = place / f"{engine}-{name}"
                result = api.run("digits", workers=workers, engine=engine, out=out, **given)
                keep(f"{engine}-2/{name}", fingerprint(result.path) + served(result))
        for model in ("digits-cnn", "resnet9-gn"):  # pictures: convolutions, batched and client by client
            for size in (10, 64):
                try:
                    given = settings_of("fedavg", 1.0) | {"training": {**TRAINING, "batch_size": size}}
                    result = api.run("digits", model=model, workers=1, clients=4, rows=60, **given)
                    keep(f"local/{model}/{size}", served(result))
                except Exception as error:
                    keep(f"local/{model}/{size}", type(error).__name__)


def compare(before: Path, after: Path) -> int:
    one, two = json.loads(before.read_text()), json.loads(after.read_text())
    differing = sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key))
    for key in differing:
        print(f"{key}: {one.get(key)} -> {two.get(key)}")
    print(f"{len(one.keys() | two.keys()) - len(differing)} runs the same, {len(differing)} not")
    return 1 if differing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("out", type=Path)
    both = commands.add_parser("compare")
    both.add_argument("before", type=Path)
    both.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        record(given.out)
        return 0
    return compare(given.before, given.after)


if __name__ == "__main__":
    sys.exit(main())
