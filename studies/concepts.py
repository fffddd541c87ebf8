"""The pictures of docs/concepts: `python studies/concepts.py` runs some methods on bundled digits and draws them."""

import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot
from scipy.cluster.hierarchy import dendrogram

import fedclade

OUT = Path(__file__).parent.parent / "docs" / "concepts"
ALIKE: dict[str, Any] = {"data": "digits", "clients": 20, "rounds": 20, "training": {"learning_rate": 0.1}}
COLOURS = ("#00695c", "#c2410c", "#4338ca", "#a16207")


def main() -> None:
    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"font.size": 10, "svg.hashsalt": "fedclade", "axes.spines.top": False, "axes.spines.right": False}
    )
    with tempfile.TemporaryDirectory() as folder:
        why_clusters(Path(folder))
        two_accuracies(Path(folder))
        how_many(Path(folder))


def why_clusters(folder: Path) -> None:
    """One model for all, one for each client, one for each group: on clients of four groups, and on clients alike."""
    methods = {"fedavg": "one model for all", "local": "a model each", "clade": "a model for each group"}
    figure, axes = pyplot.subplots(figsize=(7, 3))
    splits = {"rotation:4": "four hidden groups\n(turned images)", "iid": "no groups\n(all alike)"}
    for place, (method, words) in enumerate(methods.items()):
        means = [[100 * served(folder, split, method, seed) for seed in range(3)] for split in splits]
        where = np.arange(len(splits)) + 0.27 * (place - 1)
        heights = [np.mean(of) for of in means]
        bars = axes.bar(where, heights, 0.25, color=COLOURS[place], label=words, yerr=[np.std(of) for of in means])
        axes.bar_label(bars, [f"{height:.1f}" for height in heights], padding=3)
    axes.set_xticks(range(len(splits)), list(splits.values()))
    axes.set(ylabel="accuracy, mean over clients, %", ylim=(60, 104))
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.17), columnspacing=1.2)
    save(figure, "why-clusters")


def served(folder: Path, split: str, method: str, seed: int) -> float:
    """By the cluster's model as it is: nobody's own training blurs the comparison."""
    return float(run(folder, split, method, seed, serving="model").accuracy["mean"])


def two_accuracies(folder: Path) -> None:
    """Of one FedAvg run: the shared model, and what clients have just before it is averaged."""
    result = run(folder, "label-skew:0.2", "fedavg", 0, evaluate_local_every=1)
    rounds = result.history.groupby("round")[["accuracy", "accuracy_local"]].mean().mul(100).dropna()
    figure, axes = pyplot.subplots(figsize=(7, 3))
    for column, words, colour in (
        ("accuracy_local", "locally trained models", COLOURS[1]),
        ("accuracy", "cluster model (here one for all)", COLOURS[0]),
    ):
        axes.plot(rounds.index, rounds[column], color=colour, linewidth=2, label=words)
    axes.legend(frameon=False, loc="lower right")
    axes.set(xlabel="round", ylabel="accuracy, mean over clients, %", ylim=(0, 105))
    axes.xaxis.get_major_locator().set_params(integer=True)
    save(figure, "two-accuracies")


def how_many(folder: Path) -> None:
    """clade's tree with its cut; and what each cut explains, beside what cuts of a cloud without groups would."""
    records = run(folder, "label-groups:4", "clade", 0).records
    merges, labels = (np.asarray(records[0, "dendrogram"][name]) for name in ("merges", "labels"))
    n = len(set(labels.tolist()))
    cut = float(merges[-n : len(merges) - n + 2, 2].mean())
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3), width_ratios=(3, 2))
    dendrogram(merges, ax=left, color_threshold=cut, above_threshold_color="#888", no_labels=True)
    left.axhline(cut, color=COLOURS[1], linestyle="--")
    left.set(xlabel="20 clients", ylabel="Ward height", title=f"the tree, cut into {n}")
    look = max(records[0, "groups"]["looks"], key=lambda look: len(look["explained"]))
    for name, words, colour in (("explained", "these clients", COLOURS[0]), ("usual", "clouds", "#888")):
        points = sorted((int(k), 100 * float(share)) for k, share in look[name].items())
        right.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=4, label=words)
    right.axvline(n, color=COLOURS[1], linestyle="--")
    right.set(xlabel="clusters", ylabel="explained by the cut, %", ylim=(0, 105), title="worth the cut?")
    right.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    save(figure, "how-many")


def run(folder: Path, split: str, method: str, seed: int, **more: Any) -> fedclade.Result:
    out = folder / f"{split.replace(':', '-')}-{method}-{seed}"
    return fedclade.run(**ALIKE, split=split, method=method, seed=seed, out=out, **more)


def save(figure: Any, name: str) -> None:
    figure.savefig(OUT / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
