"""docs/benchmark.md: the table of every setting, the ranks over all, and the figure of critical differences."""

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedclade.benchmark import mean_ranks
from fedclade.charts import dots, scatter
from fedclade.tables import html_table, paragraph, to_html, to_markdown

if TYPE_CHECKING:
    import pandas as pd

HOUSE = "clade"
LENT = "+ pick"  # how rows end that take the house's last step: they show what that step adds, and are no methods


def document(table: "pd.DataFrame", figure: str = "") -> str:
    """The page, from nothing but the table of runs."""
    seeds = table["seed"].nunique()
    parts = [
        "# Benchmark",
        f"Made by `fedclade benchmark`: {table['method'].nunique()} rows (methods, and variants of some), "
        f"{table['setting'].nunique()} settings, "
        f"{seeds} seed{'s' if seeds > 1 else ''}. Accuracies are in percent, of the model that serves each client, "
        "means over clients and seeds; every method has its defaults, and the same rounds and training. Rows, clients "
        "and rounds of each setting are in `benchmark.toml`; they are cut so that a run takes seconds.",
        never_apart(table),
        "## Over all settings",
        overall(table),
        figure and f"![critical differences]({figure})",
        "## How the house's method does",
        "\n".join(f"- {line}" for line in verdicts(table)),
    ]
    for setting, part in table.groupby("setting", sort=False):
        parts += [f"## {setting}", by_setting(part)]
    return "\n\n".join(part for part in parts if part) + "\n"


def never_apart(table: "pd.DataFrame") -> str:
    """Methods that came out as FedAvg in every run: their rows say nothing of what they do once they split."""
    runs = table.pivot_table(index=["setting", "seed"], columns="method", values="accuracy")
    if "fedavg" not in runs:
        return ""
    same = [str(name) for name in runs if name != "fedavg" and (runs[name] == runs["fedavg"]).all()]
    words = (
        f"In every run the same as FedAvg, for nothing was split in so few rounds: {', '.join(same)}. " if same else ""
    )
    return words + "Those with a warm-up (FedSCCS, WC, k-center, random) form clusters in round 10, often the last one."


def html_document(table: "pd.DataFrame") -> str:
    """The same as a page to look at, with figures."""
    ranks, least = mean_ranks(table)
    best = float(ranks.iloc[0]) + least
    means = table.groupby("method")[["up MB", "accuracy"]].mean()
    points = {
        str(name): (float(up), 100 * float(score))
        for name, (up, score) in zip(means.index, means.to_numpy(), strict=True)
    }
    parts = [
        dots(
            {str(name): [float(rank)] for name, rank in ranks.items()},
            f"Mean ranks over settings: left of the dashed line none differs from the best (Nemenyi, {least:.1f})",
            "mean rank",
            limit=(best, "not told apart from the best up to here"),
        ),
        scatter(points, "Accuracy against bytes, means over settings and seeds", "MB sent up", "accuracy in %"),
        html_table(overall_rows(table), "over all settings"),
        *(paragraph(f"{line[0].upper()}{line[1:].rstrip('.')}.") for line in verdicts(table)),
    ]
    for setting, part in table.groupby("setting", sort=False):
        seeds = {str(name): (100 * mine["accuracy"]).tolist() for name, mine in part.groupby("method")}
        ordered = dict(sorted(seeds.items(), key=lambda item: -sum(item[1]) / len(item[1])))
        parts += [
            f"<h2>{escape(str(setting))}</h2>",
            dots(ordered, f"{setting}: a dot for each seed, a bar for their mean", "accuracy in %, mean over clients"),
            html_table(setting_rows(part), str(setting)),
        ]
    return to_html("Benchmark", *parts)


def overall(table: "pd.DataFrame") -> str:
    least = mean_ranks(table)[1]
    note = f"Mean ranks that differ by less than {least:.1f} are not told apart (Nemenyi's test at 5 %)."
    return f"{to_markdown(overall_rows(table))}\n\n{note}"


def overall_rows(table: "pd.DataFrame") -> list[list[str]]:
    ranks, _ = mean_ranks(table)
    worst, _ = mean_ranks(table, "worst tenth")
    means = table.groupby("method")[["accuracy", "worst tenth", "seconds"]].mean()
    sent = sent_share(table)
    rows = [["method", "mean rank", "rank of the worst tenth", "accuracy", "worst tenth", "bytes up / FedAvg's", "s"]]
    for method, rank in {str(name): float(value) for name, value in ranks.items()}.items():
        mean = means.loc[method]
        share = f"{sent[method]:.2f}" if method in sent else "-"
        numbers = [f"{100 * mean['accuracy']:.1f}", f"{100 * mean['worst tenth']:.1f}", share, f"{mean['seconds']:.0f}"]
        rows.append([method, f"{rank:.1f}", f"{worst[method]:.1f}", *numbers])
    return rows


