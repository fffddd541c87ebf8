"""What clients remember between rounds: their locally trained model and whatever else a method lets them keep.

One small database for all clients, with the last two rounds of every slot, so that a run that was stopped can go back
to what the clients knew at its last checkpoint: `forget_after(round)`. `flush` brings it to the disk, before that
checkpoint is written. Every vector carries a checksum, also of whose it is and from when.
"""

import contextlib
import os
import sqlite3
import threading
import time
import zlib
from pathlib import Path

import numpy as np

from fedclade.errors import FedcladeError
from fedclade.files import unwritable

NAME = "memory.sqlite"
TABLE = """
create table if not exists slots (
    client text, slot text, round integer, checksum integer, vector blob, unique (client, slot, round)
)
"""
PAGE = 16384  # bytes: a vector takes a few pages, not dozens
PATIENCE = 60.0  # seconds to wait for another worker that writes
Known = dict[str, dict[str, int]]  # by slot and client the checksum of what is kept


def checksum(client: str, slot: str, round: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(f"{client}\0{slot}\0{round}".encode()))


class Memory:
    """Workers of one machine share it: each opens it for itself."""

    def __init__(self, folder: Path | str, *, read_only: bool = False) -> None:
        self.folder, self.read_only = Path(folder), read_only
        self._open: dict[tuple[int, int], sqlite3.Connection] = {}

    @property
    def path(self) -> Path:
        return self.folder / NAME

    def _database(self) -> sqlite3.Connection:
        """This process's and thread's own connection: neither may be shared."""
        key = os.getpid(), threading.get_ident()
        if key not in self._open:
            try:
                self._open[key] = self._connected()
            except (OSError, sqlite3.OperationalError) as error:
                raise FedcladeError(f"cannot use {self.path}, what the clients remember: {error}") from error
            except sqlite3.Error as error:
                raise self._damaged(error) from error
        return self._open[key]

    def _connected(self) -> sqlite3.Connection:
        if self.read_only:
            return sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=PATIENCE)
        self.folder.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
        database.execute(f"pragma page_size = {PAGE}")
        until = time.monotonic() + PATIENCE
        while True:
            try:
                database.execute("pragma journal_mode = wal")  # whole after a power cut, durable after `flush`
                break
            except sqlite3.OperationalError as error:  # several workers begin at once: SQLite does not wait for this
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.01)
        database.execute("pragma synchronous = normal")
        database.execute(TABLE)
        return database

    def read(self, client: str, slot: str) -> np.ndarray | None:
        """The newest vector of a slot; None where the client keeps nothing there."""
        if not self.path.is_file():
            return None
        query = "select round, checksum, vector from slots where client = ? and slot = ? order by round desc limit 1"
        try:
            row = self._database().execute(query, (client, slot)).fetchone()
        except sqlite3.Error as error:
            raise self._damaged(error) from error
        if row is None:
            return None
        if not _is_whole(client, slot, *row):
            raise self._damaged(f"a checksum of {client!r} is wrong")
        return np.frombuffer(row[2], np.float32).copy()

    def _damaged(self, why: object) -> FedcladeError:
        words = " ".join(str(why).split())
        return FedcladeError(
            f"{self.path}, what the clients remember, is damaged ({words}): put it back from a copy, "
            "or go on from the cluster models with --forget-memory"
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
                row = client, slot, round, checksum(client, slot, round, data), data
                database.execute("insert or replace into slots values (?, ?, ?, ?, ?)", row)
                database.execute(
                    "delete from slots where client = ?1 and slot = ?2 and round < "
                    "(select max(round) from slots where client = ?1 and slot = ?2 and round < ?3)",
                    (client, slot, round),
                )
            database.execute("commit")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                database.execute("rollback")
            raise unwritable(self.path, error) from error

    def forget_after(self, round: int) -> None:
        """Go back to what was known at the end of a round."""
        if self.path.is_file():
            try:
                self._database().execute("delete from slots where round > ?", (round,))
            except sqlite3.Error as error:
                raise self._damaged(error) from error

    def known(self) -> Known:
        """Who keeps something in each slot, and the checksum of the newest."""
        found: Known = {}
        if self.path.is_file():
            try:
                query = "select client, slot, checksum, max(round) from slots group by client, slot"
                for client, slot, its_checksum, _ in self._database().execute(query):
                    found.setdefault(slot, {})[client] = its_checksum
            except sqlite3.Error as error:
                raise self._damaged(error) from error
        return found

    def check(self) -> list[tuple[str, str, int]]:
        """Read everything once. Returns the keys of damaged vectors; raises where the whole file is damaged."""
        if not self.path.is_file():
            return []
        try:
            (verdict,) = self._database().execute("pragma integrity_check(1)").fetchone()
            if verdict != "ok":
                raise self._damaged(verdict)
            rows = self._database().execute("select client, slot, round, checksum, vector from slots")
            return [(row[0], row[1], row[2]) for row in rows if not _is_whole(*row)]
        except sqlite3.Error as error:
            raise self._damaged(error) from error

    def forget_damaged(self) -> None:
        """Forget what cannot be read; where that is the whole file, it is set aside."""
        try:
            for key in self.check():
                self._database().execute("delete from slots where client = ? and slot = ? and round = ?", key)
        except (FedcladeError, sqlite3.Error):
            self.close()
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{self.path}{suffix}").replace(f"{self.path}.damaged{suffix}")

    def flush(self) -> None:
        """Bring everything to the disk."""
        if self.path.is_file():
            try:
                self._database().execute("pragma wal_checkpoint(full)")
            except sqlite3.Error as error:
                raise unwritable(self.path, error) from error

    def close(self) -> None:
        for database in self._open.values():
            with contextlib.suppress(sqlite3.Error):  # others still have it open: the last one does it
                database.execute("pragma journal_mode = delete")  # one plain file, which can be read from anywhere
            with contextlib.suppress(sqlite3.Error):
                database.close()
        self._open.clear()


def _is_whole(client: str, slot: str, round: int, its_checksum: int, vector: bytes) -> bool:
    return isinstance(vector, bytes) and checksum(client, slot, round, vector) == its_checksum
