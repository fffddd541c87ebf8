"""Claims of the papers by our tables at the papers' own settings: read from the CSV files in docs/results.

`make reproductions` makes those; `studies/results.py` puts what is said here into docs/results.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from claims import by_seeds

from fedclade.reproduce.catalogue import items
from fedclade.reproduce.item import Experiment, Paper
from fedclade.reproduce.numbers import Numbers, stated
from fedclade.reproduce.papers import adacfl, fedclust, hicfl
from fedclade.tables import to_markdown

CLUSTER, LOCAL = "cluster model, %", "locally trained model, %"
OVER_CLUSTERS = "cluster model, mean over clusters, %"
KINDS = {
    CLUSTER: "cluster models",
    LOCAL: "locally trained models",
    OVER_CLUSTERS: "cluster models, mean over clusters",
}

BESIDES = """The same questions where the papers have no number, so that no answer is about what a paper says (FedSCCS's is of a random
fifth of all rows, by its authors' files):

"""
AT_HAND = {"mnist", "fashion-mnist", "cifar10", "motionsense", "geotec"}  # the data sets that our tables are made with


@dataclass(frozen=True)
class Pair:
    """One method above another, each by a kind of accuracy."""

    mine: str
    other: str
    by: str
    others_by: str = ""  # where the paper's numbers are of unlike kinds

    @property
    def turned(self) -> "Pair":
        """The other above this one."""
        return Pair(self.other, self.mine, self.others_by or self.by, self.by if self.others_by else "")

    @property
    def kind(self) -> str:
        return KINDS[self.by] + (f" against {KINDS[self.others_by]}" if self.others_by else "")


@dataclass(frozen=True)
class Full:
    """A table of a paper at full scale: where our runs are, what it says, and what its text makes of it."""

    title: str
    item: str
    paper: Numbers
    pairs: tuple[Pair, ...]

    @property
    def file(self) -> str:
        return self.item.replace("/", "-")

    def rows(self, folder: Path) -> Iterator[list[str]]:
        path = folder / f"{self.file}.csv"
        if not path.is_file():
            return
        table = pd.read_csv(path)
        for column in dict.fromkeys(table["column"]):
            here = table[table["column"] == column]
            for asked in self.pairs:
                said = self.gain_of(asked, column)
                # A claim is what the paper's own numbers say: where they have the other one above, it is that.
                pair, said = (asked.turned, -said) if said is not None and said < 0 else (asked, said)
                gains = gained(here, pair)
                if len(gains):
                    words = f"{pair.mine} above {pair.other}"
                    yield [
                        f"[{self.title}]({folder.name}/{self.file}.md)",
                        column,
                        words,
                        pair.kind,
                        "" if said is None else f"{said:+.2f}",
                        f"{gains.mean():+.2f}" + (f" ± {gains.std(ddof=0):.2f}" if len(gains) > 1 else ""),
                        str(len(gains)),
                        by_seeds(gains) + but(pair, here),
                    ]

    def gain_of(self, pair: Pair, column: str) -> float | None:
        """By how much one is above the other in the paper; None where it has no number of one of them."""
        mine, other = (self.paper.get((row, column)) for row in (pair.mine, pair.other))
        return None if mine is None or other is None else mine - other


def but(pair: Pair, table: pd.DataFrame) -> str:
    """What a reader must know of two rows that are compared."""
    if pair.others_by:
        return ", if unlike models are compared"
    if pair.by == LOCAL or "clusters" not in table:
        return ""
    clusters = table.groupby("row")["clusters"].mean().round()
    whole = [row for row in (pair.mine, pair.other) if clusters[row] == 1 and row != "FedAvg"]
    if whole:
        return f", where {' and '.join(whole)} made one cluster of all"
    mine, others = clusters[pair.mine], clusters[pair.other]
    return "" if mine == others or 1 in (mine, others) else f", with {mine:.0f} clusters against {others:.0f}"


def gained(table: pd.DataFrame, pair: Pair) -> pd.Series:
    """By how much one is above the other, on every seed that both have."""
    one = table[table["row"] == pair.mine].set_index("seed")[pair.by]
    two = table[table["row"] == pair.other].set_index("seed")[pair.others_by or pair.by]
    return (one - two).dropna()


def fedclusts() -> tuple[Pair, ...]:
    """The published gain compares unlike models: it stands first, then like with like."""
    mine, found = fedclust.PAPERS_K, fedclust.AUTOMATIC
    return (
        Pair(mine, "FedAvg", LOCAL, CLUSTER),
        Pair(mine, "FedAvg", LOCAL),
        Pair(mine, "FedAvg", CLUSTER),
        Pair(found, "FedAvg", CLUSTER),
        *(Pair(mine, other, LOCAL) for other in ("LG", "IFCA", "PACFL")),
        *(Pair(mine, other, CLUSTER) for other in ("IFCA", fedclust.PACFL_4, "PACFL")),
        Pair(found, "PACFL", CLUSTER),
    )


def against(mine: tuple[str, ...], others: tuple[str, ...], by: str) -> tuple[Pair, ...]:
    return tuple(Pair(one, other, by) for one in mine for other in others)


TABLES = (
    Full(
        "FedClust, Table 1",
        "fedclust/table1",
        fedclust.papers("table1"),
        fedclusts(),
    ),
    Full(
        "HiCFL, Table 2",
        "hicfl/table2",
        stated("hicfl", "table2", hicfl.BOTH_RULES, hicfl.BOTH_READINGS),
        against((hicfl.PAPERS_RULE, hicfl.OUR_RULE), ("FedAvg", "MTCFL", "IFCA"), OVER_CLUSTERS),
    ),
    Full(
        "AdaCFL, Table 2",
        "adacfl/table2",
        stated("adacfl", "table2.accuracy", adacfl.BESIDE_ADACFL),
        against(tuple(adacfl.ALL_READINGS), ("FedAvg", "FMTL", "IFCA"), CLUSTER),
    ),
    Full(
        "FedSCCS, Figure 5",
        "fedsccs/fig5",
        stated("fedsccs", "fig5"),
        against(("FedSCCS",), ("RC", "FedAvg", "WC", "KCenter"), CLUSTER),
    ),
    Full(
        "FedSCCS, Figure 8",
        "fedsccs/fig8",
        stated("fedsccs", "fig8"),
        (),  # shares of uplink: a sentence of their own
    ),
)


def shares_of_uplink(folder: Path) -> str:
    """What FedSCCS's Figure 8 says of power of choice, whose share follows from who is with whom; nothing if not made."""
    path, row = folder / "fedsccs-fig8.csv", "K = 10, power of choice"
    if not path.is_file():
        return ""
    table = pd.read_csv(path)
    shares = table[table["row"] == row].groupby("column")["models sent, %"].agg(["mean", "count"])
    said = ", ".join(
        f"{share['mean']:.1f} % on {column} (of {share['count']:.0f} seed{'s' if share['count'] > 1 else ''})"
        for column, share in shares.iterrows()
    )
    return (
        f"FedSCCS with power of choice and K = 10 sends 62.5 % of FedAvg's models in the paper, here {said} ([Figure "
        f"8]({folder.name}/fedsccs-fig8.md)); with one member at random it is 47.5 % whatever the clusters are."
    )


def rounds_until_level(folder: Path) -> str:
    """What AdaCFL's paper claims above all: fewer rounds; nothing if not made."""
    path = folder / "adacfl-table2.csv"
    if not path.is_file():
        return ""
    means = pd.read_csv(path).groupby(["column", "row"])[adacfl.ROUNDS.name].mean()
    said = stated("adacfl", "table2.rounds", adacfl.BESIDE_ADACFL)
    each = []
    for column in (name for name in adacfl.ALL if name in means):
        here = means[column]
        rows = [f"{row} {here[row]:.0f} ({said[row, column]:.0f})" for row in adacfl.METHODS if row in here]
        each.append(f"{column}: {', '.join(rows)}")
    return (
        "AdaCFL's paper claims accuracy like IFCA's in fewer rounds. Rounds until the mean accuracy of cluster models is within a "
        f"point of its end ([AdaCFL, Table 2]({folder.name}/adacfl-table2.md); in brackets the paper's, until its final accuracy): "
        f"{'; '.join(each)}."
    )


def rounds_to_target(folder: Path) -> str:
    """What FedClust's Table 4 says on Fashion-MNIST; nothing if not made."""
    path = folder / "fedclust-table4.csv"
    if not path.is_file():
        return ""
    table = pd.read_csv(path)
    rounds = table[table["column"] == "FMNIST"].groupby("row")[
        ["rounds, locally trained models", "rounds, cluster models"]
    ]
    own, served = (rounds.mean()[name].dropna().map("{:.0f}".format) for name in rounds.mean())
    said = fedclust.papers("table4")
    names = [row for row in fedclust.METHODS if row in own.index]
    each = "; ".join(
        f"{row} {own[row]} and {served.get(row, 'never')} ({said[row, 'FMNIST']:.0f})"
        for row in names
        if (row, "FMNIST") in said
    )
    alike = (
        " By locally trained models every method gets there in the same round, when three quarters of the clients have been "
        "drawn; the paper's 13 to 14 of IFCA, PACFL and LG are that number. What differs is when cluster models do."
    )
    return (
        f"Rounds to 75 % on Fashion-MNIST ([FedClust, Table 4]({folder.name}/fedclust-table4.md)), by locally trained models "
        f"of all clients and by cluster models (the paper's in brackets): {each}.{alike if own.nunique() == 1 else ''}"
    )


def not_made(folder: Path) -> str:
    """The tables and figures of the papers that compare something, and have no page at full scale; and why not."""
    made = {name for name in items() if (folder / f"{name.replace('/', '-')}.csv").is_file()}
    rows = [["table or figure", "what the paper says", "why it is open"]]
    for name, (paper, item) in items().items():
        if isinstance(item, Experiment) and name not in made:
            wanted = data_of(paper, item)
            missing = ", ".join(sorted(wanted - AT_HAND))
            why = f"{missing} not at hand" if missing else "not run"
            why += ", the rest not run" if missing and wanted & AT_HAND else ""
            rows.append([f"`{name}`", item.says or item.title, why])
    return to_markdown(rows)


def data_of(paper: Paper, item: Experiment) -> set[str]:
    """The data sets that it asks for at full scale, by the names of their sources."""
    cells, _ = item.planned(paper.settings, paper.scales["full"], "full")
    return {str(cell.settings["data"]).partition(":")[0] for cell in cells}


def section(folder: Path) -> str:
    """Of docs/results.md; nothing where no table has been made yet."""
    rows = [row for table in TABLES for row in table.rows(folder)]
    if not rows:
        return ""
    header = ["table", "data", "claim", "measured by", "paper", "here", "seeds", "verdict"]
    claimed = to_markdown([header, *(row for row in rows if row[4])])
    asked = [[*row[:4], *row[5:]] for row in rows if not row[4]]
    besides = to_markdown([["table", "data", "question", "measured by", "here", "seeds", "answer"], *asked])
    return f"""## The papers' claims at the papers' own settings

Clients, rounds, rates, batches, networks and ways to split data are the papers' as far as they say (`make
reproductions`, `fedclade reproduce ITEM --scale full`); each page names what its paper leaves open. What of a table is
not there has not been run. The paper's numbers of FedSCCS are those of its authors' logs, one run each. Gains are in points, the mean over seeds. Which accuracy counts decides some of these claims, so
each line says it. A claim is what the paper's numbers say, whichever of two methods they have above.

{claimed}

{rounds_until_level(folder)}

{rounds_to_target(folder)}

{shares_of_uplink(folder)}

{f"{BESIDES}{besides}" if asked else ""}

What else the papers compare has not been run at full scale, and is open there:

{not_made(folder)}
"""
