"""fedclade finds the groups hidden in a federation of clients with unlike data and trains one model for each group.

import fedclade

result = fedclade.run("digits", split="label-groups:4", clients=20, method="fedclust", rounds=10)
print(result.accuracy, result.clusters)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedclade.api import Result, load, resume, run
    from fedclade.ask import Ask, TrainedClients
    from fedclade.clients.tasks import Describe, Evaluate, Predict, Train, Training
    from fedclade.data import Client, Dataset, Federation, federation_of
    from fedclade.errors import FedcladeError
    from fedclade.methods import About, Clusters, Method, Placement, RoundContext, remembered
    from fedclade.newcomers import Placed, place
    from fedclade.predicting import export, predict

__version__ = "0.2.0"

# Where each public name lives. They are imported when first used, so that `import fedclade` is fast.
_HOMES = {
    "fedclade.api": ("Result", "load", "resume", "run"),
    "fedclade.ask": ("Ask", "TrainedClients"),
    "fedclade.clients.tasks": ("Describe", "Evaluate", "Predict", "Train", "Training"),
    "fedclade.data": ("Client", "Dataset", "Federation", "federation_of"),
    "fedclade.errors": ("FedcladeError",),
    "fedclade.methods": ("About", "Clusters", "Method", "Placement", "RoundContext", "remembered"),
    "fedclade.newcomers": ("Placed", "place"),
    "fedclade.predicting": ("export", "predict"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedclade' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])


__all__ = [
    "About",
    "Ask",
    "Client",
    "Clusters",
    "Dataset",
    "Describe",
    "Evaluate",
    "FedcladeError",
    "Federation",
    "Method",
    "Placed",
    "Placement",
    "Predict",
    "Result",
    "RoundContext",
    "Train",
    "TrainedClients",
    "Training",
    "export",
    "federation_of",
    "load",
    "place",
    "predict",
    "remembered",
    "resume",
    "run",
]
