"""The splits of the papers: each says how many training rows of each label each client gets.

Clients of one hidden group stand side by side (`client-000`, `client-001`, ...), which makes similarity maps readable.
"""

from dataclasses import replace
from math import comb

import numpy as np

from fedclade.data.partition.allocation import (
    Allocation,
    Request,
    apportion,
    by_weight,
    dirichlet_in_groups,
    dominated,
    gamma_weights,
    topped_up,
)
from fedclade.data.partition.registry import Argument, Split, add, registered
from fedclade.errors import FedcladeError

DRAWS = 100  # of a Dirichlet; the papers' settings need about three, then rows are moved to the clients that lack them

SETS_OF_LONERS = (2, 3, 4, 5)  # how many labels they may hold

FRACTION = Argument("FRACTION", up_to=1)
ALPHA = Argument("ALPHA", up_to=1e6)
# Of the Dirichlet inside groups: 1 as HiCFL samples, 100 for members that are alike.
INSIDE = replace(ALPHA, optional=True)
GROUPS = Argument("GROUPS", whole=True)
FIRST_GROUPS = Argument("GROUPS", whole=True, up_to=4, optional=True)  # of the four that a setting has

FEDAVG = "FedAvg (AISTATS 2017)"
NIID_BENCH = "FedClust (ICPP 2024), after NIID-Bench (ICDE 2022)"
HICFL = "HiCFL (TMC 2024)"
ADACFL = "AdaCFL (MONET 2022)"


@registered("iid", paper=FEDAVG)
def iid(request: Request) -> Allocation:
    """IID: all rows shuffled, equal sizes; one group"""
    labels = request.rng.permutation(np.repeat(np.arange(request.classes), request.sizes))
    clients = np.arange(len(labels)) * request.clients // len(labels)
    return Allocation(request.counted(clients, labels), np.zeros(request.clients, dtype=int))


@registered("dirichlet:0.1", ALPHA, paper=NIID_BENCH)
def dirichlet(request: Request, alpha: float) -> Allocation:
    """non-IID labels: each label's rows by Dirichlet(ALPHA) over the clients, unlike for a small ALPHA; no groups"""
    best = _dirichlet_draw(request, alpha)
    for _ in range(DRAWS - 1):
        if best.sum(axis=1).min() >= request.smallest:
            break
        best = max(best, _dirichlet_draw(request, alpha), key=lambda counts: counts.sum(axis=1).min())
    return Allocation(topped_up(best, request.smallest, np.ones_like(best)))


def _dirichlet_draw(request: Request, alpha: float) -> np.ndarray:
    """Label by label, shares by Dirichlet(alpha) over the clients that do not yet hold their fair number of rows."""
    counts = np.zeros((request.clients, request.classes), dtype=np.int64)
    fair = request.sizes.sum() / request.clients
    for label in np.flatnonzero(request.sizes):
        below = counts.sum(axis=1) < fair  # somebody is: this label's rows are still to come
        share = np.where(below, request.rng.dirichlet(np.full(request.clients, alpha)), 0)
        share = share if share.sum() > 0 else below  # a tiny alpha may give all to clients that have enough
        counts[:, label] = apportion(request.sizes[label], share, request.rng.random())
    return counts


@registered("label-skew:0.2", FRACTION, paper=NIID_BENCH)
def label_skew(request: Request, fraction: float) -> Allocation:
    """non-IID labels: each client has a random FRACTION of them, in equal parts; same labels, same group"""
    labels = max(1, int(round(fraction * request.classes, 9) + 0.5))
    priority = request.rng.random((request.clients, request.classes))
    first = np.arange(request.clients)
    priority[first, first % request.classes] = -1  # so that somebody has every label
    held = np.zeros(priority.shape, dtype=bool)
    np.put_along_axis(held, np.argsort(priority, axis=1)[:, :labels], True, axis=1)
    seen: dict[bytes, int] = {}
    group = np.array([seen.setdefault(labels.tobytes(), len(seen)) for labels in held])
    return Allocation(by_weight(request, held), group)


