"""AdaCFL: Gong et al., Mobile Networks and Applications, 2022."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from fedclade.clustering.hierarchy import agglomerate
from fedclade.clustering.similarity import distance_matrix
from fedclade.reproduce import finished as read
from fedclade.reproduce.finished import Finished, Series
from fedclade.reproduce.item import Item, Paper
from fedclade.reproduce.kinds import (
    ARI,
    CLUSTER_MODEL,
    CLUSTERS,
    LOCAL_MODEL,
    Counts,
    Curves,
    Grid,
    Maps,
    Measure,
)
from fedclade.reproduce.layers import WATCH, distance_maps, weights_by_layer
from fedclade.reproduce.numbers import Numbers, stated
from fedclade.reproduce.page import Line
from fedclade.reproduce.scale import Layer, Scale, merged

DATA: dict[str, Layer] = {
    "MNIST": {"data": "mnist", "model": "mnist-cnn", "training": {"batch_size": 100}},
    "CIFAR-10": {"data": "cifar10", "model": "cifar-cnn", "training": {"batch_size": 50}},
    "FMNIST": {"data": "fashion-mnist", "model": "fmnist-cnn", "training": {"batch_size": 150}},
}
SPLITS: dict[str, Layer] = {
    "alpha 0.5": {"split": "adacfl-alpha:0.5"},
    "alpha 0.8": {"split": "adacfl-alpha:0.8"},
    "alpha 1.0": {"split": "adacfl-alpha:1.0"},
    "B": {"split": "adacfl-b"},
}


# FMTL's eps1 and eps2, tuned on rows of the training files alone (docs/results/mtcfl.md).
TUNED: dict[str, tuple[float, float]] = {}


def setting(data: str, split: str) -> Layer:
    """IFCA is given the true number of groups; FMTL is tuned, and may split after round 5."""
    groups = 10 if data == "CIFAR-10" or split == "B" else 5
    methods: dict[str, Layer] = {"ifca": {"n_clusters": groups}}
    if f"{data}, {split}" in TUNED:
        eps1, eps2 = TUNED[f"{data}, {split}"]
        methods["cfl"] = {"eps1": eps1, "eps2": eps2, "min_round": 5}
    return merged(DATA[data], SPLITS[split], {"methods": methods})


def settings(*splits: str) -> dict[str, Layer]:
    return {f"{data}, {split}": setting(data, split) for split in splits for data in DATA}


ALL = settings(*SPLITS)
TWO = settings("alpha 0.8", "B")

ADACFL: Layer = {"method": {"name": "adacfl", "threshold": 1.4}}
OURS: Layer = {"method": {"name": "adacfl"}}
PAPERS_THRESHOLD, OUR_THRESHOLD = "AdaCFL, threshold 1.4", "AdaCFL, automatic threshold"
WARD: Layer = {"method": {"name": "adacfl", "threshold": 1.4, "linkage": "ward"}}
READINGS: dict[str, Layer] = {"threshold 1.4, average linkage": ADACFL, "threshold 1.4, Ward": WARD, "automatic": OURS}
WARDS_THRESHOLD = "AdaCFL, threshold 1.4, Ward"
ALL_READINGS: dict[str, Layer] = {
    PAPERS_THRESHOLD: ADACFL,
    WARDS_THRESHOLD: WARD,
    **{
        f"{WARDS_THRESHOLD}, clustered in round {round}": merged(WARD, {"method": {"cluster_round": round}})
        for round in (2, 3)  # the paper has some final accuracies in round 2 or 3: it clusters no later there
    },
    OUR_THRESHOLD: OURS,
}
METHODS: dict[str, Layer] = {
    "FedAvg": {"method": {"name": "fedavg"}},
    "FMTL": {"method": {"name": "cfl"}},
    "IFCA": {"method": {"name": "ifca"}},
    **ALL_READINGS,
}

BESIDE_ADACFL = {"AdaCFL": tuple(ALL_READINGS)}  # the rows that stand beside the paper's
COMPLETE, PARTIAL = "complete weights", "partial weights"


def by_reading(rows: Mapping[str, Layer]) -> dict[str, Layer]:
    """Every row under each reading of how the paper cuts its tree."""
    return {
        f"{row}, {words}": merged(reading, layer) for row, layer in rows.items() for words, reading in READINGS.items()
    }


def beside_readings(table: str, *rows: str) -> Numbers:
    """The paper's numbers, beside each reading of their row."""
    return stated("adacfl", table, {row: tuple(f"{row}, {words}" for words in READINGS) for row in rows})


