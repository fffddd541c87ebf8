"""Statistics that may leave a client, each named as what it is.

A statistic takes the client's training rows and labels, the number of classes, a random stream and its options, and
gives named arrays. The ledger records it under its name.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedclade.errors import unknown

Statistic = Callable[..., dict[str, np.ndarray]]


def class_entropy(x: np.ndarray, y: np.ndarray, n_classes: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """How many classes a client holds and the Shannon entropy of their shares in bits (AdaCFL): two numbers."""
    shares = np.bincount(y, minlength=n_classes) / len(y)
    held = shares[shares > 0]
    entropy = max(0.0, float(-(held * np.log2(held)).sum()))
    return {"n_classes": np.array([len(held)], np.float32), "entropy": np.array([entropy], np.float32)}


def rows(
    x: np.ndarray, y: np.ndarray, n_classes: int, random: np.random.Generator, n: int | None = None, labels: bool = True
) -> dict[str, np.ndarray]:
    """Raw rows and (or not) their labels: `n` of them drawn at random (FedSCCS's probe), or all (Centralized)."""
    chosen = np.arange(len(x)) if n is None else np.sort(random.permutation(len(x))[:n])
    return {"rows": x[chosen], **({"labels": y[chosen].astype(np.int16)} if labels else {})}


def subspaces(
    x: np.ndarray, y: np.ndarray, n_classes: int, random: np.random.Generator, n_vectors: int = 3
) -> dict[str, np.ndarray]:
    """The first left singular vectors of each class's rows (PACFL): (features, vectors of all classes held)."""
    flat = x.reshape(len(x), -1).astype(np.float32)
    bases = []
    for label in np.unique(y):
        vectors = np.linalg.svd(flat[y == label].T, full_matrices=False)[0]
        bases.append(vectors[:, :n_vectors])
    return {"basis": np.concatenate(bases, axis=1).astype(np.float32)}


def _generative(name: str) -> Statistic:
    """One that needs torch, which listing the methods need not wait for."""

    def statistic(*args: Any, **options: Any) -> dict[str, np.ndarray]:
        from fedclade.clients import generative

        return getattr(generative, name)(*args, **options)

    return statistic


BY_LABELS = {name: f"{name} by labels" for name in ("input", "features")}  # how rows and amounts go together


def halves(
    x: np.ndarray,
    y: np.ndarray,
    n_classes: int,
    random: np.random.Generator,
    features: np.ndarray,
    size: int,
) -> dict[str, np.ndarray]:
    """Sums over each half of the rows, class by class: how many, and sketches of rows and features (clade).

    Where labels are no classes, all rows are of one, and the labels are summed up as well; where they are amounts, so
    are their products with rows and features: clients whose rows and labels look alike may disagree on how they go
    together.
    """
    classes = y.ndim == 1 and y.dtype.kind in "iu"
    marks = np.zeros((len(x), n_classes if classes else 1), np.float32)
    marks[np.arange(len(x)), y if classes else 0] = 1
    order = random.permutation(len(x))
    parts = [np.sort(part) for part in (order[: len(x) // 2], order[len(x) // 2 :])]
    layers = {"input": sketch(x.reshape(len(x), -1), size), "features": sketch(features, size)}
    if not classes:
        layers["labels"] = sketch(y.reshape(len(y), -1), size)
    told = {name: np.stack([marks[part].T @ values[part] for part in parts]) for name, values in layers.items()}
    for name, together in BY_LABELS.items() if y.dtype.kind == "f" else ():
        products = [layers["labels"][part].T @ layers[name][part] for part in parts]  # sketches are sums: order is free
        told[together] = np.stack([sketch(both.reshape(1, -1), size) for both in products])
    return {"counts": np.stack([marks[part].sum(axis=0) for part in parts]), **told}


def moments(
    x: np.ndarray, y: np.ndarray, n_classes: int, random: np.random.Generator, features: np.ndarray, size: int
) -> dict[str, np.ndarray]:
    """Mean and standard deviation of sketched features, of all rows and then of each class (FLUX).

    Of a class with fewer than two rows they are zero, and its count tells so.
    """
    values, counts = sketch(features, size), np.bincount(y, minlength=n_classes)
    means, deviations = np.zeros((2, n_classes + 1, values.shape[1]), np.float32)
    for place, part in enumerate([values, *(values[y == label] for label in range(n_classes))]):
        if len(part) > 1:
            means[place], deviations[place] = part.mean(axis=0), part.std(axis=0)
    return {"counts": counts.astype(np.float32), "means": means, "deviations": deviations}


def sketch(values: np.ndarray, size: int) -> np.ndarray:
    """(rows, at most size): columns added up in random groups with random signs, the same ones everywhere."""
    values = values.astype(np.float32) / (255 if values.dtype == np.uint8 else 1)
    width = values.shape[1]
    if width <= size:
        return values
    fixed = np.random.Generator(np.random.PCG64([width, size]))
    groups, signs = fixed.integers(0, size, width), fixed.choice(np.array([-1, 1], np.float32), width)
    projection = np.zeros((width, size), np.float32)
    projection[np.arange(width), groups] = signs
    return np.asarray(values @ projection)


STATISTICS: dict[str, Statistic] = {
    "class-entropy": class_entropy,
    "rows": rows,
    "subspaces": subspaces,
    "gan": _generative("gan"),
    "mean-code": _generative("mean_code"),
    "halves": halves,
    "moments": moments,
}
OF_FEATURES = ("halves", "moments")  # statistics of what a network makes of the rows; its weights are an option


def describe(
    what: str, options: dict[str, Any], x: np.ndarray, y: np.ndarray, n_classes: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    if what not in STATISTICS:
        raise unknown("statistic", what, STATISTICS)
    return STATISTICS[what](x, y, n_classes, random, **options)


# --- what may come back -----------------------------------------------------------------------------------------------


def fault_of_description(
    what: str,
    options: dict[str, Any],
    values: dict[str, np.ndarray],
    input_shape: tuple[int, ...],
    n_classes: int,
    most_rows: int,
) -> str | None:
    """What is wrong with statistics that came back, if anything; None: they are what was asked for."""
    if what not in ANSWERS:
        return None  # somebody's own statistic: only the method that asked knows what is right
    shapes = {name: array.shape for name, array in values.items()}
    wanted = ANSWERS[what](options, input_shape, n_classes, values)
    if set(shapes) != set(wanted):
        return f"sent {sorted(shapes)} where {sorted(wanted)} was asked for"
    for name, (shape, least, most) in wanted.items():
        if shapes[name] != shape:
            return f"sent {name} of shape {shapes[name]}, {shape} was asked for"
        if values[name].size and not (least <= values[name].min() and values[name].max() <= most):
            return f"sent {name} outside {least:g} and {most:g}"
    return fault_of_counts(values, most_rows) if "counts" in wanted else None


def fault_of_counts(values: dict[str, np.ndarray], most_rows: int) -> str | None:
    """Rows are counted in whole numbers, there are not more than a client may have, and none has no sum."""
    counts = values["counts"].astype(np.float64)
    if (counts % 1).any():
        return "sent counts that are no whole numbers"
    if counts.sum() > most_rows:
        return f"sent counts of {counts.sum():.0f} rows: there may be {most_rows}"
    for name, sums in values.items():
        if sums.ndim == counts.ndim + 1 and sums.shape[: counts.ndim] == counts.shape and sums[counts == 0].any():
            return f"sent {name} of classes without rows"
    return None


Answered = dict[str, tuple[tuple[int, ...], float, float]]  # of every name: the shape, the least and the most
ANY = (-1e30, 1e30)


def _entropy_answer(options: Any, shape: Any, n_classes: int, values: Any) -> Answered:
    return {"n_classes": ((1,), 1, n_classes), "entropy": ((1,), 0.0, np.log2(max(n_classes, 1)) + 1e-3)}


def _rows_answer(options: Any, shape: tuple[int, ...], n_classes: int, values: Any) -> Answered:
    count = len(values.get("rows", ()))
    if options.get("n") is not None:
        count = min(count, int(options["n"]))
    rows: Answered = {"rows": ((max(count, 1), *shape), *ANY)}
    return rows | ({"labels": ((max(count, 1),), 0, n_classes - 1)} if options.get("labels", True) else {})


def _subspaces_answer(options: Any, shape: tuple[int, ...], n_classes: int, values: Any) -> Answered:
    basis = values.get("basis", np.empty((0, 0)))
    width = basis.shape[1] if basis.ndim == 2 else 0
    most = options.get("n_vectors", 3) * n_classes
    return {"basis": ((int(np.prod(shape)), min(max(width, 1), most)), -1 - 1e-3, 1 + 1e-3)}


def _gan_answer(options: Any, shape: Any, n_classes: int, values: Any) -> Answered:
    return {"weights": (np.shape(options["weights"]), *ANY)}


def _code_answer(options: Any, shape: Any, n_classes: int, values: Any) -> Answered:
    size = (int(options["n_codes"]),)
    return {"code": (size, -1e-3, 1 + 1e-3), "mean": (size, *ANY), "square": (size, *ANY)}


def _halves_answer(options: Any, shape: tuple[int, ...], n_classes: int, values: Any) -> Answered:
    classes = 1 if "labels" in values else n_classes
    counts: Answered = {"counts": ((2, classes), 0, 1e9)}
    widths = {name: np.shape(array)[-1:] for name, array in values.items() if name != "counts"}
    wanted = {"input": (min(int(np.prod(shape)), int(options["size"])),), "features": widths.get("features", (1,))}
    if "labels" in widths:
        wanted |= {name: widths[name] for name in ("labels", *BY_LABELS.values()) if name in widths}
    fits = {name: width if width and width[0] <= int(options["size"]) else (1,) for name, width in wanted.items()}
    return counts | {name: ((2, classes, *width), *ANY) for name, width in fits.items()}


def _moments_answer(options: Any, shape: Any, n_classes: int, values: Any) -> Answered:
    width = np.shape(values.get("means", ()))[-1:] or (1,)
    size = (n_classes + 1, min(max(width[0], 1), int(options["size"])))
    return {"counts": ((n_classes,), 0, 1e9), "means": (size, *ANY), "deviations": (size, 0, 1e30)}


ANSWERS: dict[str, Callable[[Any, tuple[int, ...], int, dict[str, np.ndarray]], Answered]] = {
    "class-entropy": _entropy_answer,
    "rows": _rows_answer,
    "subspaces": _subspaces_answer,
    "gan": _gan_answer,
    "mean-code": _code_answer,
    "halves": _halves_answer,
    "moments": _moments_answer,
}
