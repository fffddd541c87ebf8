"""All methods by name. A new one is a file in this folder and a line here."""

import sys

from fedclade.errors import FedcladeError, imported, unknown
from fedclade.methods.adacfl import AdaCFL
from fedclade.methods.agreement import Agreement
from fedclade.methods.alone import Centralized, Local
from fedclade.methods.apfl import APFL
from fedclade.methods.base import About, Clusters, Method, Placement, RoundContext, remembered
from fedclade.methods.cfl import CFL, StabilityCFL
from fedclade.methods.clade import Clade
from fedclade.methods.clusterfl import ClusterFL
from fedclade.methods.ditto import Ditto
from fedclade.methods.dynamic import Dynamic
from fedclade.methods.fedavg import FedAvg, FedNova, FedProx
from fedclade.methods.fedclust import FedClust
from fedclade.methods.fedem import FedEM
from fedclade.methods.fedgroup import FedGroup
from fedclade.methods.fedrc import FedRC
from fedclade.methods.fedsccs import FedSCCS, KCenter, RandomClusters, WeightsCosine
from fedclade.methods.fedstack import FedStack
from fedclade.methods.fesem import FeSEM
from fedclade.methods.fl_hc import FLHC
from fedclade.methods.flis import FLIS
from fedclade.methods.flux import Flux
from fedclade.methods.hicfl import HiCFL
from fedclade.methods.hypcluster import HypCluster
from fedclade.methods.ifca import IFCA
from fedclade.methods.pacfl import PACFL
from fedclade.methods.per_fedavg import PerFedAvg
from fedclade.methods.pfedme import PFedMe
from fedclade.methods.scaffold import Scaffold
from fedclade.methods.shared_layers import FedBABU, FedPer, FedRep, LGFedAvg
from fedclade.methods.stocfl import StoCFL

METHODS: dict[str, type[Method]] = {
    "clade": Clade,
    "local": Local,
    "centralized": Centralized,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fednova": FedNova,
    "scaffold": Scaffold,
    "fedclust": FedClust,
    "hicfl": HiCFL,
    "agreement": Agreement,
    "cfl": CFL,
    "cfl-stability": StabilityCFL,
    "ifca": IFCA,
    "adacfl": AdaCFL,
    "fedsccs": FedSCCS,
    "fedstack": FedStack,
    "kcenter": KCenter,
    "wc": WeightsCosine,
    "random": RandomClusters,
    "fl-hc": FLHC,
    "pacfl": PACFL,
    "flis": FLIS,
    "hypcluster": HypCluster,
    "fesem": FeSEM,
    "fedgroup": FedGroup,
    "clusterfl": ClusterFL,
    "dynamic": Dynamic,
    "stocfl": StoCFL,
    "flux": Flux,
    "fedrc": FedRC,
    "lg-fedavg": LGFedAvg,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "per-fedavg": PerFedAvg,
    "ditto": Ditto,
    "fedem": FedEM,
    "apfl": APFL,
    "pfedme": PFedMe,
}


def method_class(name: str) -> type[Method]:
    """A method by its name, or your own as `my_module:MyMethod`."""
    if ":" in name:
        found = imported(name, "method")
        if not (isinstance(found, type) and issubclass(found, Method)):
            raise FedcladeError(f"method {name!r} is no subclass of fedclade.Method")
        return found
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def name_of(method: Method) -> str:
    """What a record calls a method: its name or, where it can be imported again, `module:Class`."""
    kind = type(method)
    for name, known in METHODS.items():
        if known is kind:
            return name
    is_found = kind.__module__ != "__main__" and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
    return f"{kind.__module__}:{kind.__name__}" if is_found else kind.__name__


__all__ = [
    "METHODS",
    "About",
    "Clusters",
    "Method",
    "Placement",
    "RoundContext",
    "method_class",
    "name_of",
    "remembered",
]
