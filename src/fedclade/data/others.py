"""Data sets of other libraries, known by how they look, so that none of these libraries is needed here.

- a Hugging Face `Dataset` or `DatasetDict` (`train`, perhaps `test`), to be divided by a split, or with a column that
  names the client of a row (`data.client`);
- a `FederatedDataset` or a partitioner of flwr-datasets: each partition is a client;
- a torchvision data set with `data` and `targets`, or a pair of those for training and testing.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedclade.data.federation import Dataset
from fedclade.data.options import DataOptions
from fedclade.data.own.given import rows_as_numbers
from fedclade.errors import FedcladeError, listed


def recognised(data: Any, options: DataOptions) -> Any:
    """The same data in a form of ours, where they are of another library; else as they are."""
    if hasattr(data, "load_partition"):
        return _partitions(data, options)
    if isinstance(data, Mapping) and data and all(map(is_hugging_face, data.values())):
        if "train" in data:  # a DatasetDict
            return _divided([data[name] for name in ("train", "test") if name in data], options)
        return {str(name): _client(part, options) for name, part in data.items()}
    if is_hugging_face(data):
        return data.to_pandas() if options.client is not None else _divided([data], options)
    if _is_vision(data):
        return _vision([data])
    if isinstance(data, tuple) and len(data) == 2 and all(map(_is_vision, data)):
        return _vision(data)
    return data


def is_hugging_face(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("features", "column_names", "to_pandas", "num_rows"))


def _is_vision(value: Any) -> bool:
    return hasattr(value, "data") and hasattr(value, "targets") and hasattr(value, "__getitem__")


def _partitions(data: Any, options: DataOptions) -> dict[str, Any]:
    """Every partition as a client; a FederatedDataset has a partitioner for each of its splits."""
    partitioners = getattr(data, "partitioners", None) or {}
    owner = partitioners.get("train", next(iter(partitioners.values()), data))
    count = int(owner.num_partitions)
    width = len(str(count - 1))
    return {f"client-{number:0{width}}": _client(data.load_partition(number), options) for number in range(count)}


def _client(part: Any, options: DataOptions) -> Any:
    """A client's rows: a table where all columns are plain, else arrays."""
    label = _label(part, options)
    if len(_features(part, label, options)) > 1 or _is_plain(part, label, options):
        frame = part.to_pandas()
        names = _names(part, label)
        return frame.assign(**{label: [names[code] for code in frame[label]]}) if names else frame
    x, y, names = _arrays(part, options)
    return x, np.array(names)[y] if names else y


def _divided(parts: list[Any], options: DataOptions) -> Dataset:
    """One data set, training rows first. Its classes are those that it names, or the labels that occur."""
    found = [_arrays(part, options) for part in parts]
    names = found[0][2]
    y = np.concatenate([labels for _, labels, _ in found])
    if not names:
        kinds, y = np.unique(y, return_inverse=True)
        names = [str(kind) for kind in kinds]
    return _dataset(np.concatenate([rows for rows, _, _ in found]), y, len(found[0][0]), names)


def _arrays(part: Any, options: DataOptions) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Rows, labels and the names of classes."""
    label = _label(part, options)
    features = _features(part, label, options)
    if len(features) == 1 and not _is_plain(part, label, options):
        x = np.stack([np.asarray(value) for value in part[features[0]]])
        if getattr(part.features[features[0]], "dtype", None) == "uint8":  # some formats give wider numbers
            x = x.astype(np.uint8)
    else:
        frame = part.to_pandas()[features]
        strange = [name for name in features if frame[name].dtype.kind not in "biuf"]
        if strange:
            raise FedcladeError(
                f"column {strange[0]!r} holds no numbers: leave it out (data.ignore), or name the client of each row "
                "(data.client), by which the data are read as tables"
            )
        x = frame.to_numpy(np.float32)
    return x, np.asarray(part[label][:]), _names(part, label)


def _label(part: Any, options: DataOptions) -> str:
    names = list(part.column_names)
    if isinstance(options.label, str):
        if options.label not in names:
            raise FedcladeError(f"data.label is {options.label!r}, but the columns are {listed(names)}")
        return options.label
    return next((name for name in ("label", "labels", "y") if name in names), names[-1])


def _features(part: Any, label: str, options: DataOptions) -> list[str]:
    return [name for name in part.column_names if name not in (label, *options.ignore)]


def _is_plain(part: Any, label: str, options: DataOptions) -> bool:
    """Whether columns hold single numbers or texts, not images or lists."""
    kinds = [part.features[name] for name in _features(part, label, options)]
    return all(type(kind).__name__ in ("Value", "ClassLabel") for kind in kinds)


def _names(part: Any, label: str) -> list[str]:
    return [str(name) for name in getattr(part.features[label], "names", None) or ()]


def _vision(parts: Any) -> Dataset:
    x = np.concatenate([np.asarray(part.data) for part in parts])
    y = np.concatenate([np.asarray(part.targets) for part in parts])
    names = [str(name) for name in getattr(parts[0], "classes", None) or range(int(y.max()) + 1)]
    return _dataset(x, y, len(parts[0].data), names)


def _dataset(x: np.ndarray, y: np.ndarray, n_train: int, names: list[str]) -> Dataset:
    rows = rows_as_numbers(x, "the data", DataOptions())
    rows = rows if rows.dtype == np.uint8 else rows.astype(np.float32)
    return Dataset("own", rows, y.astype(np.int64), n_train, tuple(names))