@registered("shards:2", Argument("COUNT", whole=True), paper=FEDAVG)
def shards(request: Request, count: int) -> Allocation:
    """non-IID labels: rows sorted by label, cut into equal shards, COUNT for each client at random; no groups"""
    rows, n_shards = int(request.sizes.sum()), request.clients * count
    if n_shards > rows:
        raise FedcladeError(
            f"{request.clients} clients x {count} shards exceed {rows} rows: use fewer clients or shards"
        )
    shard = np.arange(rows) * n_shards // rows
    client_of = request.rng.permutation(np.arange(n_shards) // count)
    return Allocation(request.counted(client_of[shard], np.repeat(np.arange(request.classes), request.sizes)))


@registered("label-groups:4", GROUPS, INSIDE, paper="none: the plainest hidden groups, for demonstrations")
def label_groups(request: Request, groups: int, alpha: float | None = None) -> Allocation:
    """non-IID labels: cut into GROUPS ranges, each for one group of clients, alike or by Dirichlet(ALPHA)"""
    request.need_labels(groups, f"label-groups:{groups}")
    group = request.groups_side_by_side(groups, f"label-groups:{groups}")
    ranges = np.array_split(np.arange(request.classes), groups)
    if alpha is not None:
        held = np.stack([np.isin(np.arange(request.classes), labels) for labels in ranges])
        return Allocation(dirichlet_in_groups(request, group, held, alpha), group)
    counts = np.zeros((request.clients, request.classes), dtype=np.int64)
    for number, labels in enumerate(ranges):
        members = np.flatnonzero(group == number)
        rows = request.rng.permutation(np.repeat(labels, request.sizes[labels]))
        counts += request.counted(members[np.arange(len(rows)) * len(members) // max(1, len(rows))], rows)
    return Allocation(counts, group)


@registered(
    "loners:4", GROUPS, Argument("SHARE", up_to=1, optional=True), paper="none: groups, and clients that fit none"
)
def loners(request: Request, groups: int, share: float = 0.2) -> Allocation:
    """non-IID labels: as label-groups, but a SHARE of the clients (0.2) has two to five at random, unlike anybody"""
    name = f"loners:{groups}"
    request.need_labels(max(groups, 5), name)
    alone = min(int(share * request.clients + 0.5), request.clients)
    if alone > (most := sum(comb(request.classes, held) for held in SETS_OF_LONERS) // 2):
        raise FedcladeError(f"split '{name}' has sets of labels for {most} loners, not {alone}: give a smaller SHARE")
    held = np.zeros((request.clients, request.classes), dtype=bool)
    group = replace(request, clients=request.clients - alone).groups_side_by_side(groups, name)
    ranges = np.array_split(np.arange(request.classes), groups)
    for client, number in enumerate(group):
        held[client, ranges[number]] = True
    for client in range(len(group), request.clients):
        while not held[client].any() or (held[:client] == held[client]).all(axis=1).any():
            held[client] = False
            held[client, request.rng.permutation(request.classes)[: request.rng.choice(SETS_OF_LONERS)]] = True
    return Allocation(by_weight(request, held), np.concatenate([group, groups + np.arange(alone)]))


@registered("unequal:4", GROUPS, paper="none: groups of clients of very unlike sizes")
def unequal(request: Request, groups: int) -> Allocation:
    """non-IID labels and sizes: as label-groups, but the largest clients have fifty times the rows of the smallest"""
    request.need_labels(groups, f"unequal:{groups}")
    group = request.groups_side_by_side(groups, f"unequal:{groups}")
    held = np.zeros((groups, request.classes), dtype=bool)
    for number, labels in enumerate(np.array_split(np.arange(request.classes), groups)):
        held[number, labels] = True
    sizes = 50.0 ** request.rng.random(request.clients)
    return Allocation(topped_up(by_weight(request, held[group] * sizes[:, None]), request.smallest, held[group]), group)


@registered("non-iid-1", INSIDE, FIRST_GROUPS, paper=HICFL)
def non_iid_1(request: Request, alpha: float = 1.0, groups: int = 4) -> Allocation:
    """non-IID labels and sizes: GROUPS (4), of labels 0-3, 3-6, 4-9, 0-9 of ten (or scaled), Dirichlet(ALPHA) inside"""
    request.need_labels(4, "non-iid-1")  # with fewer, two of the ranges are the same
    group = request.groups_side_by_side(groups, "non-iid-1")
    held = np.zeros((groups, request.classes), dtype=bool)
    for mine, (first, end) in zip(held, ((0, 4), (3, 7), (4, 10), (0, 10)), strict=False):
        mine[first * request.classes // 10 : -(-end * request.classes // 10)] = True
    return Allocation(dirichlet_in_groups(request, group, held, alpha), group)


@registered("non-iid-2:0.5", FRACTION, INSIDE, FIRST_GROUPS, paper=HICFL)
def non_iid_2(request: Request, fraction: float, alpha: float = 1.0, groups: int = 4) -> Allocation:
    """non-IID labels and sizes: FRACTION of a client's rows has its group's (GROUPS: 4), others by Dirichlet(ALPHA)"""
    request.need_labels(groups, "non-iid-2")
    group = request.groups_side_by_side(groups, "non-iid-2")
    label_weights = gamma_weights(request, alpha)
    size_weights = request.rng.uniform(0.5, 1.5, request.clients)  # the paper: sizes differ; not by how much
    return Allocation(dominated(request, group, fraction, label_weights, size_weights), group)


@registered("non-iid-3", INSIDE, replace(GROUPS, optional=True), paper=HICFL, turns_images=True)
def non_iid_3(request: Request, alpha: float = 1.0, groups: int = 0) -> Allocation:
    """non-IID features and sizes: as rotation, GROUPS by default 4 for colour, else 2; labels by Dirichlet(ALPHA)"""
    turns = _turns_of(groups or (4 if request.colour else 2), f"non-iid-3:{alpha:g}")
    group = request.groups_side_by_side(len(turns), "non-iid-3")
    held = np.ones((len(turns), request.classes), dtype=bool)
    return Allocation(dirichlet_in_groups(request, group, held, alpha), group, turns)


@registered("adacfl-alpha:0.8", FRACTION, replace(GROUPS, optional=True), paper=ADACFL)
def adacfl_alpha(request: Request, fraction: float, groups: int = 0) -> Allocation:
    """non-IID labels: FRACTION of a client's rows has its group's; GROUPS by default 10 for colour images, else 5"""
    groups = groups or min(10 if request.colour else 5, request.classes)
    request.need_labels(groups, "adacfl-alpha")
    group = request.groups_side_by_side(groups, "adacfl-alpha")
    equal = np.ones((request.clients, request.classes))
    return Allocation(dominated(request, group, fraction, equal, equal[:, 0]), group)


@registered("adacfl-b", paper=ADACFL)
def adacfl_b(request: Request) -> Allocation:
    """non-IID labels: two a client, (g, g + 1) in group g, as many groups as labels, in equal parts"""
    request.need_labels(3, "adacfl-b")  # with two, the pairs (0, 1) and (1, 0) are one group
    group = request.groups_side_by_side(request.classes, "adacfl-b")
    held = np.zeros((request.clients, request.classes), dtype=bool)
    for step in (0, 1):
        held[np.arange(request.clients), (group + step) % request.classes] = True
    return Allocation(by_weight(request, held), group)


@registered("rotation:4", GROUPS, paper="IFCA (NeurIPS 2020)", turns_images=True)
def rotation(request: Request, groups: int) -> Allocation:
    """non-IID features: square images turned by group, 2: 0/180, 4: 0/90/180/270 degrees; labels alike, equal sizes"""
    turns = _turns_of(groups, "rotation")
    group = request.groups_side_by_side(groups, f"rotation:{groups}")
    return replace(iid(request), group=group, turns=turns)


def _turns_of(groups: int, what: str) -> tuple[int, ...]:
    """Quarter turns of so many groups of images."""
    if groups not in (2, 4):
        raise FedcladeError(f"split '{what}:{groups}': write {what}:2 (0, 180 degrees) or {what}:4 (0, 90, ...)")
    return (0, 2) if groups == 2 else (0, 1, 2, 3)


add(
    Split(
        "natural",
        "non-IID by nature: each owner of rows (a person, a drug) is a client, or the N with most rows; known groups",
        "natural",
        "FedSCCS (ICC 2024), Clustered FedStack, HiCFL (TMC 2024)",
    )
)