FIRST, SECOND = "first dense layer", "second dense layer"
AT_THE_THRESHOLD = (
    "The paper names no linkage, does not say how inputs are scaled, and clusters after several rounds. Here average "
    "linkage is tried with 1.4 in round 1; Ward's, whose heights grow with the number of members, in round 1 and, in "
    "tables 2 and 3, in rounds 2 and 3 too. How high the trees are then is told in docs/systems.md."
)

CIFARS_ROUNDS = (
    "AdaCFL's rounds on CIFAR-10, alpha 0.8, are 2 in the paper's Table 2 and 3 in its Table 4, by the same accuracy."
)

FMTL_HERE = (
    "FMTL may split from round 6 on, with the thresholds that have the highest accuracy in round 30, on rows of "
    "the training files (`make results-mtcfl`). Where that has not been run it has CFL's own, which no update is long "
    "enough for here, and may split after round 20: it is FedAvg."
)

NETWORKS = {
    "MnistCNN": ("mnist-cnn", (1, 28, 28)),
    "CifarCNN": ("cifar-cnn", (3, 32, 32)),
    "FmnistCNN": ("fmnist-cnn", (1, 28, 28)),
}

ROUNDS = Measure("rounds until within a point of the end", read.rounds_until_level, digits=1)


def two_dense(convolutions: tuple[int, ...], input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """5x5 convolutions with pooling, then two dense layers with 100 neurons between them."""
    layers: list[tuple[str, nn.Module]] = []
    for number, (before, after) in enumerate(pairwise((input_shape[0], *convolutions)), start=1):
        layers += [(f"conv{number}", nn.Conv2d(before, after, 5)), (f"relu{number}", nn.ReLU())]
        layers += [(f"pool{number}", nn.MaxPool2d(2))]
    layers.append(("flatten", nn.Flatten()))
    width = nn.Sequential(OrderedDict(layers))(torch.zeros(1, *input_shape)).numel()
    dense = [("fc1", nn.Linear(width, 100)), ("fc1_relu", nn.ReLU()), ("fc2", nn.Linear(100, n_classes))]
    return nn.Sequential(OrderedDict([*layers, *dense]))


def two_dense_mnist(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return two_dense((20, 50), input_shape, n_classes)


def two_dense_cifar(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return two_dense((6, 16), input_shape, n_classes)


def two_dense_fmnist(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return two_dense((16, 32), input_shape, n_classes)


def clustering_seconds(scale: str, data_dir: str | None) -> list[Line]:
    """How long distances and merging take for 100 clients, on random weights: the time does not depend on values."""
    lines = []
    for title, network in NETWORKS.items():
        sizes = [int(line.ours["weights"][0] or 0) for line in weights_by_layer({title: network})]
        for words, size in ((COMPLETE, sum(sizes)), (PARTIAL, sizes[-1])):
            weights = np.random.default_rng(0).normal(size=(100, size)).astype(np.float32)
            began = time.perf_counter()
            agglomerate(distance_matrix(weights), threshold=1.4)
            lines.append(Line((title, words), {"seconds": [time.perf_counter() - began]}))
    return lines


def newcomers(round: int, count: int, clients: int) -> list[dict[str, Any]]:
    """So many of the clients join late, spread over all of them: groups stand side by side."""
    return [{"round": round, "join": [f"client-{k:03}" for k in np.arange(1, count + 1) * clients // count - 1]}]


def all_and_newcomers(run: Finished) -> Series:
    """Accuracy of those who were there from the start, and of those who joined later."""
    first = set(run.history.loc[run.history["round"] == 0, "client"])
    series: Series = {}
    for name, rows in run.history.groupby(run.history["client"].isin(first)):
        means = rows.groupby("round")["accuracy"].mean().dropna()
        label = "from the start" if name else "newcomers"
        series[label] = [float(round) for round in means.index], means.tolist()
    return series


SCALES = {
    "smoke": Scale(
        (0,),
        fits=(),
        instead={"data": "digits", "model": "mlp"},
        most_columns=1,
        settings={
            "clients": 10,
            "rows": 20,
            "rounds": 2,
            "training": {"batch_size": 20},
            "methods": {"cfl": {"min_round": 1}},
        },
    ),
    "small": Scale(
        (0,),
        fits=("mnist",),
        instead={"data": "mnist", "model": "mnist-cnn"},
        settings={
            "clients": 40,
            "rows": 200,
            "rounds": 10,
            "evaluate_every": 2,
            "training": {"batch_size": 10, "learning_rate": 0.02},
            "methods": {"cfl": {"min_round": 4, "eps1": 0.4, "eps2": 1.6}},
        },
    ),
    "full": Scale((0, 1, 2)),
}

PAPER = Paper(
    "adacfl",
    "AdaCFL",
    "Gong et al., AdaCFL, Mobile Networks and Applications 2022.",
    settings={
        "clients": 100,
        "test_view": "proportional",
        "rounds": 50,
        "training": {"local_epochs": 1, "learning_rate": 0.01, "momentum": 0.0},
    },
    scales=SCALES,
    notes=(
        "The paper does not say what it evaluates; the cluster model, as a mean over clients, stands beside its "
        "numbers. It does not give the linkage (here average), the momentum (0), the number of repeats (3), IFCA's "
        "number of clusters (the true one), how many rows clients have (as many as can be dealt out evenly, 290 to 640 "
        "on MNIST), which labels dominate where it has five groups (0 to 4) and which go together in B (g and g + 1), "
        "which rows test (those of the official test set, in the client's shares of labels), from where its gap of "
        "10 % between entropies counts (the next smaller one), or the round of clustering: after several, it says, "
        "and has its accuracy on CIFAR-10 in round 2; here it is the first, but for the rows that name another.",
        "Its threshold of 1.4 is an absolute distance of weights, which other training moves; one sets it by the tree "
        "that one gets, it says. The automatic one is this package's.",
    ),
    items=(
        Counts(
            name="table1",
            title="weights of the networks, layer by layer",
            headings=("network", "layer"),
            count=lambda scale, data_dir: weights_by_layer(NETWORKS, stated("adacfl", "table1")),
            places={"weights": 0},
            notes=(
                "The paper's 8,000 for FmnistCNN do not fit its 32 channels of 4 x 4; HiCFL, by three of its authors, "
                "has 5,120.",
            ),
        ),
        Grid(
            name="table2",
            title="accuracy, and rounds to it",
            says="AdaCFL is as accurate as IFCA, in fewer rounds: on average by 6.26x",
            rows=METHODS,
            columns=ALL,
            measures=(
                CLUSTER_MODEL.beside(stated("adacfl", "table2.accuracy", BESIDE_ADACFL)),
                LOCAL_MODEL,
                ROUNDS.beside(stated("adacfl", "table2.rounds", BESIDE_ADACFL)),
            ),
            notes=(
                "The paper counts rounds until this accuracy is reached, but not how nearly: here within a point. Its "
                "accuracies are like IFCA's, by its own numbers now above and now below.",
                "Its 6.26 is the mean over all that it is compared with: by its numbers FedAvg needs 8.74 times the "
                "rounds of AdaCFL in the mean of the twelve settings, FMTL 8.15 times, IFCA 1.91 times; 6.27 in all.",
                CIFARS_ROUNDS,
                "One epoch is 3 to 7 steps of rate 0.01 here (290 to 640 rows of MNIST, batches of 100; short last "
                "batches are taken: under alpha 0.5 the last of five steps is by three rows). With so few, FedAvg, "
                "and clusters in which every second row has one label, still improve in round 50; the paper's "
                "end on MNIST comes in rounds 2 to 24: its clients seem to take more or longer steps than it tells.",
                AT_THE_THRESHOLD,
                FMTL_HERE,
            ),
        ),
        Grid(
            name="table3",
            title="clusters found",
            says="AdaCFL finds the true number of groups in ten of twelve settings, 8 of 10 and 4 of 5 in the others",
            rows=ALL_READINGS,
            columns=ALL,
            measures=(CLUSTERS.beside(stated("adacfl", "table3", BESIDE_ADACFL)), ARI),
            notes=("The truth is 5 groups under alpha, 10 of CIFAR-10, and 10 under B.",),
        ),
        Grid(
            name="table4",
            title="all weights, or those of one small layer, to cluster by",
            says="partial weights are 3 to 47 points above complete ones, in a half to a twelfth of the rounds",
            rows=by_reading({COMPLETE: {"method": {"layers": "all"}}, PARTIAL: {}}),
            columns=TWO,
            measures=(
                CLUSTER_MODEL.beside(beside_readings("table4.accuracy", COMPLETE, PARTIAL)),
                LOCAL_MODEL,
                ROUNDS.beside(beside_readings("table4.rounds", COMPLETE, PARTIAL)),
                CLUSTERS,
                ARI,
            ),
            notes=(CIFARS_ROUNDS, AT_THE_THRESHOLD),
        ),
        Grid(
            name="table5",
            title="which of two dense layers to cluster by",
            says="both give the same accuracy",
            rows=by_reading({FIRST: {"method": {"layers": "fc1"}}, SECOND: {"method": {"layers": "fc2"}}}),
            columns={
                label: merged(layer, {"model": f"{__name__}:two_dense_{str(layer['model']).removesuffix('-cnn')}"})
                for label, layer in TWO.items()
            },
            measures=(
                CLUSTER_MODEL.beside(beside_readings("table5", FIRST, SECOND)),
                LOCAL_MODEL,
                CLUSTERS,
                ARI,
            ),
            notes=(
                AT_THE_THRESHOLD,
                "The paper's layers of 80,000 and 8,000 weights do not fit one network; here 100 neurons lie between "
                "the two, which have 80,000 (or 40,000, 51,200) and 1,000 weights.",
            ),
        ),
        Grid(
            name="fig1a",
            title="IFCA by its number of clusters",
            rows={f"K = {k}": {"method": {"name": "ifca", "n_clusters": k}} for k in (1, 2, 4, 8, 10, 12, 16, 20)},
            columns={"CIFAR-10, alpha 0.8": merged(DATA["CIFAR-10"], SPLITS["alpha 0.8"])},
            settings={"rounds": 20},
            measures=(CLUSTER_MODEL, LOCAL_MODEL, CLUSTERS),
            says="lowest with one cluster, best with 12",
        ),
        Curves(
            name="fig1b",
            title="FMTL against FedAvg, 30 clients in three groups",
            rows={"FMTL": METHODS["FMTL"], "FedAvg": METHODS["FedAvg"]},
            columns={"CIFAR-10, alpha 0.8": merged(DATA["CIFAR-10"], {"split": "adacfl-alpha:0.8:3"})},
            settings={"clients": 30},
            says="FedAvg learns more steadily than FMTL, which splits late",
            notes=(
                FMTL_HERE,
                "The paper takes 30 of its 100 clients; here 30 share all rows that can be dealt out evenly.",
            ),
        ),
        Maps(
            name="fig2",
            title="distances of weights by layer of VGG16",
            rows={"FedAvg": {"method": {"name": WATCH, "past": False}}},
            columns={"CIFAR-10": {"data": "cifar10", "model": "vgg16-plain", "split": "label-groups:2"}},
            settings={"clients": 10, "rounds": 1, "training": {"batch_size": 50}},
            scales={"smoke": {"clients": 6, "rounds": 1}, "small": {"clients": 10, "rounds": 1}},
            read=lambda run: distance_maps((1, 7, 14, 16), run),
            says="the two groups show in the dense layers (14 and 16) and not in the convolutions (1 and 7)",
            notes=(
                "The paper's VGG16 has 138 million weights, which is that of 224 x 224 images; here its dense "
                "layers are 512 instead of 4096 wide, which makes 15 million.",
            ),
        ),
        Item(name="fig3", title="the framework", why_not="a diagram"),
        Counts(
            name="fig4",
            title="time that clustering 100 clients takes",
            headings=("network", "clustered by"),
            count=clustering_seconds,
            places={"seconds": 3},
            says="within a second by partial weights, much longer by all",
            notes=("Distances are one matrix product here, so that both take little.",),
        ),
        Curves(
            name="fig5",
            title="ten newcomers in round 20",
            rows=by_reading({"AdaCFL": {"method": {"epsilon": 1.8, "newcomers": "current"}}}),
            columns={data: setting(data, "alpha 0.5") for data in DATA},
            settings={"clients": 110, "events": newcomers(20, 10, 110)},
            scales={
                "smoke": {"rounds": 3, "events": newcomers(2, 2, 10)},
                "small": {"events": newcomers(5, 4, 40)},
            },
            read=all_and_newcomers,
            says="accuracy falls a little when they come, and recovers",
            notes=(
                "Newcomers are compared with the clusters' models of that round, as the paper has it, and found a "
                "cluster beyond 1.8. From which model they train first it does not say: here from the one that the "
                "others had when the clusters were made. Nor does it say of what kind they are: here of all groups.",
            ),
        ),
    ),
)
