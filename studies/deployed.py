"""Run methods on 3 real SuperNodes with TLS and keys and in one process, compare, and write docs/results/deployed.md.

python studies/deployed.py [--out FILE]
"""

import argparse
import platform
import tempfile
import time
from pathlib import Path

import numpy as np

import fedclade
from fedclade.display import counted

METHODS = {
    "fedclust": {"name": "fedclust", "n_clusters": 2},
    "hicfl": {"name": "hicfl"},
}
SETTINGS = {"split": "label-groups:2", "clients": 3, "model": "mlp", "rounds": 3, "evaluate_every": 0}


def one(method: dict, work: Path) -> str:
    outcomes, seconds = {}, {}
    for engine in ("local", "flower"):
        began = time.perf_counter()
        outcomes[engine] = fedclade.run(
            "digits", method=method, engine=engine, out=work / f"{method['name']}-{engine}", workers=1, **SETTINGS
        )
        seconds[engine] = time.perf_counter() - began
    local, deployed = outcomes["local"], outcomes["flower"]
    models = [result.folder.last_checkpoint()[1]["clusters"]["models"] for result in (local, deployed)]
    alike = all(np.array_equal(models[0][k], models[1][k]) for k in models[0])
    parts = "; ".join(", ".join(part) for part in deployed.clusters.values())
    return (
        f"| {method['name']} | {parts} | {'yes' if local.clusters == deployed.clusters else 'NO'} | {'yes' if alike else 'NO'} "
        f"| {seconds['local']:.0f} s | {seconds['flower']:.0f} s |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/results/deployed.md"))
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as work:
        rows = [one(method, Path(work)) for method in METHODS.values()]
    import flwr

    text = f"""# On real nodes

Made by `python studies/deployed.py`: a SuperLink and {counted(SETTINGS["clients"], "SuperNode")} on loopback, with TLS and
registered node keys made on the spot (Flower {flwr.__version__}, Python {platform.python_version()}, {platform.machine()}), against
the same run in one process. Data: digits, split `{SETTINGS["split"]}`, model {SETTINGS["model"]}, {SETTINGS["rounds"]} rounds.

| method | clusters on the nodes | the same in one process | models bit for bit | time in one process | time on nodes |
|---|---|---|---|---:|---:|
{chr(10).join(rows)}

Nearly all of the time on nodes is Flower's: it starts a process for every message. The times are of a busy machine.
HiCFL is first tested in round 5, so that in three rounds it splits nobody, here as there.
"""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
