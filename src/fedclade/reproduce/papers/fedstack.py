"""Clustered FedStack: Shaik et al., 2023."""

from typing import Any

import numpy as np

from fedclade.reproduce import finished as read
from fedclade.reproduce.finished import Finished
from fedclade.reproduce.item import Item, Paper
from fedclade.reproduce.kinds import Counts, Curves, Listing, Maps, Picture
from fedclade.reproduce.numbers import stated
from fedclade.reproduce.page import Line
from fedclade.reproduce.scale import Layer, Scale, merged, participation

ALGORITHMS = {"K-means": "kmeans", "agglomerative": "agglomerative", "Gaussian mixture": "gaussian-mixture"}


def stacked(algorithm: str, clusters: int | None = 3) -> Layer:
    method = {"name": "fedstack", "algorithm": ALGORITHMS[algorithm]}
    return {"method": method if clusters is None else {**method, "n_clusters": clusters}}


SCORES = {"balanced accuracy": "balanced_accuracy", "precision": "precision", "recall": "recall", "F1": "f1"}
NLP_SCORES = {**SCORES, "accuracy": "accuracy"}
NLP_SCORES.pop("balanced accuracy")
RIVALS = {"ClusterFL": "clusterfl", "FL+HC": "fl-hc", "HypCluster": "hypcluster", "Dynamic Clustering": "dynamic"}


def label_counts(scale: str, data_dir: str | None) -> list[Line]:
    """Rows of each activity that each person has."""
    from fedclade.data.sources import load

    data = load({"smoke": "synthetic:rows", "small": "motionsense:rows", "full": "ppg-dalia"}[scale], data_dir)
    assert data.owner is not None
    papers = stated("fedstack", "table1") if scale == "full" else {}
    lines = []
    for number, owner in enumerate(data.owners):
        held = np.bincount(data.y[data.owner == number], minlength=data.n_classes)
        for name, count in zip(data.classes, held, strict=True):
            theirs = {"rows": papers[owner, name]} if (owner, name) in papers else {}
            lines.append(Line((owner, name), {"rows": [int(count)]}, theirs))
    return lines


def head_distances(run: Finished) -> list[Picture]:
    record = run.last_kept("proximity")
    return [(record["measure"], np.asarray(record["matrix"]), record["clients"])]


def parts_of(run: Finished) -> list[dict[str, Any]]:
    """The clusters of the last round, with the scores of their members' models."""
    return [part for part in run.last_kept("stacking")["clusters"] if "cluster" in part]


def members(run: Finished) -> dict[tuple[str, ...], dict[str, float]]:
    """Who is in which cluster, and how many clients of each architecture those are."""
    record = run.last_kept("architectures")
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
    """The scores of each cluster's stacked model; of other methods, of all clients' cluster models."""
    if run.last_kept("stacking") is None:
        return {("all",): {name: run.scores[key] for name, key in scores.items()}}
    best = sorted(parts_of(run), key=lambda part: -len(part["clients"]))[:10]
    best.sort(key=lambda part: part["number"])
    return {
        (f"{place}",): {name: part["cluster"][key] for name, key in scores.items()}
        for place, part in enumerate(best, start=1)
    }


def rivals() -> dict[str, Layer]:
    """The paper's rivals; all clients train one network there."""
    return {words: {"method": {"name": name}} for words, name in RIVALS.items()}


STACKED = {words: stacked(words) for words in ALGORITHMS}
ALIGNED = {words: {"method": {**layer["method"], "layout": "aligned"}} for words, layer in STACKED.items()}
BESIDE_FEDSTACK = {  # the paper has one line for K-means and agglomerative clustering
    "K-means": ("K-means", "K-means, aligned", "agglomerative", "agglomerative, aligned"),
    "Gaussian mixture": ("Gaussian mixture", "Gaussian mixture, aligned"),
}
PPG: dict[str, Layer] = {"PPG-DaLiA": {"data": "ppg-dalia:acceleration"}}
DRUGS: dict[str, Layer] = {"drug reviews": {"data": "drug-reviews", "clients": 2191}}
ONE_NETWORK: Layer = {"model": "cnn1d"}
TOP_TEN = (
    "Of 78 clusters the paper shows the top ten, and does not say by what; here they are the ten largest, so that a "
    "difference may be one of choice."
)
DRUG_ROWS = (
    "Of the 3,677 drugs the paper takes 2,191 and does not say which: here those with most training rows, down to "
    "drugs with one review to train and one to test on. A row is the condition and the text of a review as 512 hashed "
    "words and pairs of words, of the files' own division into training and test rows. The 78 clusters are handed to "
    "the mixture, not found."
)
EPOCHS = (
    "Stacked models train for five epochs before the first round and for five in each: round 1 is epoch 10, round 9 "
    "epoch 50. The paper counts epochs."
)
NUMBERS_OF_CLUSTERS = "The numbers of clusters are arbitrary: ours stand beside the paper's in the order of both."

