"""A client's own images: a folder for each class, `hospital-a/cat/1.png`, perhaps apart as `train/` and `test/`.

Nothing is resized or recoloured on the way: images are rows as they are, grey (1, H, W) or colour (3, H, W) of uint8.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.data.sources.source import one_line
from fedclade.errors import FedcladeError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


def images_in(folder: Path) -> Iterator[Path]:
    """The images of a client's folder, at any place where one may lie or may have been put by mistake."""
    for pattern in ("*", "*/*", "*/*/*"):
        for path in folder.glob(pattern):
            is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if path.suffix.lower() in ENDINGS and not is_hidden and path.is_file():
                yield path


def read_images(folder: Path) -> dict[str, Any]:
    """x, y, x_test and y_test of one client's folder, labels by the names of their folders."""
    paths = sorted(images_in(folder))
    places = [path.relative_to(folder).parts for path in paths]
    for path, place in zip(paths, places, strict=True):
        if not (len(place) == 2 or (len(place) == 3 and place[0] in ("train", "test"))):
            raise FedcladeError(
                f"{path}: an image lies in the folder of its class, {folder.name}/CLASS/{path.name} or "
                f"{folder.name}/train/CLASS/{path.name} (or test): move it there, or leave it out"
            )
    x = _stacked(paths)
    y = np.array([place[-2] for place in places])
    is_test = np.array([len(place) == 3 and place[0] == "test" for place in places])
    return {"x": x[~is_test], "y": y[~is_test], "x_test": x[is_test], "y_test": y[is_test]}


def _stacked(paths: list[Path]) -> np.ndarray:
    """(images, channels, height, width)"""
    first = _pixels(paths[0])
    rows = np.empty((len(paths), *first.shape), np.uint8)
    for row, path in zip(rows, paths, strict=True):
        image = _pixels(path)
        if image.shape != first.shape:
            raise FedcladeError(
                f"{path}: it is {_kind(image)}, but {paths[0]} is {_kind(first)}: bring all images to one size and mode"
            )
        row[:] = image
    return rows


def _pixels(path: Path) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError:
        raise FedcladeError("folders of images need Pillow: pip install 'fedclade[images]'") from None
    try:
        with Image.open(path) as image:
            mode, pixels = image.mode, np.asarray(image)
    except Exception as error:  # the decoders of many formats raise many unrelated kinds
        raise FedcladeError(f"{path}: cannot be read ({one_line(error)}): write it again, or leave it out") from error
    if mode not in ("L", "RGB"):
        raise FedcladeError(f"{path}: its pixels are of mode {mode}: save it in grey (L) or colour (RGB), 8 bits each")
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


def _kind(image: np.ndarray) -> str:
    channels, height, width = image.shape
    return f"{'grey' if channels == 1 else 'colour'} of {width}x{height} pixels"
