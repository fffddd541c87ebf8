"""Clustered FedStack: Shaik et al., 2023."""

from typing import Any

import numpy as np

from fedclade.reproduce import finished as read
from fedclade.reproduce.finished import Finished
from fedclade.reproduce.item import Counts, Curves, Item, Listing, Maps, Paper, Picture
from fedclade.reproduce.page import Line
from fedclade.reproduce.scale import Layer, Scale, merged

ALGORITHMS = {"K-means": "kmeans", "agglomerative": "agglomerative", "Gaussian mixture": "gaussian-mixture"}


def stacked(algorithm: str, clusters: int | None = 3) -> Layer:
    method = {"name": "fedstack", "algorithm": ALGORITHMS[algorithm]}
    return {"method": method if clusters is None else {**method, "n_clusters": clusters}}


# Table I: rows of each of eight activities; the sixth person's 9,020 repeats the fifth's, and with 0 the sum is right
TABLE_1 = """
1  2800 1148 1380 1648 3556 9420 3016 4756
2  2400 1068 1216 1548 3680 4880 2756 5164
3  2400 1740 1172 1516 3640 8640 2952 4840
4  2280 2092 1312 1900 4028 7580 2376 4960
5  2400 1860 1160 1728 3320 9020 2356 5080
6  2532 1720 1236 2132 4192 0 0 0
7  2472 1624 1096 2012 4140 9700 2836 4700
8  2400 1648 1292 1680 3080 7200 1924 4768
9  2400 1932 1140 2216 3820 7368 2356 4980
10 2392 1868 1220 1952 3748 8336 4328 4580
11 2400 1828 1296 1960 3440 9632 2616 4880
12 2408 1936 1120 1920 3560 5840 2116 4780
13 2420 1988 1160 1992 3588 8112 2836 4900
14 2432 1824 1300 2008 3816 6924 2460 4820
15 2444 1676 1416 1620 3140 5760 2636 4812
"""
# Table II: accuracy by activity; three clusters each of K-means, agglomerative clustering, Gaussian mixture
TABLE_2 = {
    "sitting": "0.99 0.96 0.95  0.97 0.99 0.95  0.99 0.99 0.99",
    "stairs": "0.92 0.96 0.94  0.96 0.92 0.94  0.92 0.92 0.92",
    "table soccer": "0.96 0.95 0.95  0.97 0.95 0.95  0.95 0.96 0.97",
    "cycling": "0.94 0.97 0.98  0.95 0.96 0.98  0.96 0.93 0.96",
    "driving": "0.89 0.93 0.99  0.89 0.95 0.99  0.95 0.93 0.97",
    "lunch": "0.87 0.86 0.92  0.87 0.89 0.92  0.90 0.90 0.91",
    "walking": "0.91 0.90 0.89  0.90 0.92 0.89  0.91 0.91 0.92",
    "working": "0.92 0.96 0.95  0.97 0.97 0.95  0.96 0.92 0.97",
}
SCORES = {"balanced accuracy": "balanced_accuracy", "precision": "precision", "recall": "recall", "F1": "f1"}
NLP_SCORES = {**SCORES, "accuracy": "accuracy"}
NLP_SCORES.pop("balanced accuracy")
RIVALS = {"ClusterFL": "clusterfl", "FL+HC": "fl-hc", "HypCluster": "hypcluster", "Dynamic Clustering": "dynamic"}
TABLE_3 = {
    "ClusterFL": "0.93 0.78 0.86 0.82", "FL+HC": "0.94 0.85 0.89 0.83", "HypCluster": "0.90 0.65 0.56 0.65",
    "Dynamic Clustering": "0.92 0.86 0.75 0.76",
}  # fmt: skip
TABLE_3_CLUSTERS = {  # the models 1-3 are those of K-means (and agglomerative clustering), 7-9 of the mixture
    "K-means": ("0.98 0.95 0.91 0.93", "0.96 0.89 0.90 0.89", "0.94 0.91 0.92 0.91"),
    "Gaussian mixture": ("0.95 0.92 0.91 0.91", "0.98 0.94 0.93 0.93", "0.97 0.96 0.95 0.95"),
}
TABLE_4 = {  # precision, recall, F1, accuracy
    "ClusterFL": "0.80 0.88 0.82 0.92", "FL+HC": "0.87 0.91 0.83 0.93", "HypCluster": "0.66 0.57 0.65 0.89",
    "Dynamic Clustering": "0.88 0.77 0.76 0.91",
}  # fmt: skip
TABLE_4_CLUSTERS = (
    "0.92 0.93 0.91 0.99", "0.91 0.92 0.91 0.98", "0.96 0.95 0.95 1.00", "0.94 0.93 0.93 0.97", "0.97 0.94 0.96 0.98",
    "0.97 0.93 0.95 1.00", "0.98 0.97 0.97 0.99", "0.97 0.94 0.96 0.98", "0.93 0.94 0.93 0.96", "0.93 0.92 0.91 0.94",
)  # fmt: skip


