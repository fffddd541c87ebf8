"""Images in folders, a class a folder, with a network of one's own."""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

import fedclade


class Net(nn.Module):
    """A small convolutional network."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Linear(8 * 16, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.look(images))


def write_pictures(folder: Path, n_clients: int = 4) -> None:
    """Bars that stand or lie; half of the clients call them by each other's name."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(n_clients):
        names = ("standing", "lying") if number % 2 else ("lying", "standing")
        for kind, name in enumerate(names):
            place = folder / f"client-{number}" / name
            place.mkdir(parents=True, exist_ok=True)
            for count in range(30):
                picture = random.integers(0, 60, (16, 16), dtype=np.uint8)
                where = random.integers(2, 13)
                picture[(slice(None), slice(where, where + 2)) if kind else slice(where, where + 2)] = 255
                Image.fromarray(picture).save(place / f"{count}.png")


def main(out: Path) -> fedclade.Result:
    write_pictures(out / "pictures")
    result = fedclade.run(
        f"folder:{out / 'pictures'}",
        model=Net,
        method={"name": "ifca", "n_clusters": 2},
        rounds=8,
        training={"learning_rate": 0.1, "local_epochs": 4},
        out=out / "run",
    )
    print(result, result.clusters)
    return result


if __name__ == "__main__":
    main(Path("example-pictures"))
