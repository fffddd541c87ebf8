"""Labels of any kind -> 0 .. C-1, or amounts, alike for all clients."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedclade.data.options import DataOptions
from fedclade.errors import FedcladeError, listed

WHOLE = re.compile(r"[+-]?[0-9]{1,18}(\.0*)?")
COARSE = 1e-3  # of the range of amounts: rounding errors beyond this are worth a word


def whole_number(text: str) -> int:
    """What a text says that is written like `WHOLE`."""
    return int(text.partition(".")[0])


@dataclass(frozen=True)
class Labels:
    """A client's labels: the different ones, and for each row which it is."""

    codes: np.ndarray  # (rows,) int64, places in `names`; (rows, places) where each place of a row has one
    names: tuple[Any, ...]  # whole numbers, or texts
    is_raw: bool = False  # text from a file that does not tell numbers from text

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def whole(self) -> tuple[int, ...] | None:
        """The labels as whole numbers, if they are such."""
        if not self.is_raw:
            return self.names if self.names and isinstance(self.names[0], int) else None
        if not all(WHOLE.fullmatch(str(name)) for name in self.names):
            return None
        return tuple(whole_number(str(name)) for name in self.names)


@dataclass(frozen=True)
class Amounts:
    """A client's labels that are numbers: amounts, or a 1 for each label that a row has."""

    values: np.ndarray  # (rows, amounts) float32
    names: tuple[str, ...]  # of the amounts
    is_coarse: bool = False  # whether they differ by little more than single precision can tell

    def __len__(self) -> int:
        return len(self.values)


def labels_of(values: Any, where: str, options: DataOptions) -> Labels | Amounts:
    """From anything that numpy takes for whole numbers or texts."""
    y = as_array(values, f"{where}: its labels")
    most = options.max_classes
    if options.labels in ("numbers", "sets"):
        return amounts_of(y, (), where, options)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 and not (options.rows == "tokens" and y.ndim == 2):
        hint = " (amounts and sets of labels need another task)" if y.ndim == 2 else ""
        raise FedcladeError(f"{where}: its labels have shape {y.shape}: give one label for each row{hint}")
    if y.dtype.kind in "biuf":
        return labels_of_numbers(y, where, most)
    texts = y.astype(str).astype(object) if y.dtype.kind in "US" else y
    if y.dtype.kind not in "USO" or not all(isinstance(text, str) for text in texts):
        raise FedcladeError(f"{where}: its labels are of type {y.dtype}: give whole numbers or strings, none missing")
    return labels_of_texts(texts, False, where, most)


def labels_of_numbers(y: np.ndarray, where: str, most: int) -> Labels:
    if not np.isfinite(y).all():
        raise FedcladeError(f"{where}: row {int(np.argmin(np.isfinite(y)))} has no label: give it one, or leave it out")
    if y.dtype.kind == "u" and y.max(initial=0) >= 2**63:
        raise FedcladeError(f"{where}: the label {y.max()} is too large: write such labels as text")
    if y.dtype.kind == "f" and ((y != np.rint(y)).any() or np.abs(y).max(initial=0) > 2**53):
        raise FedcladeError(
            f"{where}: labels with fractions: give whole numbers or words, or predict amounts (task=regression)"
        )
    names, codes = np.unique(y.astype(np.int64), return_inverse=True)
    _check_number(len(names), where, most)
    return Labels(codes.reshape(y.shape).astype(np.int64), tuple(names.tolist()))


def amounts_of(y: np.ndarray, names: Sequence[str], where: str, options: DataOptions) -> Amounts:
    """Labels that are numbers, in one column or several."""
    if y.dtype.kind not in "biuf" or y.ndim not in (1, 2):
        what = "a 0 or 1 for each label" if options.labels == "sets" else "one number, or several"
        raise FedcladeError(f"{where}: its labels are {y.dtype} of shape {y.shape}: give {what} for each row")
    values = y.reshape(len(y), -1).astype(np.float64)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    is_there = np.isfinite(single).all(axis=1)
    if not is_there.all():
        raise FedcladeError(f"{where}: row {int(np.argmin(is_there))} has no label: give it one, or leave it out")
    if options.labels == "sets" and not np.isin(values, (0, 1)).all():
        raise FedcladeError(f"{where}: its labels hold {values[~np.isin(values, (0, 1))][0]:g}: give 0 or 1 for each")
    if options.labels == "sets" and values.shape[1] > options.max_classes:
        raise FedcladeError(f"{where}: {values.shape[1]:,} different labels: allow more (data.max_classes)")
    width = values.shape[1]
    named = tuple(names) or (("y",) if width == 1 else tuple(f"y{number}" for number in range(width)))
    lost = np.abs(values - single).max(axis=0, initial=0)
    return Amounts(single, named, bool((lost > COARSE * np.ptp(values, axis=0)).any()) if len(values) > 1 else False)


