"""Columns -> the features of a network: numbers scaled, gaps filled and marked, text as categories.

A client tells `statistics` of its training rows; `Preprocessing.fit` works out from all clients' statistics, without a
row, what is done with every row; `apply` does it. A run keeps its preprocessing for clients that come later.

The mean and standard deviation over all clients follow exactly from each client's count, mean and sum of squared
deviations. The median over all clients does not follow from theirs: the mean of the clients' medians, weighted by their
counts, stands for it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from fedclade.errors import FedcladeError, listed

MOST_CATEGORIES = 1000  # of one column
CONSTANT = 1e-12  # a standard deviation below this share of the mean is rounding
CHUNK = 1 << 22  # values worked on at a time
FAR, NARROW = 10, 1e-3  # standard deviations: beyond or within which a column of new rows is another unit's
LOPSIDED = 1e-3  # a column whose variance falls to less than this share without one client is that client's alone

Statistics = dict[str, np.ndarray]  # plain arrays, so that they can travel
Scaling = Literal["federated", "client", "none"]
Missing = Literal["refuse", "mean", "median"]


@dataclass(frozen=True)
class Columns:
    """A client's columns: numbers (or the channels of a sensor) in one array, NaN where one is missing, and text."""

    numbers: np.ndarray  # (rows, columns, ...)
    texts: Mapping[str, np.ndarray]  # each (rows,) of str, None where one is missing

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: np.ndarray) -> "Columns":
        return Columns(self.numbers[rows], {name: texts[rows] for name, texts in self.texts.items()})

    def chunks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Some columns of numbers at a time, as float64."""
        n_columns, width = self.numbers.shape[1], max(1, CHUNK // max(1, self.numbers[:, :1].size))
        for start in range(0, n_columns, width):
            part = slice(start, min(start + width, n_columns))
            yield part, self.numbers[:, part].astype(np.float64)


def statistics(columns: Columns, median: bool = False) -> Statistics:
    """What the others need to know of a client's training rows: no row, and not which row has what."""
    names = ("count", "missing", "mean", "deviations", "median")
    found: Statistics = {name: np.zeros(columns.numbers.shape[1]) for name in names}
    over_rows = (0, *range(2, columns.numbers.ndim))
    for part, numbers in columns.chunks():
        is_known = ~np.isnan(numbers)
        found["count"][part] = count = is_known.sum(axis=over_rows)
        found["missing"][part] = numbers[:, 0].size - count
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is reported by `apply`
            mean = numbers.sum(axis=over_rows, where=is_known) / np.maximum(count, 1)
            centred = numbers - mean.reshape(-1, *[1] * (numbers.ndim - 2))
            found["mean"][part] = mean
            found["deviations"][part] = np.square(centred, out=centred).sum(axis=over_rows, where=is_known)
        if median:
            known = [numbers[:, k][is_known[:, k]] for k in range(numbers.shape[1])]
            found["median"][part] = [np.median(values) if values.size else 0.0 for values in known]
    for name, texts in columns.texts.items():
        found[f"categories:{name}"] = np.array(sorted({text for text in texts if text is not None}), dtype=str)
        found[f"missing:{name}"] = _is_missing(texts).sum(keepdims=True)
    return found


