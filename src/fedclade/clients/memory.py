"""What clients remember between rounds: their own last model and whatever else a method lets them keep.

One small file a client and slot, named by the round that wrote it, so that a run that was stopped can go back to what
the clients knew at its last checkpoint: `forget_after(round)`. The files reach the disk before that checkpoint does.
"""

from pathlib import Path

import numpy as np

from fedclade.files import safe_name, write_atomically


class Memory:
    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def _files(self, client: str, slot: str) -> list[tuple[int, Path]]:
        """The slot's files, oldest first."""
        folder = self.folder / safe_name(client)
        found = folder.glob(f"{slot}.*.npy") if folder.is_dir() else ()
        return sorted((int(path.name.split(".")[-2]), path) for path in found if not path.name.startswith("."))

    def read(self, client: str, slot: str) -> np.ndarray | None:
        files = self._files(client, slot)
        return np.load(files[-1][1], allow_pickle=False) if files else None

    def write(self, client: str, slot: str, vector: np.ndarray, round: int) -> None:
        def save(part: Path) -> None:
            with part.open("wb") as file:
                np.save(file, vector, allow_pickle=False)

        write_atomically(self.folder / safe_name(client) / f"{slot}.{round:06d}.npy", save, flush=False)
        # The one before is what a run stopped in this round goes back to; older ones have no reader.
        for _, path in self._files(client, slot)[:-2]:
            path.unlink(missing_ok=True)

    def forget_after(self, round: int) -> None:
        """Go back to what was known at the end of a round."""
        for path in self.folder.glob("*/*.npy"):
            number = path.name.split(".")[-2]
            if number.isdecimal() and int(number) > round:
                path.unlink(missing_ok=True)
        for path in self.folder.glob("*/.*.part"):  # left by a process that was killed while it wrote
            path.unlink(missing_ok=True)
