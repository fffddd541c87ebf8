"""How the answers of a cluster's members become its model: a rule a file, a setting of the run (`aggregation`).

- Mean, weighted by rows: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
  AISTATS 2017.
- Median and trimmed mean of each weight: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal
  Statistical Rates", ICML 2018.
- Geometric median: Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022.
- Norm clipping: Sun et al., "Can You Really Backdoor Federated Learning?", 2019.
"""

from fedclade.aggregation.clip import Clip
from fedclade.aggregation.geometric_median import GeometricMedian
from fedclade.aggregation.mean import Mean
from fedclade.aggregation.median import Median
from fedclade.aggregation.rule import Accumulator, Aggregation
from fedclade.aggregation.trimmed_mean import TrimmedMean

AGGREGATIONS: dict[str, type[Aggregation]] = {
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "clip": Clip,
}

__all__ = ["AGGREGATIONS", "Accumulator", "Aggregation", "Mean"]