class Encoding(BaseModel):
    """How one column becomes features."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    marked: bool = False  # a further feature is 1 where the value is missing


class Number(Encoding):
    """A column of numbers, or a channel."""

    mean: float = 0.0
    std: float = 1.0
    fill: float | None = None  # what stands for a missing value. None: none may be missing


class Category(Encoding):
    """A column of text: a feature for each category."""

    categories: tuple[str, ...]


class Preprocessing(BaseModel):
    """What is done with every client's columns. `model_dump(mode="json")` and `model_validate` keep and restore it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    numbers: tuple[Number, ...]
    texts: tuple[Category, ...] = ()
    scaling: Scaling = "none"
    missing: Missing = "refuse"

    @classmethod
    def fit(
        cls,
        names: Sequence[str],
        clients: Sequence[Statistics],
        scaling: Scaling = "federated",
        missing: Missing = "refuse",
    ) -> "Preprocessing":
        """From the statistics of all clients' training rows; `names` are those of the columns of numbers."""
        total = _pooled(clients)
        empty = [name for name, count in zip(names, total["count"], strict=True) if not count]
        if empty:
            raise FedcladeError(f"column {empty[0]!r} has no value in any training row: leave it out (data.ignore)")
        is_marked = (total["missing"] > 0) & (missing != "refuse")
        scales = _scale(total) if scaling == "federated" else (np.zeros(len(names)), np.ones(len(names)))
        fills = [None] * len(names)
        if missing != "refuse":
            fills = np.where(_is_sound(total), total[missing], 0.0).tolist()
        numbers = [
            Number(name=name, mean=mean, std=std, fill=fill, marked=marked)
            for name, mean, std, fill, marked in zip(names, *scales, fills, is_marked, strict=True)
        ]
        texts = [key.partition(":")[2] for key in clients[0] if key.startswith("categories:")]
        categories = [_category(name, clients, missing != "refuse") for name in texts]
        return cls(numbers=tuple(numbers), texts=tuple(categories), scaling=scaling, missing=missing)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns it takes."""
        return (*(number.name for number in self.numbers), *(text.name for text in self.texts))

    @property
    def marked(self) -> list[str]:
        """The columns whose gaps are marked by a feature of their own; these are the last features, in this order."""
        encodings: list[Encoding] = [*self.numbers, *self.texts]
        return [column.name for column in encodings if column.marked]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features it makes, in their order."""
        numbers = [number.name for number in self.numbers]
        categories = [f"{text.name}={category}" for text in self.texts for category in text.categories]
        return (*numbers, *categories, *(f"{name} is missing" for name in self.marked))

    def apply(self, columns: Columns, own: Statistics | None, where: Callable[[int], str]) -> np.ndarray:
        """A client's features (rows, features, ...).

        `own` are the client's own statistics, needed for scaling by client; `where` tells a row's place, for errors.
        """
        x = np.zeros((len(columns), len(self.features), *columns.numbers.shape[2:]), np.float32)
        mean, std = np.array([(number.mean, number.std) for number in self.numbers]).reshape(-1, 2).T
        if self.scaling == "client":
            assert own is not None
            mean, std = _scale(own)
        fill = np.array([np.nan if number.fill is None else number.fill for number in self.numbers])
        mark = {name: place for place, name in enumerate(self.marked, len(self.features) - len(self.marked))}
        for part, numbers in columns.chunks():
            is_missing = np.isnan(numbers)
            inner = [1] * (numbers.ndim - 2)
            with np.errstate(over="ignore", invalid="ignore"):
                numbers = np.where(is_missing, fill[part].reshape(-1, *inner), numbers)
                x[:, part] = (numbers - mean[part].reshape(-1, *inner)) / std[part].reshape(-1, *inner)
            self._check(x[:, part], is_missing, part.start, where)
            for place, number in enumerate(self.numbers[part]):
                if number.marked:
                    x[:, mark[number.name]] = is_missing[:, place]
        start = len(self.numbers)
        for text in self.texts:
            texts = columns.texts[text.name]
            is_missing = _is_missing(texts)
            if is_missing.any() and self.missing == "refuse":
                raise _no_value(text.name, where(int(np.argmax(is_missing))))
            _one_hot(x[:, start : start + len(text.categories)], texts, text.categories)
            start += len(text.categories)
            if text.marked:
                x[:, mark[text.name]] = is_missing
        return x

    def unknown(self, held: Mapping[str, Iterable[str | None]]) -> list[str]:
        """A line for each column of text that holds some which no training row has."""
        remarks = []
        for text in self.texts:
            if strange := sorted(str(value) for value in set(held[text.name]) - {None, *text.categories}):
                remarks.append(
                    f"column {text.name!r} holds {listed(strange, 3)} in no training row: taken for none of its texts"
                )
        return remarks

    def apart(self, columns: Columns) -> list[str]:
        """A line for each column of numbers whose new rows are all far from the training rows, or nearly the same."""
        if self.scaling != "federated" or not len(columns):
            return []
        remarks = []
        for part, values in columns.chunks():
            for place, number in enumerate(self.numbers[part]):
                known = (values[:, place][~np.isnan(values[:, place])] - number.mean) / number.std
                is_far = known.size > 0 and np.abs(known).min() > FAR
                if is_far or (known.size > 0 and 0 < np.ptp(known) < NARROW):
                    how = "far larger or smaller" if is_far else "far less spread"
                    remarks.append(f"column {number.name!r} is {how} than in the run's rows: is it in another unit?")
        return remarks

    def _check(self, x: np.ndarray, is_missing: np.ndarray, first: int, where: Callable[[int], str]) -> None:
        """Raise one line about the first value that is missing or infinite."""
        if np.isfinite(x).all():
            return
        row, place = (int(number) for number in np.argwhere(~np.isfinite(x))[0][:2])
        name = self.numbers[first + place].name
        if is_missing[row, place].any():
            raise _no_value(name, where(row))
        raise FedcladeError(
            f"{where(row)} has an infinite or too large value in column {name!r}: clean it or leave it out"
        )