def labels_of_texts(texts: np.ndarray, is_raw: bool, where: str, most: int) -> Labels:
    import pandas as pd

    codes, names = pd.factorize(np.array([text or None for text in texts], dtype=object), sort=False)
    if (codes < 0).any():
        raise FedcladeError(f"{where}: row {int(np.argmax(codes < 0))} has no label: give it one, or leave it out")
    _check_number(len(names), where, most)
    return Labels(codes.astype(np.int64), tuple(map(str, names)), is_raw)


def _check_number(labels: int, where: str, most: int) -> None:
    if labels > most:
        raise FedcladeError(
            f"{where}: {labels:,} different labels: name another label (data.label) if they are no classes, "
            "or allow more (data.max_classes)"
        )


def as_array(values: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of unlike length; a tensor that wants gradients
        raise FedcladeError(f"{what} are no array ({' '.join(str(error).split())[:200]})") from error


def agreed_labels(
    clients: Mapping[str, Labels | Amounts], classes: Sequence[Any] | None, most: int
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Every client's labels as numbers, and the names of classes or amounts; `classes` are those of a run, if any."""
    amounts = {where: labels for where, labels in clients.items() if isinstance(labels, Amounts)}
    if not amounts:
        kinds: Any = clients
        return numbered(kinds, most) if classes is None else numbered_as(kinds, classes)
    names = tuple(classes or next(iter(amounts.values())).names)
    for where, labels in amounts.items():
        if labels.names != names:
            raise FedcladeError(f"{where}: its labels are {listed(labels.names)}, those of others {listed(names)}")
    return [labels.values for labels in amounts.values()], names


def numbered(clients: Mapping[str, Labels], most: int) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Every client's labels as 0 .. C-1 in the sorted order of all clients' labels, and the classes' names."""
    whole = {where: labels.whole for where, labels in clients.items()}
    if all(names is not None for names in whole.values()):
        clients = {where: replace(labels, names=labels.whole or ()) for where, labels in clients.items()}
    else:
        numbers = [where for where, labels in clients.items() if not labels.is_raw and labels.whole]
        if numbers:
            texts = next(where for where, names in whole.items() if names is None)
            raise FedcladeError(f"{texts}: its labels are strings, but those of {numbers[0]} are numbers: use one kind")
    classes = sorted({name for labels in clients.values() for name in labels.names})
    if len(classes) > most:
        raise FedcladeError(f"the clients have {len(classes):,} different labels: allow more (data.max_classes)")
    place = {name: number for number, name in enumerate(classes)}
    return [_placed(labels, [place[name] for name in labels.names]) for labels in clients.values()], tuple(
        map(str, classes)
    )


def numbered_as(clients: Mapping[str, Labels], classes: Sequence[Any]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Every client's labels as places in the given classes.

    A label is the name of a class. Where no class is named like a whole number, whole numbers are places too.
    """
    names = tuple(str(name) for name in classes)
    if len(set(names)) < len(names):
        raise FedcladeError(f"classes holds a name twice: {listed(names)}")
    place = {name: number for number, name in enumerate(names)}
    found = []
    for where, labels in clients.items():
        written = labels.names if labels.whole is None or set(labels.names) <= set(names) else labels.whole
        if taken_for_places({where: labels}, classes):
            places = [label if 0 <= label < len(names) else None for label in labels.whole or ()]
        else:
            places = [place.get(str(label)) for label in written]
        if None in places:
            strange = labels.names[places.index(None)]
            raise FedcladeError(f"{where}: label {str(strange)!r} is not among the classes {listed(names)}")
        found.append(_placed(labels, places))  # type: ignore[arg-type]
    return found, names


def taken_for_places(clients: Mapping[str, Labels | Amounts], classes: Sequence[Any]) -> bool:
    """Whether anybody's labels are whole numbers though no class is named like one."""
    if any(WHOLE.fullmatch(str(name)) for name in classes):
        return False
    return any(isinstance(labels, Labels) and bool(labels.whole) for labels in clients.values())


def _placed(labels: Labels, places: Sequence[int]) -> np.ndarray:
    return np.array(places, dtype=np.int64)[labels.codes]
