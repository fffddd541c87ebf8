"""Every random number of a run comes from a stream named by (seed, purpose, client, round).

A stream depends on nothing else, so a result does not depend on the engine, on the number of workers or on the order
in which clients finish, and a resumed run draws the same numbers as one that was never stopped.
"""

import hashlib

import numpy as np


def seed_of(seed: int, purpose: str, client: str = "", round: int = 0) -> int:
    """A 64-bit seed for one purpose of one client in one round."""
    text = f"{seed}|{purpose}|{client}|{round}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def stream(seed: int, purpose: str, client: str = "", round: int = 0) -> np.random.Generator:
    """The random stream for one purpose (`"batches"`, `"select"`, ...) of one client in one round."""
    return np.random.Generator(np.random.PCG64(seed_of(seed, purpose, client, round)))
