"""FedSCCS: Talasso et al., ICC 2024. Its accuracies are in pictures only; its text has the shares of uplink."""

from fedclade.reproduce import finished as read
from fedclade.reproduce.item import Item, Paper
from fedclade.reproduce.kinds import CLUSTER_MODEL, CLUSTERS, LOCAL_MODEL, Curves, Grid, Measure, Trees
from fedclade.reproduce.numbers import stated
from fedclade.reproduce.scale import Layer, Scale

CLUSTER_COUNTS = (2, 5, 10, 15, 20)


def grouped(name: str, clusters: int = 10, selection: str = "all") -> Layer:
    return {"method": {"name": name, "n_clusters": clusters, "warmup": 10, "selection": selection}}


FEDAVG: dict[str, Layer] = {"FedAvg": {"method": {"name": "fedavg"}}}
GROUPINGS = {"FedSCCS": "fedsccs", "KCenter": "kcenter", "WC": "wc", "RC": "random"}
SELECTIONS = {"all members": "all", "one at random": "random", "power of choice": "power-of-choice"}


def by_selection(clusters: int) -> dict[str, Layer]:
    return {
        f"K = {clusters}, {words}": grouped("fedsccs", clusters, selection) for words, selection in SELECTIONS.items()
    }


# The paper does not say whether people are tested on other trials or on other rows of the same ones.
VIEWS: dict[str, Layer] = {"other trials": {}, "rows of the same trials": {"test_view": "holdout"}}

SCALES = {
    "smoke": Scale(
        (0,),
        fits=(),
        instead={"data": "synthetic:rows", "clients": 12},
        settings={
            "rows": 20,
            "rounds": 3,
            "methods": {name: {"warmup": 1} for name in GROUPINGS.values()},
        },
    ),
    "small": Scale(
        (0,),
        settings={
            "rows": 500,
            "rounds": 40,
            "evaluate_every": 10,
            "methods": {name: {"warmup": 4} for name in GROUPINGS.values()},
        },
    ),
    "full": Scale((0, 1, 2, 3, 4)),
}

PAPER = Paper(
    "fedsccs",
    "FedSCCS",
    "Talasso et al., FedSCCS, ICC 2024.",
    settings={
        "data": "motionsense:rows",
        "split": "natural",
        "model": "mlp",
        "rounds": 100,
        "training": {"local_epochs": 1, "batch_size": 32, "learning_rate": 0.05, "momentum": 0.0},
    },
    scales=SCALES,
    notes=(
        "The paper gives neither rate nor batch size (here 0.05 and 32), and its 100 rounds follow from its shares of "
        "uplink. It seems to evaluate the cluster models. It does not say which rows people are tested on: both "
        "readings are shown, trials that they did not train on and rows of the same trials.",
    ),
    items=(
        Item(name="fig1", title="an overview", why_not="a diagram"),
        Trees(
            name="fig2",
            title="the tree of clients",
            rows={"FedSCCS": grouped("fedsccs")},
            says="an illustration: cut high for general models, low for special ones",
        ),
        Curves(
            name="fig3",
            title="accuracy by the number of clusters, FedSCCS and random clusters",
            rows={
                **FEDAVG,
                **{
                    f"{words}, K = {k}": grouped(GROUPINGS[words], k)
                    for words in ("FedSCCS", "RC")
                    for k in CLUSTER_COUNTS
                },
            },
            columns=VIEWS,
            headings=("line", "tested on"),
            says="FedSCCS is above random clusters for every number, most with 10",
        ),
        Curves(
            name="fig4",
            title="sizes of clusters, FedSCCS and random clusters",
            rows={words: grouped(GROUPINGS[words]) for words in ("FedSCCS", "RC")},
            columns=VIEWS,
            headings=("line", "tested on"),
            read=read.sizes_of_clusters,
            x="cluster",
            y="clients",
            says="FedSCCS puts more clients together than chance does",
        ),
        Grid(
            name="fig5",
            title="ways to group clients, K = 10",
            rows={**FEDAVG, **{words: grouped(name) for words, name in GROUPINGS.items()}},
            columns=VIEWS,
            headings=("method", "tested on"),
            measures=(CLUSTER_MODEL, LOCAL_MODEL, CLUSTERS),
            says="FedSCCS is best, then KCenter and WC, then RC and FedAvg",
        ),
        Grid(
            name="fig6",
            title="training some members of each cluster only",
            rows={
                **FEDAVG,
                **{
                    f"{words}, {how}": grouped(name, 10, SELECTIONS[how])
                    for how in ("one at random", "power of choice")
                    for words, name in GROUPINGS.items()
                },
            },
            columns=VIEWS,
            headings=("method", "tested on"),
            measures=(CLUSTER_MODEL, LOCAL_MODEL),
            says="FedSCCS is best with both; one member at random comes close to half of them",
        ),
        Curves(
            name="fig7",
            title="how often clients are chosen",
            rows={how: grouped("fedsccs", 10, SELECTIONS[how]) for how in ("one at random", "power of choice")},
            columns=VIEWS,
            headings=("line", "tested on"),
            read=read.times_selected,
            x="client",
            y="times chosen",
            says="most clients are chosen less often at random than by power of choice",
        ),
        Grid(
            name="fig8",
            title="uplink by number of clusters and selection, as a share of FedAvg's",
            but="the paper's text has two numbers",
            rows={label: layer for k in CLUSTER_COUNTS for label, layer in by_selection(k).items()},
            columns=VIEWS,
            headings=("method", "tested on"),
            measures=(
                Measure("models sent, %", read.uploads, digits=1, factor=100, paper=stated("fedsccs", "fig8")),
                Measure("all bytes sent, %", read.uplink, digits=1, factor=100),
                CLUSTER_MODEL,
                LOCAL_MODEL,
            ),
            notes=(
                "The paper counts models. Power of choice sends half of each cluster, so its share follows from the "
                "sizes of the clusters: 62.5 % is 14 clients a round.",
            ),
        ),
    ),
)