def _pooled(clients: Sequence[Statistics]) -> dict[str, Any]:
    """The statistics of all clients' rows together."""
    stacked = {name: np.stack([client[name] for client in clients]) for name in ("count", "missing", "mean", "median")}
    counts = stacked["count"]
    count = np.maximum(counts.sum(axis=0), 1)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = (counts * stacked["mean"]).sum(axis=0) / count
        within = np.stack([client["deviations"] for client in clients]).sum(axis=0)
        between = (counts * np.square(stacked["mean"] - mean)).sum(axis=0)
    return {
        "count": counts.sum(axis=0),
        "missing": stacked["missing"].sum(axis=0),
        "mean": mean,
        "deviations": within + between,
        "median": (counts * stacked["median"]).sum(axis=0) / count,
    }


def lopsided(
    names: Sequence[str],
    clients: Mapping[str, Statistics],
    remedy: str = "Mend it, leave it out, or set data.scaling=client",
) -> list[str]:
    """A line for each column that one client alone spreads out, so that all others' values become nearly constant."""
    if len(clients) < 3:
        return []
    counts, means, within = (
        np.stack([client[name] for client in clients.values()]) for name in ("count", "mean", "deviations")
    )
    total = _pooled(list(clients.values()))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        others = total["count"] - counts  # how many values the others have; their mean and squared deviations follow
        apart = (total["count"] * total["mean"] - counts * means) / others - means
        left = total["deviations"] - within - others * counts / total["count"] * np.square(apart)
        shares = (left / others) / (total["deviations"] / total["count"])
    remarks = []
    for column, name in enumerate(names):
        client = int(np.argmin(np.where(others[:, column] > counts[:, column], shares[:, column], np.inf)))
        if shares[client, column] < LOPSIDED:
            remarks.append(
                f"{list(clients)[client]!r} makes nearly all the variance of column {name!r}, so that it is nearly "
                f"constant for the others: is it in another unit? {remedy}"
            )
    return remarks


def _scale(found: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; the latter is 1 where a column is the same in all rows.

    A column with an infinite or too large value is left as it is, so that `apply` names the row that holds it.
    """
    mean, std = found["mean"], np.sqrt(found["deviations"] / np.maximum(found["count"], 1))
    is_sound = _is_sound(found)
    return np.where(is_sound, mean, 0.0), np.where(is_sound & (std > CONSTANT * np.abs(mean)), std, 1.0)


def _is_sound(found: Mapping[str, np.ndarray]) -> np.ndarray:
    """Of each column, whether no value in it is infinite or too large."""
    return np.asarray(np.isfinite(found["mean"]) & np.isfinite(found["deviations"]))


def _category(name: str, clients: Sequence[Statistics], may_miss: bool) -> Category:
    texts = sorted({str(text) for client in clients for text in client[f"categories:{name}"]})
    if not texts:
        raise FedcladeError(f"column {name!r} has no value in any training row: leave it out (data.ignore)")
    if len(texts) > MOST_CATEGORIES:
        raise FedcladeError(
            f"column {name!r} holds {len(texts):,} different texts, too many for categories: leave it out (data.ignore)"
        )
    is_marked = may_miss and any(client[f"missing:{name}"].any() for client in clients)
    return Category(name=name, categories=tuple(texts), marked=is_marked)


def _is_missing(texts: np.ndarray) -> np.ndarray:
    return np.array([text is None for text in texts], dtype=bool)


def _one_hot(x: np.ndarray, texts: np.ndarray, categories: Sequence[str]) -> None:
    """A 1 in each row; none where the text is missing or was unknown when the preprocessing was worked out."""
    place = {text: number for number, text in enumerate(categories)}
    found = np.array([place.get(text, -1) for text in texts], dtype=np.int64)
    known = np.flatnonzero(found >= 0)
    x[known, found[known]] = 1


def _no_value(name: str, where: str) -> FedcladeError:
    return FedcladeError(
        f"{where} has no value in column {name!r}: fill it in, leave it out, or set data.missing to mean or median"
    )
