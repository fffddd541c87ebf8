"""HiCFL: Gong, Xing, Liu, Xi and Chen, IEEE TMC 2024."""

from functools import partial
from typing import Any

from fedclade.reproduce import finished as read
from fedclade.reproduce.item import Item, Paper
from fedclade.reproduce.kinds import (
    ARI,
    CLUSTER_MEAN,
    CLUSTER_MODEL,
    CLUSTERS,
    LOCAL_MODEL,
    UNTIL_FINAL,
    Counts,
    Curves,
    Grid,
    Listing,
    Maps,
    Measure,
)
from fedclade.reproduce.layers import (
    CHANGES,
    WATCH,
    changes,
    layer_maps,
    loss_and_stability,
    most_stable,
    most_stable_watched,
    told_apart,
    weights_by_layer,
)
from fedclade.reproduce.numbers import stated
from fedclade.reproduce.scale import Layer, Scale, merged

DATA: dict[str, Layer] = {
    "MNIST": {"data": "mnist", "model": "mnist-cnn"},
    "FashionMNIST": {"data": "fashion-mnist", "model": "fmnist-cnn"},
    "CIFAR10": {"data": "cifar10", "model": "cifar-cnn"},
}
NON_IID: dict[str, Layer] = {
    "Non-IID-1": {"split": "non-iid-1", "training": {"learning_rate": 0.1, "batch_size": 128}},
    "Non-IID-2": {"split": "non-iid-2:0.7", "training": {"learning_rate": 0.01, "batch_size": 256}},
    "Non-IID-3": {"split": "non-iid-3", "training": {"learning_rate": 0.1, "batch_size": 128}},
}
CIFARS_RATE: Layer = {"training": {"learning_rate": 0.001}}  # on Non-IID-2

# MTCFL's eps1 and eps2, tuned on rows of the training files alone (docs/results/mtcfl.md).
TUNED: dict[str, tuple[float, float]] = {
    "MNIST, Non-IID-1": (0.12, 0.36),
    "MNIST, Non-IID-2": (0.047, 0.063),
    "MNIST, Non-IID-3": (0.15, 0.49),
    "FashionMNIST, Non-IID-1": (0.15, 0.23),
    "FashionMNIST, Non-IID-2": (0.04, 0.067),
    "FashionMNIST, Non-IID-3": (0.16, 0.43),
}


def setting(non_iid: str, data: str) -> Layer:
    """A data set under one of the paper's three settings; IFCA is given the true number of groups, MTCFL is tuned."""
    layer = merged(DATA[data], NON_IID[non_iid])
    if non_iid == "Non-IID-2" and data == "CIFAR10":
        layer = merged(layer, CIFARS_RATE)
    groups = 2 if non_iid == "Non-IID-3" and data != "CIFAR10" else 4
    methods: dict[str, Layer] = {"ifca": {"n_clusters": groups}}
    if named(non_iid, data) in TUNED:
        methods["cfl"] = dict(zip(("eps1", "eps2"), TUNED[named(non_iid, data)], strict=True))
    return merged(layer, {"methods": methods})


def named(non_iid: str, data: str) -> str:
    return f"{data}, {non_iid}"


# Of Non-IID-3 the paper says that all clients own the same labels, and of all settings that they sample by a Dirichlet
# distribution of 1: labels that vary, or are alike.
ALIKE = {named("Non-IID-3", data): f"{named('Non-IID-3', data)}, labels alike" for data in DATA}
BOTH_READINGS = {name: (name, alike) for name, alike in ALIKE.items()}

ALL = {named(split, data): setting(split, data) for data in DATA for split in NON_IID} | {
    ALIKE[named("Non-IID-3", data)]: merged(setting("Non-IID-3", data), {"split": "non-iid-3:100"}) for data in DATA
}
CIFAR = {split: setting(split, "CIFAR10") for split in NON_IID}

PAPERS_RULE = "HiCFL, the paper's rule"
OUR_RULE = "HiCFL, this package's rule"
SHORT_TOO = f"{PAPERS_RULE}, short last batches too"
HICFL: dict[str, Layer] = {
    PAPERS_RULE: {"method": {"name": "hicfl"}},
    OUR_RULE: {"method": {"name": "agreement"}},
}
METHODS: dict[str, Layer] = {
    "FedAvg": {"method": {"name": "fedavg"}},
    "MTCFL": {"method": {"name": "cfl"}},
    "IFCA": {"method": {"name": "ifca"}},
    **HICFL,
}

STABLE_AT_ONCE = "clients stable at once, at most"

