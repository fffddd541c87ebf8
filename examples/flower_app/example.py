"""A Flower app of one's own gets clusters: the same apps, one other strategy."""

import os
import sys
from pathlib import Path

import fedclade

HERE = str(Path(__file__).parent)


def main(out: Path) -> fedclade.Result:
    """Six clients in Flower's simulation, as `flwr run` would start it."""
    from flwr.simulation import run_simulation

    sys.path.insert(0, HERE)
    os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    from plain_app import client, server

    server.OUT = str(out / "run")
    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2, "log_to_driver": False}}
    run_simulation(server.app, client.app, num_supernodes=6, backend_config=resources)
    result = fedclade.load(out / "run")
    print(result, result.clusters)
    return result


if __name__ == "__main__":
    main(Path("example-flower-app"))