def label_counts(scale: str, data_dir: str | None) -> list[Line]:
    """Rows of each activity that each person has."""
    from fedclade.data.sources import load

    data = load({"smoke": "synthetic:rows", "small": "motionsense:rows", "full": "ppg-dalia"}[scale], data_dir)
    assert data.owner is not None
    papers = {f"person-{line.split()[0]}": list(map(int, line.split()[1:])) for line in TABLE_1.strip().splitlines()}
    lines = []
    for number, owner in enumerate(data.owners):
        held = np.bincount(data.y[data.owner == number], minlength=data.n_classes)
        for label, (name, count) in enumerate(zip(data.classes, held, strict=True)):
            stated = papers.get(owner, [])
            beside = {"rows": stated[label]} if label < len(stated) else {}
            lines.append(Line((owner, name), {"rows": [int(count)]}, beside, comparable=scale == "full"))
    return lines


def head_distances(run: Finished) -> list[Picture]:
    record = run.last("proximity")
    return [(record["measure"], np.asarray(record["matrix"]), record["clients"])]


def parts_of(run: Finished) -> list[dict[str, Any]]:
    """The clusters of the last round, with the scores of their members' models."""
    return [part for part in run.last("stacking")["clusters"] if "cluster" in part]


def members(run: Finished) -> dict[tuple[str, ...], dict[str, float]]:
    """Who is in which cluster, and how many clients of each architecture those are."""
    record = run.last("architectures")
    lines: dict[tuple[str, ...], dict[str, float]] = {}
    for place, part in enumerate(parts_of(run)):
        counts = np.asarray(record["counts"])[place]
        words = (f"{part['number'] + 1}", " ".join(part["clients"]))
        lines[words] = {name: float(count) for name, count in zip(record["networks"], counts, strict=True)}
    return lines


def by_activity(run: Finished) -> dict[tuple[str, ...], dict[str, float]]:
    lines: dict[tuple[str, ...], dict[str, float]] = {}
    for part in parts_of(run):
        scores = part["cluster"]["by_class"]
        for label, recall in zip(scores["class"], scores["recall"], strict=True):
            lines[f"{part['number'] + 1}", run.record["classes"][int(label)]] = {"accuracy": float(recall)}
    return lines


def by_cluster(scores: dict[str, str], run: Finished) -> dict[tuple[str, ...], dict[str, float]]:
    """The scores of each cluster's stacked model; of other methods, of the models that serve all clients."""
    if run.last("stacking") is None:
        return {("all",): {name: run.scores[key] for name, key in scores.items()}}
    best = sorted(parts_of(run), key=lambda part: -len(part["clients"]))[:10]
    best.sort(key=lambda part: part["number"])
    return {
        (f"{place}",): {name: part["cluster"][key] for name, key in scores.items()}
        for place, part in enumerate(best, start=1)
    }


def stated(names: dict[str, str], text: str) -> dict[str, float]:
    return dict(zip(names, map(float, text.split()), strict=True))


def rivals() -> dict[str, Layer]:
    """The paper's rivals; all clients train one network there."""
    return {words: {"method": {"name": name}} for words, name in RIVALS.items()}


STACKED = {words: stacked(words) for words in ALGORITHMS}
PPG: dict[str, Layer] = {"PPG-DaLiA": {"data": "ppg-dalia"}}
DRUGS: dict[str, Layer] = {"drug reviews": {"data": "drug-reviews", "clients": 2191}}
ONE_NETWORK: Layer = {"model": "cnn1d"}
NUMBERS_OF_CLUSTERS = "The numbers of clusters are arbitrary: ours stand beside the paper's in the order of both."

SCALES = {
    "smoke": Scale(
        (0,),
        fits=(),
        instead={"data": "synthetic", "clients": None},
        settings={
            "rounds": 2,
            "rows": 30,
            "methods": {"fedstack": {"epochs": 2}, "fl-hc": {"warmup": 1}, "hypcluster": {"warmup": 1}},
        },
    ),
    "small": Scale(
        (0,),
        fits=("motionsense",),
        instead={"data": "motionsense", "clients": None},
        settings={
            "rounds": 6,
            "rows": 150,
            "training": {"batch_size": 16, "learning_rate": 0.02},
            "methods": {"fedstack": {"epochs": 10}},
        },
    ),
    "full": Scale((0, 1, 2)),
}