BOTH_RULES = {"HiCFL": (PAPERS_RULE, OUR_RULE)}  # the rows that stand beside the paper's

NETWORKS = {
    "MNIST-CNN": ("mnist-cnn", (1, 28, 28)),
    "FashionMNIST-CNN": ("fmnist-cnn", (1, 28, 28)),
    "CIFAR10-CNN": ("cifar-cnn", (3, 32, 32)),
}


def beta(value: float) -> Layer:
    return {"split": f"non-iid-2:{value}"}


def two_groups(split: str) -> Layer:
    return {"split": f"{split}:1:2"}


def xi(words: str | float) -> Layer:
    return {"method": {"name": "hicfl", "xi": words}}


def lda(alpha: float) -> dict[str, Any]:
    return {
        "rows": METHODS,
        "columns": {
            "CIFAR10-CNN": merged(DATA["CIFAR10"], {"training": {"batch_size": 128, "learning_rate": 0.01}}),
            "ResNet18": {
                "data": "cifar10",
                "model": "resnet18-bn",
                "training": {"batch_size": 32, "learning_rate": 0.01},
            },
            "VGG11": {"data": "cifar10", "model": "vgg11-plain", "training": {"batch_size": 16, "learning_rate": 0.01}},
        },
        "settings": {"split": f"dirichlet:{alpha}", "methods": {"ifca": {"n_clusters": 4}}},
    }


MTCFL_HERE = (
    "MTCFL may split from round 21 on, as in its authors' code: up to then it is FedAvg. Its eps2 is that with the "
    "highest accuracy in round 30 on rows of the training files, its eps1 a fifth above the mean update of round 20 "
    "(`make results-mtcfl`), where short last batches were taken and labels varied; columns with labels alike have the "
    "same. On CIFAR10, where it has not been run, they are its authors' 0.4 and 1.6."
)
DEEPER = (
    "Not said by the paper, and chosen here: CIFAR10-CNN's rate (0.01) and batch (128), IFCA's four clusters, and how "
    "the deeper networks were cut to small images: ResNet18 has BatchNorm and one 3 x 3 convolution as its stem, VGG11 "
    "is plain, as published, but for 512 instead of 4096 wide fully connected layers.",
)

DEEPER_SAYS = "HiCFL is the most accurate and the steadiest, FedAvg mostly the lowest"

SCALES = {
    "smoke": Scale(
        (0,),
        fits=(),
        instead={"data": "digits", "model": "mlp"},
        most_columns=1,
        settings={
            "clients": 8,
            "rows": 16,
            "rounds": 3,
            "training": {"batch_size": 16, "learning_rate": 0.05},
            "methods": {"cfl": {"min_round": 1}},
        },
    ),
    "small": Scale(
        (0,),
        fits=("mnist",),
        instead=DATA["MNIST"],
        settings={
            "rows": 300,
            "rounds": 12,
            "evaluate_every": 3,
            "training": {"batch_size": 32, "learning_rate": 0.1},
            "methods": {"cfl": {"min_round": 5, "eps1": 0.4, "eps2": 0.6}},
        },
    ),
    "full": Scale((0, 1, 2, 3, 4)),
}