def sent_share(table: "pd.DataFrame") -> dict[str, float]:
    sent = table.groupby(["setting", "method"])["up MB"].mean().unstack()
    if "fedavg" not in sent:
        return {}
    return {str(name): float(value) for name, value in sent.div(sent["fedavg"], axis=0).mean().items()}


def by_setting(part: "pd.DataFrame") -> str:
    return to_markdown(setting_rows(part))


def setting_rows(part: "pd.DataFrame") -> list[list[str]]:
    means = part.groupby("method")[["accuracy", "worst tenth", "up MB", "clusters", "ARI", "seconds"]].mean()
    spread = part.groupby("method")["accuracy"].std(ddof=0)
    rows = [["method", "accuracy", "worst tenth", "clusters", "ARI", "up MB", "s"]]
    for method in map(str, means.sort_values("accuracy", ascending=False).index):
        mean = means.loc[method]
        ari = "-" if mean["ARI"] != mean["ARI"] else f"{mean['ARI']:.2f}"
        accuracy = f"{100 * mean['accuracy']:.1f} ± {100 * spread[method]:.1f}"
        numbers = [f"{mean['clusters']:.1f}", ari, f"{mean['up MB']:.1f}", f"{mean['seconds']:.0f}"]
        rows.append([method, accuracy, f"{100 * mean['worst tenth']:.1f}", *numbers])
    return rows


def verdicts(table: "pd.DataFrame") -> list[str]:
    """Where clade stands, setting by setting; its own variants are no rivals."""
    accuracy, worst = _means(table, "accuracy"), _means(table, "worst tenth")
    settings = [setting for setting, mine in accuracy.items() if HOUSE in mine]
    if not settings:
        return [f"{HOUSE} was not run."]

    def rivals(mine: dict[str, float]) -> dict[str, float]:
        return {name: value for name, value in mine.items() if not name.startswith(HOUSE)}

    def behind(setting: str, names: Iterable[str]) -> float:
        mine = accuracy[setting]
        return 100 * (max(mine[name] for name in names) - mine[HOUSE])

    gaps = {setting: behind(setting, rivals(accuracy[setting])) for setting in settings if rivals(accuracy[setting])}

    def is_second(setting: str, names: Iterable[str]) -> bool:
        return sum(worst[setting][name] > worst[setting][HOUSE] for name in names) <= 1

    every = sum(is_second(s, rivals(worst[s])) for s in settings)
    plain = sum(is_second(s, [n for n in rivals(worst[s]) if not n.endswith(LENT)]) for s in settings)
    lines = [
        f"worst tenth of clients: best or second in {every} of {len(settings)} settings; beside methods as they are, "
        f"without the rows to which its picking is lent, in {plain}"
    ]
    if gaps:
        most = max(gaps, key=lambda setting: gaps[setting])
        leads = max(rivals(accuracy[most]), key=lambda name: accuracy[most][name])
        close = sum(gap <= 1 for gap in gaps.values())
        lines.insert(
            0,
            f"within 1 point of the best of all in {close} of {len(gaps)} settings "
            f"(most behind: {most}, {gaps[most]:.1f} points, {leads} leads)",
        )
    floored = [setting for setting in settings if {"fedavg", "local"} <= set(accuracy[setting])]
    if floored:
        below = {setting: behind(setting, ("fedavg", "local")) for setting in floored}
        most = max(below, key=lambda setting: below[setting])
        lines.append(
            f"more than half a point below the better of FedAvg and Local in "
            f"{sum(gap > 0.5 for gap in below.values())} of {len(floored)} (at worst {-below[most]:+.1f}, {most})"
        )
    return lines


def _means(table: "pd.DataFrame", column: str) -> dict[str, dict[str, float]]:
    """By setting and method."""
    found: dict[str, dict[str, float]] = {}
    for (setting, method), values in table.groupby(["setting", "method"], sort=False)[column]:
        found.setdefault(str(setting), {})[str(method)] = float(values.mean())
    return found


def draw(table: "pd.DataFrame", path: Path) -> None:
    """Mean ranks on a line; a bar joins those that are not told apart from the best."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ranks, least = mean_ranks(table)
    height = 0.22 * len(ranks) + 0.8
    figure, axes = pyplot.subplots(figsize=(7, height))
    places = range(len(ranks))
    axes.barh(places, ranks.to_numpy(), color=["#e45756" if name == HOUSE else "#4c78a8" for name in ranks.index])
    axes.axvline(ranks.iloc[0] + least, color="#8c8c8c", linestyle=":")
    axes.set_yticks(list(places), [str(name) for name in ranks.index], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(
        f"mean rank\nleft of the dotted line: not told apart from the best (critical difference {least:.1f})"
    )
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