SCALES = {
    "smoke": Scale(
        (0,),
        fits=(),
        instead={"data": "synthetic", "clients": None},
        settings={
            "rounds": 2,
            "rows": 30,
            "training": {"local_epochs": 1},
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
            "training": {"local_epochs": 5, "batch_size": 16, "learning_rate": 0.02},
            "methods": {"fedstack": {"epochs": 30, "stack_rate": 0.1}},  # as many epochs as six rounds have
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
        **participation(1.0),
        "training": {"local_epochs": 5, "batch_size": 32, "learning_rate": 0.01, "momentum": 0.9},
        "methods": {"fedstack": {"epochs": 50, "stack_rate": 0.001}},
    },
    scales=SCALES,
    notes=(
        "The paper does not say which person trained which network (here by turns), nor rates, epochs and widths of "
        "the local ones. Its scores are of the stacked models behind the clients' networks. What network these are it "
        "does not say either (here a small one that corrects the predictions it reads), nor what those of clusters "
        "begin with (the global one), nor batch, momentum and steps of half a cycle (64, 0.9, two epochs).",
        "PPG-DaLiA is taken as its wrist's acceleration, a row being the three means of a quarter of a second, so that "
        "a CNN has three numbers to look along and a BiLSTM a single moment; the paper says acceleration in three "
        "dimensions, not of which device nor how it is cut. Tested is on the last fifth of every stretch of one "
        "activity. Balanced accuracy and the mean recall of classes are one and the same here; the paper has two "
        "numbers.",
        "All methods train every client for the same number of epochs; rivals that average weights need one network, "
        "so its tables have FedStack with the paper's three and with that one too. Of its rivals' settings the paper "
        "says nothing: they have this package's own (HypCluster four clusters).",
    ),
    items=(
        Item(name="fig1", title="the framework", why_not="a diagram"),
        Item(name="fig2", title="local models and the server", why_not="a diagram"),
        Counts(
            name="table1",
            title="rows of each activity by person",
            but="one of the paper's numbers does not fit its sum",
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
            says="distances from 0.02 on, drawn on a scale up to 0.6",
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
            notes=("The paper does not say of which model the likelihood is: here of one variance for all clusters.",),
        ),
        Listing(
            name="fig5",
            title="clusters by three algorithms",
            rows=STACKED,
            columns=PPG,
            headings=("algorithm", "cluster", "members"),
            read=members,
            places={"ann": 0, "cnn1d": 0, "bilstm": 0},
            says="K-means and agglomerative clustering make similar groups; the mixture puts all CNNs together",
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
            paper={(*words, "accuracy"): number for words, number in stated("fedstack", "table2").items()},
            says="K-means and agglomerative clustering are alike, the mixture is slightly better",
            notes=(
                NUMBERS_OF_CLUSTERS,
                "The accuracy of one activity is here the share of its rows that are told as such; the paper does not "
                "say how it counts.",
            ),
        ),
        Listing(
            name="table3",
            title="against other methods",
            rows={
                **{words: merged(ONE_NETWORK, layer) for words, layer in rivals().items()},
                **STACKED,
                **{f"{words}, one network": merged(ONE_NETWORK, layer) for words, layer in STACKED.items()},
                **{f"{words}, aligned": layer for words, layer in ALIGNED.items()},
                **{f"{words}, aligned, one network": merged(ONE_NETWORK, layer) for words, layer in ALIGNED.items()},
            },
            columns=PPG,
            headings=("method", "cluster"),
            read=lambda run: by_cluster(SCORES, run),
            places=dict.fromkeys(SCORES, 2),
            paper=stated("fedstack", "table3", BESIDE_FEDSTACK),
            says="FedStack is above all others in all scores (its third model ties with FL+HC in one, 0.94)",
            notes=(
                NUMBERS_OF_CLUSTERS,
                "The paper's first three models are of K-means and of agglomerative clustering both, which make "
                "similar clusters there.",
                "Aligned: the other reading of the paper, in which all networks of a cluster predict the same rows and "
                "its model reads them side by side; else a model reads one network at a time. Both stand beside its "
                "numbers.",
            ),
        ),
        Listing(
            name="table4",
            title="ratings of drugs, against other methods",
            but="of 78 clusters the paper has its top ten",
            rows={
                **{words: merged({"model": "ann"}, layer) for words, layer in rivals().items()},
                "Gaussian mixture": stacked("Gaussian mixture", 78),
                "Gaussian mixture, one network": merged({"model": "ann"}, stacked("Gaussian mixture", 78)),
            },
            columns=DRUGS,
            scales={
                "smoke": {"methods": {"fedstack": {"n_clusters": 3}}},
                "small": {"methods": {"fedstack": {"n_clusters": 10}}},
            },
            headings=("method", "cluster"),
            read=lambda run: by_cluster(NLP_SCORES, run),
            places=dict.fromkeys(NLP_SCORES, 2),
            paper=stated("fedstack", "table4"),
            says="FedStack is above all others in all scores; the BIC is lowest with 78 clusters of 2,191 drugs",
            notes=(NUMBERS_OF_CLUSTERS, TOP_TEN, DRUG_ROWS),
        ),
        Curves(
            name="fig6",
            title="stacked models as they learn, with a cyclic rate",
            rows=STACKED,
            columns=PPG,
            read=read.stacked_by_round,
            x="round",
            y="accuracy",
            says="all converge in fewer than 50 epochs, the mixture's last",
            notes=(EPOCHS,),
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
            notes=(EPOCHS, DRUG_ROWS),
        ),
    ),
)
