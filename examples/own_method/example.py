"""A method of one's own in twenty lines: clients are divided by the main direction of their first updates."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import fedclade


class TwoSides(fedclade.Method):
    """One training by everybody, two groups, then FedAvg in each."""

    about: ClassVar[fedclade.About] = fedclade.About("two sides of the main direction", "-", finds="a given number")

    def start(self, context: fedclade.RoundContext, ask: Any) -> fedclade.Clusters:
        told = ask(fedclade.Train(context.initial), to=context.clients, phase="cluster")
        clients = [client for client in context.clients if client in told]
        updates = np.stack([told[client].weights - context.initial for client in clients])
        directions = np.linalg.svd(updates - updates.mean(axis=0), full_matrices=False)[0]
        labels = np.zeros(len(context.clients), int)  # who did not answer is in the first group
        labels[[context.clients.index(client) for client in clients]] = directions[:, 0] > 0
        return fedclade.Clusters.from_labels(context.clients, labels, context.initial)

    def round(self, clusters: fedclade.Clusters, context: fedclade.RoundContext, ask: Any) -> fedclade.Clusters:
        return self.trained(clusters, context.sample(), ask)


def main(out: Path) -> fedclade.Result:
    result = fedclade.run(
        "digits", split="label-groups:2", clients=10, method=TwoSides(), model="mlp", rounds=5, out=out / "run"
    )
    print(result, result.agreement)
    return result


if __name__ == "__main__":
    main(Path("example-own-method"))
