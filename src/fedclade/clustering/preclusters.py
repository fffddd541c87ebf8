"""AdaCFL's first step: clients whose labels are spread alike, told by two numbers that leave each client."""

from typing import Literal

import numpy as np

from fedclade.clustering.labels import in_order
from fedclade.errors import unknown

RULES = ("anchor", "chain", "share", "bits")
ROUNDING = 1e-9


def preclusters(
    class_counts: np.ndarray,
    entropies: np.ndarray,
    *,
    rule: Literal["anchor", "chain", "share", "bits"] = "anchor",
    gap: float = 0.1,
    n_classes: int | None = None,
) -> np.ndarray:
    """Labels of the groups with the same number of classes and similar entropy; the paper says "a 10 % gap".

    `anchor`: at most 10 % above the smallest entropy of the group. `chain`: at most 10 % above the next smaller one,
    so that groups end where nobody is. `share`: the same tenth of the largest possible entropy, log2(n_classes).
    `bits`: the same tenth of a bit.
    """
    class_counts, entropies = np.asarray(class_counts), np.asarray(entropies, dtype=np.float64)
    if not np.isfinite(entropies).all():
        raise ValueError(f"the entropy of client {int(np.argmin(np.isfinite(entropies)))} is not finite")
    if rule in ("anchor", "chain"):
        bins = _opened(class_counts, entropies, gap, is_chain=rule == "chain")
    elif rule == "bits":
        bins = np.floor(entropies / gap + ROUNDING)
    elif rule == "share":
        if n_classes is None or n_classes < 2:
            raise ValueError("rule 'share' needs n_classes, at least 2")
        bins = np.floor(entropies / (gap * np.log2(n_classes)) + ROUNDING)
    else:
        raise unknown("rule", rule, RULES)
    _, both = np.unique(np.column_stack([class_counts, bins]), axis=0, return_inverse=True)
    return in_order(both.ravel())


def _opened(class_counts: np.ndarray, entropies: np.ndarray, gap: float, *, is_chain: bool) -> np.ndarray:
    """Bins opened in order of (class count, entropy), so that the order of clients does not matter."""
    bins = np.zeros(len(entropies), dtype=np.int64)
    current, anchor_count, anchor = -1, -1, -1.0
    for client in np.lexsort((entropies, class_counts)):
        is_new = class_counts[client] != anchor_count or entropies[client] > (1 + gap) * anchor + ROUNDING
        current += is_new
        if is_new or is_chain:
            anchor_count, anchor = class_counts[client], entropies[client]
        bins[client] = current
    return bins
