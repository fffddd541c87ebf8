"""Claims of the papers by our tables at the papers' own settings: read from the CSV files in docs/results.

`make reproductions` makes those; `studies/results.py` puts what is said here into docs/results.md.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
from claims import CLOSE, FAILS, HOLDS, LESS, MANY, MUCH, ONE_SEED, OPEN, alike_by_seeds, by_seeds, judged, of_what_size

from fedclade.methods.cfl import CFL
from fedclade.reproduce.catalogue import items
from fedclade.reproduce.item import Experiment, Paper
from fedclade.reproduce.kinds import UNTIL_FINAL
from fedclade.reproduce.layers import AGAIN
from fedclade.reproduce.numbers import Numbers, stated
from fedclade.reproduce.papers import adacfl, fedclust, hicfl
from fedclade.tables import to_markdown

CLUSTER, LOCAL = "cluster model, %", "locally trained model, %"
OVER_CLUSTERS = "cluster model, mean over clusters, %"
SERVED_BY, TRAINED_BY = "rounds, cluster models", "rounds, locally trained models"
FINAL_BY, LEVEL_BY = UNTIL_FINAL.name, adacfl.ROUNDS.name
KINDS = {
    CLUSTER: "cluster models",
    LOCAL: "locally trained models",
    OVER_CLUSTERS: "cluster models, mean over clusters",
    SERVED_BY: "rounds, cluster models",
    TRAINED_BY: "rounds, locally trained models",
    FINAL_BY: "rounds until clusters are final",
    LEVEL_BY: "rounds until within a point of the end, cluster models",
}
UNGROUPED = {"Local", "LG", "PerFedAvg", "FedProx", "FedNova"}  # they make no clusters
FEWER = {SERVED_BY, TRAINED_BY, FINAL_BY, LEVEL_BY}  # the fewer the better

BESIDES = """The same questions where the papers have no number, so that no answer is about what a paper says (FedSCCS's is of a random
fifth of all rows, by its authors' files):

"""
SELECTIONS = ("one at random", "power of choice")
PARTLY = {"fedsccs/fig6": "FedSCCS's rows are above, the others", "fedclust/fig4": "two of its points are above;"}
AT_HAND = {"mnist", "fashion-mnist", "cifar10", "motionsense", "geotec"}  # the data sets that our tables are made with


# Of this package's rules the papers claim nothing.
HICFLS_OWN = {"HiCFL": (hicfl.PAPERS_RULE,)}
FEDCLUSTS_OWN = {"FedClust": (fedclust.PAPERS_K,), "PACFL": (fedclust.PACFL_THEIRS,)}


@dataclass(frozen=True)
class Pair:
    """One method above another, each by a kind of accuracy; by rounds, one before another."""

    mine: str
    other: str
    by: str
    others_by: str = ""  # where the paper's numbers are of unlike kinds
    says: str = ""  # what the paper says of the two, in place of a difference of its numbers
    alike: bool = False  # it says that the two are close

    @property
    def turned(self) -> "Pair":
        """The other above this one."""
        return replace(
            self,
            mine=self.other,
            other=self.mine,
            by=self.others_by or self.by,
            others_by=self.by if self.others_by else "",
        )

    @property
    def words(self) -> str:
        if self.alike:
            return f"{self.mine} within {CLOSE:.0f} points of {self.other}"
        return f"{self.mine} {'before' if self.by in FEWER else 'above'} {self.other}"

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
    beside: str = ""  # another item, whose rows are looked at too
    named: Mapping[str, str] = field(default_factory=dict)  # rows that have another name in that table of the paper
    headlines: tuple[Pair, ...] = ()  # the pairs that stand in the table of all papers; all of them where none is named

    @property
    def file(self) -> str:
        return self.item.replace("/", "-")

    def table(self, folder: Path) -> pd.DataFrame | None:
        """Its runs; None where there are none yet."""
        paths = [folder / f"{item.replace('/', '-')}.csv" for item in (self.item, self.beside) if item]
        if not all(path.is_file() for path in paths):
            return None
        table = pd.concat([pd.read_csv(path) for path in paths])
        return table.assign(row=table["row"].replace(dict(self.named)))

    def lines(self, folder: Path) -> Iterator["Line"]:
        """What our runs say of every pair, on every data set on which both have been run."""
        table = self.table(folder)
        if table is None:
            return
        for column in dict.fromkeys(table["column"]):
            here = table[table["column"] == column]
            for asked in self.pairs:
                said = self.gain_of(asked, column)
                # A claim is what the paper's own numbers say: where they have the other one above, it is that.
                turn = said is not None and said < 0 and not asked.says
                pair, said = (asked.turned, -said) if turn else (asked, said)
                gains = gained(here, pair)
                if len(gains):
                    page = f"[{self.title}]({folder.name}/{self.file}.md)"
                    yield Line(page, column, pair, said, gains, verdict(pair, said, gains, here))

    def is_headline(self, pair: Pair) -> bool:
        """Also where the paper's own numbers turn it round."""
        return not self.headlines or pair in self.headlines or pair.turned in self.headlines

    def gain_of(self, pair: Pair, column: str) -> float | None:
        """By how much one is above the other in the paper; None where it has no number of one of them."""
        mine, other = (self.paper.get((row, column)) for row in (pair.mine, pair.other))
        if mine is None or other is None:
            return None
        return other - mine if pair.by in FEWER else mine - other


@dataclass(frozen=True)
class Line:
    """One method above another on one data set: what the paper says, what our seeds say, and the verdict."""

    page: str
    column: str
    pair: Pair
    said: float | None
    gains: pd.Series
    verdict: str

    @property
    def words(self) -> list[str]:
        said = "" if self.said is None else self.pair.says or written(self.said, self.pair)
        return [
            self.page,
            self.column,
            self.pair.words,
            self.pair.kind,
            said,
            self.gain,
            str(self.seeds),
            self.verdict,
        ]

    @property
    def gain(self) -> str:
        values = self.gains.to_numpy(float)
        if np.isinf(values).any():
            late = {self.pair.mine: (values == -math.inf).sum(), self.pair.other: (values == math.inf).sum()}
            return " and ".join(f"{row} never{on_seeds(some, len(values))}" for row, some in late.items() if some)
        digits = 0 if self.pair.by in FEWER else 2
        more = f" ± {values.std():.{digits}f}" if self.seeds > 1 else ""
        return written(values.mean(), self.pair) + more

    @property
    def seeds(self) -> int:
        return len(self.gains)

    @property
    def short(self) -> str:
        """With the paper's own number in brackets, and what else must be known of it in marks."""
        said = "" if self.said is None or self.pair.says else f" ({written(self.said, self.pair)})"
        marks = "*" * (self.seeds == 1) + "†" * (WHOLE in self.verdict or UNSPLIT in self.verdict)
        marks += "‡" * (LESS in self.verdict)
        return f"{self.column} {self.gain}{marks}{said}"


def in_short(folder: Path) -> list[list[str]]:
    """One row for each of the papers' main claims and kind of accuracy: on which data it holds, is open, or does not hold."""
    rows: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for line in (line for full in TABLES for line in full.lines(folder) if full.is_headline(line.pair)):
        if line.said is None:
            continue
        row = rows.setdefault((line.page, line.pair.words, line.pair.kind), {})
        row.setdefault(answer_in(line.verdict), []).append(line.short)
    return [[*key, *("; ".join(row.get(answer, [])) for answer in (HOLDS, OPEN, FAILS))] for key, row in rows.items()]


def answer_in(verdict: str) -> str:
    """The one of three answers that a verdict begins with; equal results leave a claim open."""
    return next((answer for answer in (HOLDS, FAILS) if verdict.startswith(answer)), OPEN)


def written(gain: float, pair: Pair) -> str:
    return f"{gain:+.0f} rounds" if pair.by in FEWER else f"{gain:+.2f}"


UNSPLIT, WHOLE = "nothing was split", "one cluster of all"


def verdict(pair: Pair, said: float | None, gains: pd.Series, table: pd.DataFrame) -> str:
    """Whether it holds, by how much beside the paper's, and what a reader must know of the two rows."""
    if pair.alike:
        return alike_by_seeds(gains) + but(pair, table)
    if "FedAvg" in (pair.mine, pair.other) and whole_of(pair, table) and not gains.any():
        return f"{FAILS}{ONE_SEED if len(gains) == 1 else ''}: {UNSPLIT}, which is FedAvg"
    much = MANY if pair.by in FEWER else MUCH
    size = "" if said is None or pair.says else of_what_size(gains, said, much)
    return by_seeds(gains, much) + size + but(pair, table)


def whole_of(pair: Pair, table: pd.DataFrame) -> list[str]:
    """Which of the two made one cluster of all, in words, and on how many seeds if not on all."""
    if "clusters" not in table:
        return []
    told = []
    for row in (pair.mine, pair.other):
        whole = table.loc[table["row"] == row, "clusters"] == 1
        if whole.any() and row not in {"FedAvg", *UNGROUPED}:
            told.append(f"{row} made {WHOLE}{on_seeds(whole.sum(), len(whole))}")
    return told


def on_seeds(some: int, of: int) -> str:
    return f" on {some} of {of} seeds" if some < of else ""


def but(pair: Pair, table: pd.DataFrame) -> str:
    """What a reader must know of two rows that are compared."""
    if pair.others_by:
        return ", if unlike models are compared"
    if pair.by == FINAL_BY and "MTCFL" in (pair.mine, pair.other):
        return f", where MTCFL may not split before round {CFL().min_round + 1}"
    if pair.by == LOCAL or "clusters" not in table:
        return ""
    clusters = table.groupby("row")["clusters"].mean().round()
    if {pair.mine, pair.other} & UNGROUPED or clusters[[pair.mine, pair.other]].isna().any():
        return ""
    if whole := whole_of(pair, table):
        return f", where {' and '.join(whole)}"
    mine, others = clusters[pair.mine], clusters[pair.other]
    return "" if mine == others or 1 in (mine, others) else f", with {mine:.0f} clusters against {others:.0f}"


def gained(table: pd.DataFrame, pair: Pair) -> pd.Series:
    """By how much one is above the other, on every seed that both have.

    Of rounds, who never gets there is endlessly late; where neither does, nobody is before the other.
    """
    one = table[table["row"] == pair.mine].set_index("seed")[pair.by]
    two = table[table["row"] == pair.other].set_index("seed")[pair.others_by or pair.by]
    if pair.by in FEWER:
        one, two = (rounds.fillna(math.inf) for rounds in one.align(two, join="inner"))
        return (two - one).fillna(0)
    return (one - two).dropna()


def fedclusts() -> tuple[Pair, ...]:
    """The published gain compares unlike models: it stands first, then like with like."""
    mine, found, one_model = fedclust.PAPERS_K, fedclust.AUTOMATIC, ("FedAvg", "FedProx", "FedNova")
    theirs, ours, four = fedclust.PACFLS
    return (
        Pair(mine, "FedAvg", LOCAL, CLUSTER),
        Pair(mine, "FedAvg", LOCAL),
        Pair(mine, "FedAvg", CLUSTER),
        Pair(found, "FedAvg", CLUSTER),
        *(Pair(mine, other, LOCAL) for other in ("Local", "LG", "PerFedAvg", "IFCA", theirs, ours)),
        *(Pair(mine, other, CLUSTER) for other in ("Local", "LG", "PerFedAvg", "IFCA", theirs, four, ours)),
        Pair(found, theirs, CLUSTER),
        Pair(found, ours, CLUSTER),
        *(Pair(mine, other, LOCAL, CLUSTER) for other in ("FedProx", "FedNova", "CFL")),
        *(Pair(mine, other, by) for other in ("FedProx", "FedNova", "CFL") for by in (LOCAL, CLUSTER)),
        *(Pair("Local", other, LOCAL, CLUSTER) for other in one_model),
        *(Pair("Local", other, LOCAL) for other in one_model),
        *(Pair(mine, found, by, says="best number (Figure 4)") for by in (LOCAL, CLUSTER)),
    )


def fedclusts_headlines() -> tuple[Pair, ...]:
    mine, theirs = fedclust.PAPERS_K, fedclust.PACFL_THEIRS
    return (
        Pair(mine, "FedAvg", LOCAL, CLUSTER),
        *(Pair(mine, other, by) for other in ("FedAvg", "IFCA", theirs) for by in (LOCAL, CLUSTER)),
    )


def fedclusts_rounds() -> tuple[Pair, ...]:
    """FedClust first of all."""
    mine, found, pacfl = fedclust.PAPERS_K, fedclust.AUTOMATIC, (fedclust.PACFL_THEIRS, fedclust.PACFL_OURS)
    return (
        Pair(mine, "FedAvg", TRAINED_BY, SERVED_BY),
        *against((mine,), ("FedAvg", "LG", "IFCA", *pacfl), TRAINED_BY),
        *against((mine,), ("FedAvg", "LG", "IFCA", *pacfl), SERVED_BY),
        *against((found,), pacfl, SERVED_BY),
    )


def fedsccs_groupings() -> tuple[Pair, ...]:
    """FedSCCS above all others; and every way to group clients above chance, and above one model of all."""
    return (
        *against(("FedSCCS",), ("RC", "FedAvg", "WC", "KCenter"), CLUSTER),
        *against(("KCenter", "WC"), ("RC", "FedAvg"), CLUSTER),
        Pair("RC", "FedAvg", CLUSTER),
    )


def against(mine: tuple[str, ...], others: tuple[str, ...], by: str) -> tuple[Pair, ...]:
    return tuple(Pair(one, other, by) for one in mine for other in others)


RIVALS = ("FedAvg", "MTCFL", "IFCA")  # HiCFL's

TABLES = (
    Full(
        "FedClust, Table 1",
        "fedclust/table1",
        stated("fedclust", "table1", FEDCLUSTS_OWN),
        fedclusts(),
        headlines=fedclusts_headlines(),
    ),
    Full(
        "FedClust, Table 4",
        "fedclust/table4",
        stated("fedclust", "table4", FEDCLUSTS_OWN),
        fedclusts_rounds(),
        headlines=(
            Pair(fedclust.PAPERS_K, "FedAvg", TRAINED_BY, SERVED_BY),
            *(Pair(fedclust.PAPERS_K, "FedAvg", by) for by in (TRAINED_BY, SERVED_BY)),
        ),
    ),
    Full(
        "HiCFL, Table 2",
        "hicfl/table2",
        stated("hicfl", "table2", HICFLS_OWN, hicfl.BOTH_READINGS),
        (
            *against((hicfl.PAPERS_RULE, hicfl.OUR_RULE), RIVALS, OVER_CLUSTERS),
            *against((hicfl.PAPERS_RULE,), RIVALS, CLUSTER),
            Pair(hicfl.PAPERS_RULE, "FedAvg", LOCAL),
        ),
        headlines=(*against((hicfl.PAPERS_RULE,), RIVALS, OVER_CLUSTERS), Pair(hicfl.PAPERS_RULE, "FedAvg", LOCAL)),
    ),
    Full(
        "HiCFL, Table 3",
        "hicfl/table3",
        stated("hicfl", "table3", HICFLS_OWN, hicfl.BOTH_READINGS),
        against((hicfl.PAPERS_RULE, hicfl.OUR_RULE), ("MTCFL",), FINAL_BY),
        headlines=(Pair(hicfl.PAPERS_RULE, "MTCFL", FINAL_BY),),
    ),
    Full(
        "AdaCFL, Table 2",
        "adacfl/table2",
        stated("adacfl", "table2.accuracy", adacfl.BESIDE_ADACFL),
        against(tuple(adacfl.ALL_READINGS), ("FedAvg", "FMTL", "IFCA"), CLUSTER),
    ),
    Full(
        "AdaCFL, Table 2",
        "adacfl/table2",
        stated("adacfl", "table2.rounds", adacfl.BESIDE_ADACFL),
        against(tuple(adacfl.ALL_READINGS), ("FedAvg", "FMTL", "IFCA"), LEVEL_BY),
    ),
    Full(
        "FedSCCS, Figure 5",
        "fedsccs/fig5",
        stated("fedsccs", "fig5"),
        fedsccs_groupings(),
        headlines=against(("FedSCCS",), ("RC", "FedAvg", "WC", "KCenter"), CLUSTER),
    ),
    Full(
        "FedSCCS, Figure 6",  # its runs are among those of Figures 8 and 5
        "fedsccs/fig8",
        stated("fedsccs", "fig6"),
        (
            *(Pair(f"FedSCCS, {how}", "FedAvg", CLUSTER) for how in SELECTIONS),
            Pair(*(f"FedSCCS, {how}" for how in SELECTIONS), CLUSTER, says="close", alike=True),
        ),
        beside="fedsccs/fig5",
        named={f"K = 10, {how}": f"FedSCCS, {how}" for how in SELECTIONS},
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
        f"{share['mean']:.1f} % on {column} (of {share['count']:.0f} seed{'s' if share['count'] > 1 else ''}): "
        f"**{judged(round(abs(share['mean'] - 62.5), 6) <= 5)}**"
        for column, share in shares.iterrows()
    )
    return (
        f"FedSCCS with power of choice and K = 10 sends 62.5 % of FedAvg's models in the paper, here (within 5 points) {said} "
        f"([Figure 8]({folder.name}/fedsccs-fig8.md)). It follows from the sizes of the clusters: 62.5 % are 14 clients a round, 58.8 % are "
        "13. With one member at random it is 47.5 % whatever the clusters are."
    )


LAYERS = ("conv1", "conv2", "fc1")
SHOWS, HIDES = 0.6, 0.4  # between them it is open whether a layer shows groups
SHOWING = (  # HiCFL's figures: what differs, and which layers show it after rounds 1 and 10, as the text has it
    (
        1,
        "labels",
        (("only the dense layer shows them", {"fc1"}), ("the second convolution does too", {"conv2", "fc1"})),
    ),
    (
        2,
        "turns of images",
        (
            ("only the second convolution shows them", {"conv2"}),
            ("both convolutions do and the dense layer does not", {"conv1", "conv2"}),
        ),
    ),
)


def groups_in_layers(folder: Path) -> str:
    """What HiCFL's Figures 1 and 2 say; nothing if not made."""
    told, better = [], True
    for number, differ, says in SHOWING:
        path = folder / f"hicfl-fig{number}.csv"
        if not path.is_file():
            return ""
        means = pd.read_csv(path).pivot(index="map", columns="measure", values="ours")
        apart = means["mean inside groups"] - means["mean between groups"]
        early, late = ({layer: apart[f"{layer}, round {n}"] for layer in LAYERS} for n in (1, 10))
        answers = [
            f"after round {n} {words}: **{shown(gaps, layers)}**"
            for (n, gaps), (words, layers) in zip(((1, early), (10, late)), says, strict=True)
        ]
        better = better and all(late[layer] > early[layer] for layer in early)
        each = ", ".join(f"{layer} {early[layer]:.2f} and {late[layer]:.2f}" for layer in early)
        told.append(
            f"where {differ} differ ([Figure {number}]({folder.name}/hicfl-fig{number}.md)) {each}; {'; '.join(answers)}"
        )
    return (
        "HiCFL's pictures of which layer shows two groups (CIFAR-10, one seed), as the mean cosine of updates inside groups less "
        f"that between them, after rounds 1 and 10 (a layer shows them from {SHOWS} on, and does not up to {HIDES}; between the two "
        f"it is open): {'; '.join(told)}. Every layer tells them apart better after round 10 than after round 1: "
        f"**{judged(better)}**."
    )


def shown(gaps: Mapping[str, float], layers: set[str]) -> str:
    """Whether these layers show the groups and the others do not, by the gap of each layer."""
    wrong = any(gap <= HIDES if layer in layers else gap >= SHOWS for layer, gap in gaps.items())
    sure = all(gap >= SHOWS if layer in layers else gap <= HIDES for layer, gap in gaps.items())
    return FAILS if wrong else HOLDS if sure else OPEN


FIXED = 30  # percent: three times chance


def changing_weights(folder: Path) -> str:
    """What HiCFL's Figure 6 says; nothing if not made."""
    path = folder / "hicfl-fig6.csv"
    if not path.is_file():
        return ""
    again = pd.read_csv(path).pivot(index="layer", columns="measure", values="ours")[AGAIN]
    each = ", ".join(f"{layer} {share:.0f} %" for layer, share in again.items())
    return (
        "HiCFL's Figure 6 (Fashion-MNIST, one seed): the weights whose updates change most from round to round are relatively fixed. Of "
        f"the tenth that change most, so many did a round before ([here]({folder.name}/hicfl-fig6.md); by chance 10 %; it holds from "
        f"{FIXED} % on): {each}: **{judged(bool((again >= FIXED).all()))}**."
    )


LAST = 5  # rounds


def level_from(values: pd.Series) -> int:
    """The round by which nine tenths of the way down are done, from the highest mean of five rounds to the last."""
    smooth = values.rolling(5).mean().dropna()
    smooth = smooth.loc[smooth.idxmax() :]
    return int(smooth.index[smooth <= smooth.iloc[-1] + 0.1 * (smooth.max() - smooth.iloc[-1])][0])


def levels(folder: Path) -> str:
    """What HiCFL's Figure 4 says; nothing if not made."""
    path = folder / "hicfl-fig4.csv"
    if not path.is_file():
        return ""
    each = []
    for panel, here in pd.read_csv(path).groupby("panel", sort=False):
        of = here.pivot(index="round", columns="line", values="loss, stability")
        loss, steady = (level_from(values) for values in (of["loss"], of.drop(columns="loss").mean(axis=1).dropna()))
        answer = OPEN if loss > of.index[-1] - LAST else judged(steady < loss)
        each.append(f"{panel} {steady} and {loss}: **{answer}**")
    return (
        "HiCFL's Figure 4 (CIFAR-10, one seed): the round by which stability, the mean over layers, and the loss have come nine tenths "
        "of their way from the highest mean of five rounds to the last (the paper: level after about 12 and 40; it holds where stability is there first, and is open where the loss still falls "
        f"in the last {LAST} rounds; [here]({folder.name}/hicfl-fig4.md)): {'; '.join(each)}."
    )


def right_sides(folder: Path) -> str:
    """What HiCFL's Table 4 says; nothing if not made."""
    path = folder / "hicfl-table4.csv"
    if not path.is_file():
        return ""
    said, each = {when: stated("hicfl", f"table4.{when}") for when in ("before", "after")}, []
    for (row, column), runs in pd.read_csv(path).groupby(["row", "column"], sort=False):
        words = []
        for when in said:
            shares = runs[f"{when}, %"].dropna()
            never = on_seeds(len(runs) - len(shares), len(runs))
            here = [f"{shares.mean():.0f}"] * len(shares.head(1)) + [f"never stable{never}"] * (len(shares) < len(runs))
            words.append(f"{', '.join(here)} ({said[when][row, column]:.0f})")
        gains = (runs["after, %"] - runs["before, %"]).dropna()
        answer = by_seeds(gains) if len(gains) else OPEN
        each.append(f"{row} {' and then '.join(words)}: **{answer}**")
    return (
        "HiCFL's Table 4: percent of clients on the right side of a split by signs, before all are stable and after (the "
        f"paper's in brackets; [here]({folder.name}/hicfl-table4.md)); it holds where there are more after than before: "
        f"{'; '.join(each)}."
    )


def rounds_until_final(folder: Path) -> str:
    """What HiCFL's Table 3 says of its own rule; nothing if not made."""
    path = folder / "hicfl-table3.csv"
    if not path.is_file():
        return ""
    table, said = pd.read_csv(path), stated("hicfl", "table3", HICFLS_OWN, hicfl.BOTH_READINGS)
    each = []
    for column, runs in table[table["row"] == hicfl.PAPERS_RULE].groupby("column", sort=False):
        rounds = ", ".join(
            "never" if pd.isna(final) else f"{final:.0f}" for final in runs.sort_values("seed")[FINAL_BY]
        )
        known = said.get((hicfl.PAPERS_RULE, column))
        each.append(f"{column} {rounds} ({'lost' if known is None else format(known, '.0f')})")
    rival = "" if (table["row"] == "MTCFL").any() else " Its claim against MTCFL is **open**: that has not been run."
    return (
        f"HiCFL, the paper's rule: rounds until its clusters are final ([Table 3]({folder.name}/hicfl-table3.md), a number a seed; the "
        f"paper's in brackets): {'; '.join(each)}.{rival}"
    )


def numbers_found(folder: Path) -> str:
    """What AdaCFL's Table 3 says; nothing if not made."""
    path = folder / "adacfl-table3.csv"
    if not path.is_file():
        return ""
    said, each = stated("adacfl", "table3", adacfl.BESIDE_ADACFL), []
    for (column, row), here in pd.read_csv(path).groupby(["column", "row"], sort=False):
        found, ari = here["clusters"].mean(), here["ARI"].mean()
        seeds = f", {len(here)} seed{'s' if len(here) > 1 else ''}"
        each.append(
            f"{column}, {row} {found:.0f}, ARI {ari:.2f} ({said[row, column]:.0f}): **{judged(ari > 0.99)}**{seeds}"
        )
    return (
        f"AdaCFL's paper finds the hidden groups on MNIST. Clusters here ([Table 3]({folder.name}/adacfl-table3.md); the paper's in "
        f"brackets; it holds where they are the groups): {'; '.join(each)}."
    )


def rounds_to_target(folder: Path) -> str:
    """What FedClust's Table 4 says on Fashion-MNIST; nothing if not made."""
    path = folder / "fedclust-table4.csv"
    if not path.is_file():
        return ""
    table = pd.read_csv(path)
    here = table[table["column"] == "FMNIST"]
    all_have = set.intersection(*(set(of_row) for _, of_row in here.groupby("row")["seed"]))
    here = here[here["seed"].isin(all_have)] if all_have else here
    means = here.groupby("row")[[TRAINED_BY, SERVED_BY]].mean()
    own, served = (means[name].dropna().map("{:.0f}".format) for name in (TRAINED_BY, SERVED_BY))
    said = fedclust.papers("table4")
    each = "; ".join(
        f"{row} {own[row]} and {served.get(row, 'never')} ({said[row, 'FMNIST']:.0f})"
        for row in fedclust.METHODS
        if row in own.index and (row, "FMNIST") in said
    )
    alike = (
        " By locally trained models every method gets there in the same round, when three quarters of the clients have been "
        "drawn; the paper's 13 to 14 of IFCA, PACFL and LG are that number. What differs is when cluster models do."
    )
    return (
        f"Rounds to 75 % on Fashion-MNIST ([FedClust, Table 4]({folder.name}/fedclust-table4.md), of "
        f"{'seed' if here['seed'].nunique() == 1 else 'seeds'} {', '.join(map(str, sorted(here['seed'].unique())))}), by "
        "locally trained models of all clients and by cluster models (the paper's in brackets): "
        f"{each}.{alike if own.nunique() == 1 else ''} "
        "The paper's 7 fits no reading of ours: by round 7, 1 - 0.9^7 = 52 % of the clients have been drawn, too few for a mean "
        "of 75 % over all locally trained models; did the training of round 0 count, in which everybody takes part, they would "
        "be there at once."
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
            why = f"{PARTLY.get(name, '')} {why}".strip()
            rows.append([f"`{name}`", item.says or item.title, why])
    return to_markdown(rows)


def data_of(paper: Paper, item: Experiment) -> set[str]:
    """The data sets that it asks for at full scale, by the names of their sources."""
    cells, _ = item.planned(paper.settings, paper.scales["full"], "full")
    return {str(cell.settings["data"]).partition(":")[0] for cell in cells}


SENTENCES = (
    rounds_until_final,
    groups_in_layers,
    levels,
    right_sides,
    changing_weights,
    numbers_found,
    rounds_to_target,
    shares_of_uplink,
)


def section(folder: Path) -> str:
    """Of docs/results.md; nothing where no table has been made yet."""
    rows = [line.words for table in TABLES for line in table.lines(folder)]
    if not rows:
        return ""
    header = ["table", "data", "claim", "measured by", "paper", "here", "seeds", "verdict"]
    told = "\n".join(f"- {words}" for sentence in SENTENCES if (words := sentence(folder)))
    claimed = to_markdown([header, *(row for row in rows if row[4])])
    asked = [[*row[:4], *row[5:]] for row in rows if not row[4]]
    besides = to_markdown([["table", "data", "question", "measured by", "here", "seeds", "answer"], *asked])
    return f"""## The papers' claims at the papers' own settings

Clients, rounds, rates, batches, networks and ways to split data are the papers' as far as they say (`make
reproductions`, `fedclade reproduce ITEM --scale full`); each page names what its paper leaves open, and which of
its rows have not been run, of which there is nothing here. The paper's numbers of FedSCCS are those of its authors' logs, one run each. Gains are in points, or in rounds
saved, the mean over seeds. Which accuracy counts decides some of these claims, so each line says it. A claim is what the paper's
numbers say, whichever of two methods they have above, or its text, whose words then stand in place of a number.

{claimed}

{told}

{f"{BESIDES}{besides}" if asked else ""}

What else the papers compare has not been run at full scale, and is open there:

{not_made(folder)}
"""