PAPER = Paper(
    "hicfl",
    "HiCFL",
    "Gong et al., HiCFL, IEEE TMC 2024.",
    settings={
        "clients": 20,
        "test_view": "proportional",
        "rounds": 50,
        "training": {"local_epochs": 1, "momentum": 0.0, "drop_last": True},
    },
    scales=SCALES,
    notes=(
        "The paper does not give the window, the local epochs or the momentum: here 3, 1 and 0. Nor does it give the "
        "share of the dominant label in Non-IID-2 (here 0.7, its example, but where a table names it), which labels "
        "dominate (0 to 3), how many rows clients have, how inputs are scaled (to between 0 and 1), or which rows test "
        "(those of the official test set, in the client's shares of labels).",
        "Nor does it say what becomes of an epoch's last rows where they do not fill a batch: here they are left out. "
        "Taken, they are a step like any other by as little as one row; in the settings in which that was tried (table "
        "3) some clients were then unstable in every round, and nothing was split.",
        "Here no row has two owners. Among 20 clients in the setting's own groups all rows are dealt out in Non-IID-1, "
        "480 to 9,200 a client (CIFAR10: 410 to 7,600), and in Non-IID-3, 900 to 5,800 (CIFAR10: 780 to 4,400); inside "
        "a group each label's rows are divided by a Dirichlet distribution of 1. In Non-IID-2 each client weighs its "
        "other labels so, and the rows of the dominant ones run out first: with 0.7 a client has some 1,350 rows on "
        "average (CIFAR10: 1,100), 2 to 8 steps an epoch, and an average of 2,000 is impossible, for the four dominant "
        "labels have some 6,000 rows each (CIFAR10: 5,000).",
        "Its accuracy is a mean over all clusters, each counted once, which we take for those that were found: in "
        "tables ours stands beside it, and the mean over clients beside that. Curves are means over clients.",
        "A cluster is finished, in our reading, when the mean update is at least 0.95 as long as the longest in three "
        "rounds in a row (the paper: both consistent, where it writes of all clients).",
        "The paper says that clients sample by a Dirichlet distribution and have different numbers of rows, and also "
        "that in Non-IID-3 the distribution of labels is the same on all clients: where a column says that labels "
        "are alike, it is (to a tenth; a Dirichlet distribution of 100), and numbers of rows are alike then, too.",
    ),
    items=(
        Counts(
            name="table1",
            title="weights of the networks, layer by layer",
            headings=("network", "layer"),
            count=lambda scale, data_dir: weights_by_layer(NETWORKS, stated("hicfl", "table1")),
            places={"weights": 0},
            notes=("Biases are not counted.",),
        ),
        Grid(
            name="table2",
            title="accuracy under three kinds of non-IID data",
            says="HiCFL is first in six of nine columns and second in the others: in the mean 9.0 points above FedAvg, "
            "2.3 above MTCFL, 2.0 above IFCA",
            rows={"Centralized": {"method": {"name": "centralized"}}, **METHODS},
            columns=ALL,
            measures=(
                CLUSTER_MEAN.beside(stated("hicfl", "table2", BOTH_RULES, BOTH_READINGS)),
                CLUSTER_MODEL,
                LOCAL_MODEL,
                CLUSTERS,
                ARI,
            ),
            notes=(
                "In Non-IID-2 accuracies on MNIST and FashionMNIST are some 10 to 16 points below the paper's in every "
                "row, FedAvg's too, which suggests that clients there took more steps.",
                MTCFL_HERE,
                "IFCA is given the true number of groups and one random start, and is not tuned further: in some cells "
                "it ends with fewer clusters.",
            ),
        ),
        Grid(
            name="table3",
            title="rounds until the clusters are final",
            says="HiCFL needs 27 to 81 % fewer rounds than MTCFL",
            but="three of the paper's numbers are lost",
            rows={
                "MTCFL": METHODS["MTCFL"],
                PAPERS_RULE: HICFL[PAPERS_RULE],
                SHORT_TOO: merged(HICFL[PAPERS_RULE], {"training": {"drop_last": False}}),
                OUR_RULE: HICFL[OUR_RULE],
            },
            columns=ALL,
            measures=(
                UNTIL_FINAL.beside(
                    stated("hicfl", "table3", {"HiCFL": (PAPERS_RULE, SHORT_TOO, OUR_RULE)}, BOTH_READINGS)
                ),
                CLUSTERS,
                ARI,
                Measure(STABLE_AT_ONCE, most_stable, digits=0),
            ),
            notes=(
                "Three of the paper's numbers are lost in the text at hand; one of those beside 36 is 7.",
                MTCFL_HERE,
                "No number of rounds and 1 cluster means that nothing was ever split: the paper's rule asks that all "
                "members of a cluster, here 20, be stable in one layer in the same round.",
            ),
        ),
        Grid(
            name="table4",
            title="clients on the right side of a split, before and after updates are stable",
            says="57 to 87 % before, 98 to 100 % after",
            rows={
                "Non-IID-1": merged(NON_IID["Non-IID-1"], two_groups("non-iid-1")),
                "Non-IID-2, beta 0.5": merged(NON_IID["Non-IID-2"], CIFARS_RATE, two_groups("non-iid-2:0.5")),
                "Non-IID-2, beta 0.7": merged(NON_IID["Non-IID-2"], CIFARS_RATE, two_groups("non-iid-2:0.7")),
                "Non-IID-3": merged(NON_IID["Non-IID-3"], two_groups("non-iid-3")),
            },
            columns={"CIFAR10": DATA["CIFAR10"]},
            settings={"rounds": 20, "method": {"name": WATCH}},
            measures=(
                *(
                    Measure(
                        f"{when}, %",
                        partial(told_apart, when),
                        factor=100,
                        paper=stated("hicfl", f"table4.{when}"),
                    )
                    for when in ("before", "after")
                ),
                Measure(STABLE_AT_ONCE, most_stable_watched, digits=0),
            ),
            notes=(
                "The paper calls it model accuracy. What is shown is how many of the 20 clients, who are of two groups "
                "and in one cluster, a split by the signs of cosines would put on the right side, in every round.",
                "The paper does not say which two groups: here the first of each setting, 10 clients each, with labels "
                "0 to 3 and 3 to 6 (500 to 4,700 rows a client), dominated by label 0 and by label 1 (430 to 1,400 "
                "with beta 0.5, 330 to 1,000 with 0.7), and turned by 0 and by 180 degrees (750 to 4,800).",
                "Which side is called right is chosen for each round, so that chance has half or more. The layer is "
                "that of least stability (of all weights, without xi): the paper names none.",
                "Before are the rounds from the third, the first with a stability, to the last before all members are "
                "stable in some layer; after are those that follow, none where that never happens. No number stands "
                "where some seed has none; the CSV table has each seed's.",
            ),
        ),
        Grid(
            name="table5",
            title="MTCFL with model stability as the sign to split",
            says="about the same accuracy, with clusters that are final in round 11 to 19 instead of 22 to 37",
            rows={
                "MTCFL": METHODS["MTCFL"],
                "MTCFL with model stability": {"method": {"name": "cfl-stability"}},
            },
            columns=CIFAR,
            measures=(
                CLUSTER_MEAN.beside(stated("hicfl", "table5.accuracy")),
                CLUSTER_MODEL,
                LOCAL_MODEL,
                UNTIL_FINAL.beside(stated("hicfl", "table5.rounds")),
                CLUSTERS,
            ),
            notes=(MTCFL_HERE,),
        ),
        Grid(
            name="table6",
            title="clusters merged, refined or broken up after clustering",
            says="personalised is above fine-grained, and that above re-organised",
            rows={
                variant: {"method": {"name": "agreement", "variant": variant}}
                for variant in ("re-organised", "fine-grained", "personalised")
            },
            columns=CIFAR,
            measures=(CLUSTER_MEAN.beside(stated("hicfl", "table6")), CLUSTER_MODEL, LOCAL_MODEL, CLUSTERS),
            notes=("With this package's rule for splits: by the paper's, clusters are seldom finished.",),
        ),
        *(
            Maps(
                name=f"fig{number}",
                title=f"cosines of updates by layer, {words}",
                rows={"FedAvg": {"method": {"name": WATCH, "keep": [1, 10], "past": False}}},
                columns={"CIFAR10": merged(DATA["CIFAR10"], {"split": split})},
                settings={"clients": 10, "rounds": 10, "training": {"learning_rate": 0.1, "batch_size": 128}},
                scales={"smoke": {"rounds": 2, "method": {"keep": [1, 2]}}, "small": {"rounds": 10}},
                read=partial(layer_maps, 10),
                says=says,
                notes=(
                    f"The paper does not say {unsaid}, or at which rate and in which batches they train (0.1, 128).",
                ),
            )
            for number, words, split, unsaid, says in (
                (
                    1,
                    "groups with different labels",
                    "label-groups:2:1",
                    "which labels groups have (0 to 4, and 5 to 9), how many rows clients have (1,800 to 9,600)",
                    "after round 1 only the dense layer shows the groups, after round 10 the second convolution too",
                ),
                (
                    2,
                    "groups with turned images",
                    "non-iid-3:1:2",
                    "how images differ (by a turn of 180 degrees), how many rows clients have (1,900 to 7,800)",
                    "after round 1 only the second convolution shows the groups, after round 10 the first too, the "
                    "dense layer never",
                ),
            )
        ),
        Item(name="fig3", title="three rounds of updates", why_not="a diagram"),
        Curves(
            name="fig4",
            title="loss and model stability over rounds",
            rows={"": {"method": {"name": WATCH}}},
            columns=CIFAR,
            read=loss_and_stability,
            y="loss, stability",
            says="stability is level after about 12 rounds, the loss after about 40",
        ),
        Item(name="fig5", title="how clusters are split and merged", why_not="a diagram"),
        Listing(
            name="fig6",
            title="how much the updates of weights change from round to round",
            rows={"FedAvg": {"method": {"name": WATCH}}},
            columns={"FashionMNIST": merged(DATA["FashionMNIST"], NON_IID["Non-IID-2"])},
            settings={"rounds": 10},
            headings=("method", "layer"),
            read=changes,
            places=CHANGES,
            says="the weights that change much are relatively fixed between rounds (in its picture those with indexes "
            "0 to 1,200), the others change little",
            notes=(
                "How much a weight's update changes from the last round but one to the last, in learning rates, of all "
                "clients. Of the tenth of the weights that change most a tenth would be the same by chance.",
            ),
        ),
        Curves(
            name="fig7",
            title="accuracy by learning rate and batch size, Non-IID-2",
            rows={
                f"rate {rate}, batch {batch}": {
                    "method": {"name": "hicfl"},
                    "training": {"learning_rate": rate, "batch_size": batch},
                }
                for rate in (0.1, 0.01, 0.001)
                for batch in (256, 512)
            },
            columns={data: setting("Non-IID-2", data) for data in DATA},
            varied=("training",),
            says="on MNIST it works with every rate, on FashionMNIST with 0.01 and not with 0.1; on CIFAR10 with "
            "0.001, and with 0.01 once batches grow from 256 to 512",
        ),
        Grid(
            name="fig8",
            title="rounds until the clusters are final, by how non-IID the data are",
            rows={
                f"beta {value}, {words}": merged(beta(value), layer)
                for value in (0.3, 0.5, 0.7, 0.9)
                for words, layer in HICFL.items()
            },
            columns={data: setting("Non-IID-2", data) for data in DATA},
            measures=(UNTIL_FINAL, CLUSTERS, CLUSTER_MODEL),
            headings=("method", "data"),
            says="clustering ends within 10 rounds for every beta, with at most 4 rounds between them",
            notes=("The paper's text names 0.5 and 0.7; 0.3 and 0.9 are ours.",),
        ),
        Grid(
            name="fig9",
            title="fewer weights in the stability of updates: threshold xi",
            rows={
                "all weights": xi(0.0),
                **{f"xi = {part} learning rates": xi(f"{part}*lr") for part in (0.01, 0.05, 0.1)},
            },
            columns={named(split, data): setting(split, data) for split in NON_IID for data in DATA},
            measures=(
                UNTIL_FINAL,
                CLUSTERS,
                Measure("weights kept, %", read.share_of_weights_kept, digits=1, factor=100),
            ),
            says="0.05 learning rates keep 36 to 55 % of the weights and cost no rounds",
            notes=("The paper names thresholds of 0.05 and 0.1 learning rates; 0.01 is ours.",),
        ),
        Curves(
            name="fig10",
            title="the steadiest client as reference, or a random one",
            rows={
                words: {"method": {"name": "hicfl", "patience": 5, "reference": reference}}
                for words, reference in (("least stability", "stable"), ("random", "random"))
            },
            columns={"CIFAR10, beta 0.7": setting("Non-IID-2", "CIFAR10")},
            says="the reference with the least stability gains 4.1 points over a random one",
            notes=(
                "Where the paper's threshold splits nothing both would be the same: after 5 rounds in vain a cluster "
                "is also split where its stability has stopped falling. The paper's 4.1 points are of its mean over "
                "clusters.",
            ),
        ),
        Curves(
            name="fig11",
            title="clients put into wrong clusters early find back",
            rows={
                "normal": {"method": {"name": "agreement"}},
                **{
                    f"{share:.0%} misplaced in round {round}": {
                        "method": {"name": "agreement", "misplace": share, "misplace_round": round}
                    }
                    for share in (0.1, 0.2)
                    for round in (5, 10)
                },
            },
            columns={"CIFAR10": setting("Non-IID-2", "CIFAR10")},
            says="accuracy suffers at first and then meets that of the normal run",
            notes=(
                "With this package's rule, whose correction (members who pull against their cluster look for their "
                "place again) moves them: the paper does not say by what its clients find back.",
            ),
        ),
        Curves(name="fig12", title="deeper networks, Dirichlet 0.3", **lda(0.3), says=DEEPER_SAYS, notes=DEEPER),
        Curves(name="fig13", title="deeper networks, Dirichlet 0.5", **lda(0.5), says=DEEPER_SAYS, notes=DEEPER),
        Curves(
            name="fig14",
            title="activities of 14 people (USC-HAD)",
            rows=METHODS,
            columns={"USC-HAD": {"data": "usc-had", "split": "natural", "clients": 14, "model": "har-cnn"}},
            settings={
                "test_view": None,
                "rounds": 200,
                "training": {"learning_rate": 0.001, "batch_size": 16},
                "methods": {"ifca": {"n_clusters": 4}},
            },
            scales={
                "smoke": {"data": "synthetic", "model": "har-cnn"},
                "small": {
                    "data": "motionsense",
                    "model": "har-cnn",
                    "clients": 14,
                    "training": {"learning_rate": 0.02, "batch_size": 16},
                },
            },
            says="HiCFL is the most accurate and gets there first",
            notes=("The paper does not give the network's widths.",),
        ),
        Item(name="fig15", title="gestures on a testbed of phones and laptops", why_not="its data are private"),
    ),
)