PAPER = Paper(
    "fedstack",
    "Clustered FedStack",
    "Shaik et al., Clustered FedStack, 2023.",
    settings={
        "split": "natural",
        "rounds": 10,
        "training": {"local_epochs": 2, "batch_size": 32, "learning_rate": 0.01, "momentum": 0.9},
        "methods": {"fedstack": {"epochs": 50}},
    },
    scales=SCALES,
    notes=(
        "The paper does not say which person trained which network (here by turns), nor rates, epochs and widths of "
        "the local ones. Its scores are of the stacked models behind the clients' own networks.",
    ),
    items=(
        Item(name="fig1", title="the framework", why_not="a diagram"),
        Item(name="fig2", title="local models and the server", why_not="a diagram"),
        Counts(
            name="table1",
            title="rows of each activity by person",
            but="one of the paper's numbers is wrong",
            headings=("person", "activity"),
            count=label_counts,
            places={"rows": 0},
            notes=(
                "The paper's 9,020 in the sixth activity of person 6 repeats person 5's and does not fit the sum: 0.",
                "At smoke and small scale, other data than the paper's are counted.",
            ),
        ),
        Maps(
            name="fig3",
            title="cosine distances of clients' last layers",
            rows={"": stacked("K-means", None)},
            columns=PPG,
            read=head_distances,
            says="distances lie between 0.02 and 0.47",
        ),
        Curves(
            name="fig4",
            title="BIC by number of clusters",
            rows={"": stacked("K-means", None)},
            columns=PPG,
            read=read.bic_curve,
            x="cluster",
            y="BIC",
            at=(0.0, 0.25, 0.5, 1.0),
            says="lowest with three clusters",
        ),
        Listing(
            name="fig5",
            title="clusters by three algorithms",
            rows=STACKED,
            columns=PPG,
            headings=("algorithm", "cluster", "members"),
            read=members,
            places={"ann": 0, "cnn1d": 0, "bilstm": 0},
            says="K-means and agglomerative clustering agree; the mixture puts all CNNs together",
        ),
        Listing(
            name="table2",
            title="accuracy by activity and cluster",
            but="clusters have no common order",
            rows=STACKED,
            columns=PPG,
            headings=("algorithm", "cluster", "activity"),
            read=by_activity,
            places={"accuracy": 2},
            paper={
                (algorithm, f"{cluster + 1}", activity): {"accuracy": float(text.split()[3 * place + cluster])}
                for activity, text in TABLE_2.items()
                for place, algorithm in enumerate(ALGORITHMS)
                for cluster in range(3)
            },
            notes=(NUMBERS_OF_CLUSTERS,),
        ),
        Listing(
            name="table3",
            title="against other methods",
            rows={**{words: merged(ONE_NETWORK, layer) for words, layer in rivals().items()}, **STACKED},
            columns=PPG,
            headings=("method", "cluster"),
            read=lambda run: by_cluster(SCORES, run),
            places=dict.fromkeys(SCORES, 2),
            paper={
                **{(words, "all"): stated(SCORES, text) for words, text in TABLE_3.items()},
                **{
                    (algorithm, f"{place}"): stated(SCORES, text)
                    for algorithm, texts in TABLE_3_CLUSTERS.items()
                    for place, text in enumerate(texts, start=1)
                },
            },
            notes=(NUMBERS_OF_CLUSTERS,),
        ),
        Listing(
            name="table4",
            title="ratings of drugs, against other methods",
            rows={
                **{words: merged({"model": "ann"}, layer) for words, layer in rivals().items()},
                "Gaussian mixture": stacked("Gaussian mixture", 78),
            },
            columns=DRUGS,
            scales={
                "smoke": {"methods": {"fedstack": {"n_clusters": 3}}},
                "small": {"methods": {"fedstack": {"n_clusters": 10}}},
            },
            headings=("method", "cluster"),
            read=lambda run: by_cluster(NLP_SCORES, run),
            places=dict.fromkeys(NLP_SCORES, 2),
            paper={
                **{(words, "all"): stated(NLP_SCORES, text) for words, text in TABLE_4.items()},
                **{
                    ("Gaussian mixture", f"{place}"): stated(NLP_SCORES, text)
                    for place, text in enumerate(TABLE_4_CLUSTERS, start=1)
                },
            },
            notes=(NUMBERS_OF_CLUSTERS, "Of 78 clusters, the paper shows ten; here the ten largest."),
        ),
        Curves(
            name="fig6",
            title="stacked models as they learn, with a cyclic rate",
            rows=STACKED,
            columns=PPG,
            read=read.stacked_by_round,
            x="round",
            y="accuracy",
            says="all converge in fewer than 50 epochs",
            notes=("A round is five epochs of the stacked models.",),
        ),
        Curves(
            name="fig7",
            title="stacked models of drug ratings as they learn, with a cyclic rate",
            rows={"": stacked("Gaussian mixture", 78)},
            columns=DRUGS,
            settings={"rounds": 20},
            scales={
                "smoke": {"methods": {"fedstack": {"n_clusters": 3}}},
                "small": {"methods": {"fedstack": {"n_clusters": 10}}},
            },
            read=read.stacked_by_round,
            x="round",
            y="accuracy",
            says="accuracy grows over 100 epochs, one model's from 0.79 to 0.86 by epoch 40",
            notes=("A round is five epochs of the stacked models.",),
        ),
    ),
)
