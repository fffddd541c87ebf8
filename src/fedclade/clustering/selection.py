"""Which clients of one cluster train this round. All functions take and return client indices, ascending."""

import numpy as np


def everyone(members: np.ndarray) -> np.ndarray:
    """All of the cluster."""
    return np.sort(members)


def one_at_random(members: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Exactly one member (FedSCCS `Random`)."""
    return rng.choice(np.sort(members), size=1)


def worst_half_count(size: int, share: float = 0.5) -> int:
    """How many of a cluster FedSCCS's power-of-choice takes: the share rounded down, at least one."""
    return max(1, int(share * size))


def worst_half(members: np.ndarray, accuracy: np.ndarray, share: float = 0.5) -> np.ndarray:
    """The members with the lowest last accuracy (FedSCCS `POC`), equal ones by index; `accuracy` is by member."""
    order = np.lexsort((members, accuracy))
    return np.sort(np.asarray(members)[order[: worst_half_count(len(order), share)]])


def least_selected(members: np.ndarray, times: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One member among those selected the fewest times so far; `times` is by member (FedSCCS code, `Less-Selected`)."""
    members, times = np.asarray(members), np.asarray(times)
    return rng.choice(np.sort(members[times == times.min()]), size=1)
