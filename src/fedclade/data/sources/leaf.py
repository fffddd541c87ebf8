"""FEMNIST of the LEAF benchmark: digits and letters, each writer a client.

LEAF's own script makes the files (`./preprocess.sh -s niid --sf 1.0 -k 0 -t sample`): folders `train` and `test` with
JSON files, each `{"users": [...], "user_data": {user: {"x": [784 grey values of 0 to 1, ...], "y": [...]}}}`.
"""

import json
import string
from pathlib import Path
from typing import IO

import numpy as np

from fedclade.data.federation import Dataset, natural_order
from fedclade.data.sources.source import LocalCopy, Source

CHARACTERS = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
Rows = tuple[str, np.ndarray, np.ndarray]  # writer, images, labels


def femnist(copy: LocalCopy, form: str) -> Dataset:
    """uint8 images of 28x28 pixels, white as paper."""
    parts: dict[str, list[Rows]] = {"train": [], "test": []}
    for name, path, stream in copy.streams():
        with copy.reading(path):
            parts[name.split("/")[0]] += _rows(copy, path, stream)
    rows = [*parts["train"], *parts["test"]]
    writers = sorted({writer for writer, _, _ in rows}, key=natural_order)
    number = {writer: place for place, writer in enumerate(writers)}
    counts = [len(y) for _, _, y in rows]
    return Dataset(
        "femnist",
        np.concatenate([x for _, x, _ in rows]),
        np.concatenate([y for _, _, y in rows]),
        sum(counts[: len(parts["train"])]),
        CHARACTERS,
        owner=np.repeat([number[writer] for writer, _, _ in rows], counts).astype(np.int64),
        owners=tuple(writers),
    )


def _rows(copy: LocalCopy, path: Path, stream: IO[bytes]) -> list[Rows]:
    try:
        people = json.load(stream)["user_data"]
        found = [(str(user), np.array(own["x"], np.float32), np.array(own["y"])) for user, own in people.items()]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise copy.damaged(path, f"it is no JSON file of LEAF ({type(error).__name__})") from error
    rows = []
    for user, x, y in found:
        if x.shape != (len(y), 784) or y.ndim != 1 or y.dtype.kind != "i":
            raise copy.damaged(path, f"the images of {user!r} have shape {x.shape}, the labels {y.shape}")
        if not ((x >= 0) & (x <= 1)).all():
            raise copy.damaged(path, f"the grey values of {user!r} are not 0 to 1")
        images = np.rint(x * 255).astype(np.uint8).reshape(-1, 1, 28, 28)
        rows.append((user, images, copy.checked_labels(path, y, len(CHARACTERS))))
    return rows


SOURCES = (
    Source(
        name="femnist",
        description="some 800,000 digits and letters of 3,550 writers, 28x28, 62 classes; a client is a writer",
        licence="BSD 2-Clause",
        page="https://github.com/TalwalkarLab/leaf/tree/master/data/femnist",
        read=femnist,
        files=("train/*.json", "test/*.json"),
        unpacks_to=("data",),
    ),
)
