"""A client's own images: a folder for each class, `hospital-a/cat/1.png`, perhaps apart as `train/` and `test/`.

Nothing is resized or recoloured on the way: images are rows as they are, grey (1, H, W) or colour (3, H, W) of uint8.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.data.own.limits import Budget
from fedclade.data.sources.source import one_line
from fedclade.errors import FedcladeError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
DEPTH = 4  # folders; links may lead in circles
BITS = {"L": 1, "RGB": 3}  # modes of images, and their channels


def files_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """(images, other files) of a client's folder, wherever one may lie or may have been put by mistake."""
    images: list[Path] = []
    others: list[Path] = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if len(Path(place).relative_to(folder).parts) >= DEPTH:
            others += [Path(place, name) for name in folders]
            folders.clear()
        for name in names:
            path = Path(place, name)
            if not name.startswith("."):
                (images if path.suffix.lower() in ENDINGS and path.is_file() else others).append(path)
    return sorted(images), sorted(others)


def read_images(folder: Path, budget: Budget) -> dict[str, Any]:
    """x, y, x_test and y_test of one client's folder, labels by the names of their folders."""
    paths, _ = files_in(folder)
    places = [path.relative_to(folder).parts for path in paths]
    for path, place in zip(paths, places, strict=True):
        if not (len(place) == 2 or (len(place) == 3 and place[0] in ("train", "test"))):
            raise FedcladeError(
                f"{path}: an image lies in the folder of its class, {folder.name}/CLASS/{path.name} or "
                f"{folder.name}/train/CLASS/{path.name} (or test): move it there, or leave it out"
            )
    x = _stacked(paths, budget)
    y = np.array([place[-2] for place in places])
    is_test = np.array([len(place) == 3 and place[0] == "test" for place in places])
    return {"x": x[~is_test], "y": y[~is_test], "x_test": x[is_test], "y_test": y[is_test]}


def _stacked(paths: list[Path], budget: Budget) -> np.ndarray:
    """(images, channels, height, width)"""
    shape = _read(paths[0], None)
    budget.take(paths[0].parent, len(paths) * float(np.prod(shape)))
    rows = np.empty((len(paths), *shape), np.uint8)
    for row, path in zip(rows, paths, strict=True):
        found = _read(path, row)
        if found != shape:
            raise FedcladeError(
                f"{path}: it is {_kind(found)}, but {paths[0]} is {_kind(shape)}: bring all images to one size and mode"
            )
    return rows


def _read(path: Path, row: np.ndarray | None) -> tuple[int, int, int]:
    """(channels, height, width) of an image; its pixels are put into the row if they fit."""
    try:
        from PIL import Image
    except ImportError:
        raise FedcladeError("folders of images need Pillow: pip install 'fedclade[images]'") from None
    try:
        with Image.open(path) as image:
            shape = (BITS.get(image.mode, 0), image.height, image.width)
            if shape[0] and row is not None and row.shape == shape:
                pixels = np.asarray(image)
                row[:] = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
            mode = image.mode
    except Exception as error:  # the decoders of many formats raise many unrelated kinds
        raise FedcladeError(f"{path}: cannot be read ({one_line(error)}): write it again, or leave it out") from error
    if not shape[0]:
        raise FedcladeError(f"{path}: its pixels are of mode {mode}: save it in grey (L) or colour (RGB), 8 bits each")
    return shape


def _kind(shape: tuple[int, int, int]) -> str:
    channels, height, width = shape
    return f"{'grey' if channels == 1 else 'colour'} of {width}x{height} pixels"
