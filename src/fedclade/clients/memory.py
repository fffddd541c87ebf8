"""What clients remember between rounds: their locally trained model and whatever else a method lets them keep.

One small database for all clients, with the last two rounds of every slot, so that a run that was stopped can go back
to what the clients knew at its last checkpoint: `forget_after(round)`. `flush` brings it to the disk, before that
checkpoint is written. Every vector carries a checksum.
"""

import contextlib
import os
import sqlite3
import threading
import zlib
from pathlib import Path

import numpy as np

from fedclade.errors import FedcladeError

NAME = "memory.sqlite"
TABLE = """
create table if not exists slots (
    client text, slot text, round integer, checksum integer, vector blob, primary key (client, slot, round)
) without rowid
"""
PATIENCE = 60.0  # seconds to wait for another worker that writes


class Memory:
    """Workers of one machine share it: each opens it for itself."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._open: dict[tuple[int, int], sqlite3.Connection] = {}

    @property
    def path(self) -> Path:
        return self.folder / NAME

    def _database(self) -> sqlite3.Connection:
        """This process's and thread's own connection: neither may be shared."""
        key = os.getpid(), threading.get_ident()
        if key not in self._open:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                database = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
                database.execute("pragma journal_mode = wal")  # whole after a power cut, durable after `flush`
                database.execute("pragma synchronous = normal")
                database.execute(TABLE)
            except (OSError, sqlite3.Error) as error:
                raise FedcladeError(f"cannot use {self.path}, what the clients remember: {error}") from error
            self._open[key] = database
        return self._open[key]

    def read(self, client: str, slot: str) -> np.ndarray | None:
        """The newest vector of a slot; None where the client keeps nothing there."""
        if not self.path.is_file():
            return None
        query = "select checksum, vector from slots where client = ? and slot = ? order by round desc limit 1"
        try:
            row = self._database().execute(query, (client, slot)).fetchone()
        except sqlite3.DatabaseError as error:
            raise self._damaged(client, str(error)) from error
        if row is None:
            return None
        if zlib.crc32(row[1]) != row[0]:
            raise self._damaged(client, "a checksum is wrong")
        return np.frombuffer(row[1], np.float32).copy()

    def _damaged(self, client: str, why: str) -> FedcladeError:
        return FedcladeError(
            f"what client {client!r} remembers is damaged ({why}): go on from the cluster models with --forget-memory"
        )

    def write(self, client: str, slot: str, vector: np.ndarray, round: int) -> None:
        self.write_all([(client, slot, vector)], round)

    def write_all(self, vectors: list[tuple[str, str, np.ndarray]], round: int) -> None:
        """Keep vectors; of each slot the one before stays too, for a run stopped in this round goes back to it."""
        database = self._database()
        try:
            database.execute("begin immediate")
            for client, slot, vector in vectors:
                data = np.ascontiguousarray(vector, np.float32).tobytes()
                database.execute(
                    "insert or replace into slots values (?, ?, ?, ?, ?)", (client, slot, round, zlib.crc32(data), data)
                )
                database.execute(
                    "delete from slots where client = ?1 and slot = ?2 and round < "
                    "(select max(round) from slots where client = ?1 and slot = ?2 and round < ?3)",
                    (client, slot, round),
                )
            database.execute("commit")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                database.execute("rollback")
            raise FedcladeError(
                f"cannot write {self.path}: {error}; free some space or choose another folder"
            ) from error

    def forget_after(self, round: int) -> None:
        """Go back to what was known at the end of a round."""
        if self.path.is_file():
            try:
                self._database().execute("delete from slots where round > ?", (round,))
            except sqlite3.DatabaseError as error:
                raise FedcladeError(
                    f"cannot read {self.path}, what the clients remember ({error}): "
                    "go on from the cluster models with --forget-memory"
                ) from error

    def known(self) -> dict[str, set[str]]:
        """Who keeps something in each slot."""
        found: dict[str, set[str]] = {}
        if self.path.is_file():
            for client, slot in self._database().execute("select distinct client, slot from slots"):
                found.setdefault(slot, set()).add(client)
        return found

    def flush(self) -> None:
        """Bring everything to the disk."""
        if self.path.is_file():
            self._database().execute("pragma wal_checkpoint(full)")

    def close(self) -> None:
        for database in self._open.values():
            with contextlib.suppress(sqlite3.Error):  # others still have it open: the last one does it
                database.execute("pragma journal_mode = delete")  # one plain file, which can be read from anywhere
            with contextlib.suppress(sqlite3.Error):
                database.close()
        self._open.clear()
