"""Labels of any kind -> 0 .. C-1, alike for all clients."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedclade.errors import FedcladeError, listed

WHOLE = re.compile(r"[+-]?[0-9]{1,18}(\.0*)?")


@dataclass(frozen=True)
class Labels:
    """A client's labels: the different ones, and for each row which it is."""

    codes: np.ndarray  # (rows,) int64, places in `names`
    names: tuple[Any, ...]  # whole numbers, or texts
    is_raw: bool = False  # text from a file that does not tell numbers from text

    @property
    def whole(self) -> tuple[int, ...] | None:
        """The labels as whole numbers, if they are such."""
        if not self.is_raw:
            return self.names if self.names and isinstance(self.names[0], int) else None
        if not all(WHOLE.fullmatch(str(name)) for name in self.names):
            return None
        return tuple(int(str(name).partition(".")[0]) for name in self.names)


def labels_of(values: Any, where: str, most: int) -> Labels:
    """From anything that numpy takes for whole numbers or texts."""
    y = as_array(values, f"{where}: its labels")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise FedcladeError(f"{where}: its labels have shape {y.shape}: give one label for each row")
    if y.dtype.kind in "biuf":
        return labels_of_numbers(y, where, most)
    texts = y.astype(str).astype(object) if y.dtype.kind in "US" else y
    if y.dtype.kind not in "USO" or not all(isinstance(text, str) for text in texts):
        raise FedcladeError(f"{where}: its labels are of type {y.dtype}: give whole numbers or strings, none missing")
    return labels_of_texts(texts, False, where, most)


def labels_of_numbers(y: np.ndarray, where: str, most: int) -> Labels:
    if not np.isfinite(y).all():
        raise FedcladeError(f"{where}: row {int(np.argmin(np.isfinite(y)))} has no label: give it one, or leave it out")
    if (y != np.rint(y)).any() or np.abs(y).max(initial=0) > 2**53:
        raise FedcladeError(
            f"{where}: labels with fractions: give whole numbers or words, for classes are predicted, not amounts"
        )
    names, codes = np.unique(y.astype(np.int64), return_inverse=True)
    _check_number(len(names), where, most)
    return Labels(codes.astype(np.int64), tuple(names.tolist()))


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
    has_words = not any(WHOLE.fullmatch(name) for name in names)
    found = []
    for where, labels in clients.items():
        written = labels.names if labels.whole is None or set(labels.names) <= set(names) else labels.whole
        if has_words and labels.whole is not None:
            places = [label if 0 <= label < len(names) else None for label in labels.whole]
        else:
            places = [place.get(str(label)) for label in written]
        if None in places:
            strange = labels.names[places.index(None)]
            raise FedcladeError(f"{where}: label {str(strange)!r} is not among the classes {listed(names)}")
        found.append(_placed(labels, places))  # type: ignore[arg-type]
    return found, names


def _placed(labels: Labels, places: Sequence[int]) -> np.ndarray:
    return np.array(places, dtype=np.int64)[labels.codes]
