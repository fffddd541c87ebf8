"""Run 1,000 virtual clients on Flower's simulation (Ray) and write how long it took to docs/results/simulation.md.

python studies/simulation.py [--clients 1000] [--rounds 2] [--workers 2] [--out FILE]
"""

import argparse
import platform
import time
from pathlib import Path

import numpy as np

import fedclade


def made_clients(count: int, seed: int = 0) -> dict[str, tuple[np.ndarray, ...]]:
    """Small clients of two hidden groups, each with classes of its own."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(4, 8)).astype(np.float32) * 2
    clients = {}
    for number in range(count):
        kind = random.integers(0, 2, 24) + 2 * (number % 2)
        x = centres[kind] + random.normal(size=(24, 8)).astype(np.float32) * 0.5
        clients[f"client-{number:04d}"] = (x, kind)
    return clients


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results/simulation.md"))
    asked = parser.parse_args()
    data = made_clients(asked.clients)
    method = {"name": "fedclust"}
    shared = {
        "method": method,
        "participation": 0.1,
        "model": "mlp",
        "rounds": asked.rounds,
        "evaluate_every": 0,
        "training": {"local_epochs": 1},
    }
    seconds, found, models = {}, {}, {}
    for engine in ("local", "flower-sim"):
        began = time.perf_counter()
        result = fedclade.run(data, engine=engine, workers=asked.workers, **shared)
        seconds[engine] = time.perf_counter() - began
        found[engine] = result.clusters
        models[engine] = result.state_of_clusters.models
    sizes = ", ".join(str(len(part)) for part in found["flower-sim"].values())
    pure = all(len({int(name[-4:]) % 2 for name in part}) == 1 for part in found["flower-sim"].values())
    same = all(np.array_equal(models["local"][k], models["flower-sim"][k]) for k in models["local"])
    import flwr

    text = f"""# {asked.clients:,} clients on Flower's simulation

Made by `python studies/simulation.py --clients {asked.clients} --rounds {asked.rounds} --workers {asked.workers}`: FedClust, two hidden groups that it must find and count, 19 training rows a
client, model mlp. Everybody trains in the clustering round and is measured at the end, a tenth trains in each round
(Flower {flwr.__version__}, Ray, Python {platform.python_version()}, {platform.machine()}).

| engine | time | clusters | hidden groups found |
|---|---:|---|---|
| `local` | {seconds["local"]:.0f} s | {", ".join(str(len(part)) for part in found["local"].values())} | |
| `flower-sim` | {seconds["flower-sim"]:.0f} s | {sizes} | {"yes" if pure else "no"} |

The models are {"the same, bit for bit" if same else "NOT the same"}.
"""
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
