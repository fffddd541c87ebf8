"""One data set -> many clients, as the papers deal it out.

A split is a table: how many training rows of each label each client gets. Which rows those are is the same for every
split: the rows of a label are shuffled and handed out in the order of the clients. So no row has two owners, counts
are exact, and everything follows from the seed. Only `natural` has no table: there the data say whose row it is.

Clients of one hidden group stand side by side (`client-000`, `client-001`, ...), which makes similarity maps readable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedclade.data.federation import Client, Dataset, Federation
from fedclade.errors import FedcladeError, listed, unknown
from fedclade.randomness import stream

TEST_VIEWS = {
    "label-support": "all test rows of every label the client trains on",
    "proportional": "test rows in the label proportions of the client's training rows; its share of the test rows is "
    "its share of the training rows (less where a label runs out)",
    "holdout": "a fifth of the client's own rows, at least one, of every label alike",
}

HOLDOUT = 5  # one row in five
SMALLEST = 10  # rows: a Dirichlet draw that leaves a client with fewer is drawn again, as in NIID-Bench
DRAWS = 100  # the papers' settings need about three; after so many, rows are moved to the clients that lack them


@dataclass(frozen=True)
class Deal:
    """What a split has to deal with."""

    sizes: np.ndarray  # (classes,) training rows of each label
    clients: int
    colour: bool  # the papers split grey images (MNIST) and colour images (CIFAR-10) into different numbers of groups
    rng: np.random.Generator

    @property
    def classes(self) -> int:
        return len(self.sizes)

    @property
    def smallest(self) -> int:
        """The fewest rows a client may be left with by chance."""
        return int(min(SMALLEST, self.sizes.sum() // self.clients))


@dataclass(frozen=True)
class Plan:
    """Who gets how many rows of which label."""

    counts: np.ndarray  # (clients, classes)
    group: np.ndarray | None = None  # (clients,) the hidden groups, where there are any
    turns: tuple[int, ...] = ()  # quarter turns of the images of group 0, 1, ...


@dataclass(frozen=True)
class Argument:
    """A number in a split's spec, after a colon."""

    name: str
    whole: bool = False
    up_to: float = np.inf
    optional: bool = False

    @property
    def wanted(self) -> str:
        if self.whole:
            return "a whole number, 1 or more"
        return f"a number above 0, up to {self.up_to:,g}"

    def read(self, text: str) -> float:
        number = int(text) if self.whole else float(text)  # raises ValueError where it is none
        if not 0 < number <= self.up_to:
            raise ValueError(text)
        return number


FRACTION = Argument("FRACTION", up_to=1)
GROUPS = Argument("GROUPS", whole=True)


@dataclass(frozen=True)
class Split:
    """A way to deal a data set out to clients."""

    name: str
    description: str
    example: str
    paper: str
    plan: Callable[..., Plan] | None = None  # None: the data say whose row it is
    arguments: tuple[Argument, ...] = ()

    @property
    def syntax(self) -> str:
        return self.name + "".join(f"[:{a.name}]" if a.optional else f":{a.name}" for a in self.arguments)


_SPLITS: dict[str, Split] = {}


def splits() -> dict[str, Split]:
    """Every split by name."""
    return dict(_SPLITS)


def _registered(example: str, *arguments: Argument, paper: str) -> Callable[[Callable[..., Plan]], Callable[..., Plan]]:
    """Make a plan a split by the name its example starts with; its docstring is the split's description."""

    def register(plan: Callable[..., Plan]) -> Callable[..., Plan]:
        name = example.split(":")[0]
        _SPLITS[name] = Split(name, plan.__doc__ or "", example, paper, plan, arguments)
        return plan

    return register


# --- dividing ---------------------------------------------------------------------------------------------------------


def apportion(total: np.ndarray | int, weights: np.ndarray, offset: np.ndarray | float) -> np.ndarray:
    """Divide totals over the last axis in proportion to weights, in whole numbers.

    The parts add up to the total, and each is within one of its quota. An offset drawn evenly from [0, 1) makes each
    right on average too, however small the total is.
    """
    share = np.cumsum(weights, axis=-1, dtype=np.float64)
    share /= share[..., -1:]
    totals = np.expand_dims(total, -1)
    cuts = np.minimum(np.floor(share * totals + np.expand_dims(offset, -1)), totals).astype(np.int64)
    return np.diff(cuts, axis=-1, prepend=0)


def _side_by_side(deal: Deal, groups: int, what: str) -> np.ndarray:
    """(clients,) the group of each client: groups of equal size (to within one), one after the other."""
    if groups > deal.clients:
        raise FedcladeError(f"{what} has {groups} groups but there are {deal.clients} clients: give {groups} or more")
    return np.arange(deal.clients) * groups // deal.clients


def _enough_labels(deal: Deal, needed: int, what: str) -> None:
    if deal.classes < needed:
        raise FedcladeError(f"{what} needs {needed} or more labels, the data have {deal.classes}: take another split")


def _table(client: np.ndarray, label: np.ndarray, deal: Deal) -> np.ndarray:
    """(clients, classes) counts from the client and the label of each row."""
    cells = np.bincount(client * deal.classes + label, minlength=deal.clients * deal.classes)
    return cells.reshape(deal.clients, deal.classes)


def _split_among_owners(deal: Deal, owned: np.ndarray) -> np.ndarray:
    """Counts where each label's rows are split among the clients in proportion to `owned` (clients, classes)."""
    counts = np.zeros(owned.shape, dtype=np.int64)
    for label in np.flatnonzero(owned.any(axis=0)):
        counts[:, label] = apportion(deal.sizes[label], owned[:, label], deal.rng.random())
    return counts


def _dirichlet_in_groups(deal: Deal, group: np.ndarray, owned: np.ndarray) -> np.ndarray:
    """Counts where the groups that own a label get equal parts of it, and a group's clients Dirichlet(1) parts of that.

    `owned` is (groups, classes). Clients of a group have the same labels, in unlike numbers and proportions.
    """
    weights = deal.rng.standard_exponential((deal.clients, deal.classes)) * owned[group]
    for number in range(len(owned)):
        members = group == number
        weights[members] /= np.where(owned[number], weights[members].sum(axis=0), 1)
    return _topped_up(_split_among_owners(deal, weights), deal.smallest, owned[group])


def _topped_up(counts: np.ndarray, smallest: int, allowed: np.ndarray) -> np.ndarray:
    """Counts where the largest clients gave rows of an allowed label to each client with too few."""
    counts = counts.copy()
    sizes = counts.sum(axis=1)
    for needy in np.flatnonzero(sizes < smallest):
        while sizes[needy] < smallest:
            useful = counts * allowed[needy]
            donor = int(np.argmax(np.where(useful.any(axis=1), sizes, 0)))
            label = int(np.argmax(useful[donor]))
            rows = min(smallest - sizes[needy], sizes[donor] - smallest, useful[donor, label])
            if rows <= 0:  # nobody has rows to spare
                break
            counts[donor, label] -= rows
            counts[needy, label] += rows
            sizes[donor] -= rows
            sizes[needy] += rows
    return counts


def _dominated(deal: Deal, group: np.ndarray, fraction: float, taste: np.ndarray, appetite: np.ndarray) -> np.ndarray:
    """Counts where `fraction` of each client's rows have its group's number as label, exact to rounding.

    The other rows follow the data set, weighted by the client's taste (clients, classes). Clients are as large as the
    scarcest label allows, in proportion to their appetite (clients,).
    """
    own = np.arange(deal.classes) == group[:, None]
    rest = np.where(own, 0, taste * deal.sizes)
    if not rest.any(axis=1).all():
        raise FedcladeError("the training rows have one label only: give data with two or more, or split them iid")
    rest = rest / rest.sum(axis=1, keepdims=True)
    demand = appetite @ np.where(own, fraction, (1 - fraction) * rest)
    scale = float(np.min(deal.sizes[demand > 0] / demand[demand > 0]))
    offset = deal.rng.random(deal.clients)
    while True:  # ends: as the scale falls so do all counts, and no rows at all always fit
        rows = np.floor(scale * appetite).astype(np.int64)
        dominant = np.floor(fraction * rows + 0.5).astype(np.int64)
        counts = np.where(own, dominant[:, None], apportion(rows - dominant, rest, offset))
        if (counts.sum(axis=0) <= deal.sizes).all():
            return counts
        scale *= 0.99  # rounding asked for a few rows too many


# --- the splits -------------------------------------------------------------------------------------------------------

_FEDAVG = "FedAvg (AISTATS 2017)"
_NIID_BENCH = "FedClust (ICPP 2024), after NIID-Bench (ICDE 2022)"
_HICFL = "HiCFL (TMC 2024)"
_ADACFL = "AdaCFL (MONET 2022)"


@_registered("iid", paper=_FEDAVG)
def _iid(deal: Deal) -> Plan:
    """all rows shuffled, equal sizes; one group"""
    labels = deal.rng.permutation(np.repeat(np.arange(deal.classes), deal.sizes))
    clients = np.arange(len(labels)) * deal.clients // len(labels)
    return Plan(_table(clients, labels, deal), np.zeros(deal.clients, dtype=int))


@_registered("dirichlet:0.1", Argument("ALPHA", up_to=1e6), paper=_NIID_BENCH)
def _dirichlet(deal: Deal, alpha: float) -> Plan:
    """each label's rows by Dirichlet(ALPHA) over the clients, a small ALPHA makes them unlike; no groups"""
    best = _dirichlet_draw(deal, alpha)
    for _ in range(DRAWS - 1):
        if best.sum(axis=1).min() >= deal.smallest:
            break
        best = max(best, _dirichlet_draw(deal, alpha), key=lambda counts: counts.sum(axis=1).min())
    return Plan(_topped_up(best, deal.smallest, np.ones_like(best)))


def _dirichlet_draw(deal: Deal, alpha: float) -> np.ndarray:
    """Label by label, shares by Dirichlet(alpha) over the clients that do not yet hold their fair number of rows."""
    counts = np.zeros((deal.clients, deal.classes), dtype=np.int64)
    fair = deal.sizes.sum() / deal.clients
    for label in np.flatnonzero(deal.sizes):
        hungry = counts.sum(axis=1) < fair  # somebody is: this label's rows are still to come
        share = np.where(hungry, deal.rng.dirichlet(np.full(deal.clients, alpha)), 0)
        share = share if share.sum() > 0 else hungry  # a tiny alpha may give all to clients that have enough
        counts[:, label] = apportion(deal.sizes[label], share, deal.rng.random())
    return counts


@_registered("label-skew:0.2", FRACTION, paper=_NIID_BENCH)
def _label_skew(deal: Deal, fraction: float) -> Plan:
    """each client owns a random FRACTION of the labels, owners share a label equally; same labels, same group"""
    labels = max(1, int(round(fraction * deal.classes, 9) + 0.5))
    priority = deal.rng.random((deal.clients, deal.classes))
    priority[np.arange(deal.clients), np.arange(deal.clients) % deal.classes] = -1  # so that every label is owned
    owned = np.zeros(priority.shape, dtype=bool)
    np.put_along_axis(owned, np.argsort(priority, axis=1)[:, :labels], True, axis=1)
    seen: dict[bytes, int] = {}
    group = np.array([seen.setdefault(labels.tobytes(), len(seen)) for labels in owned])
    return Plan(_split_among_owners(deal, owned), group)


@_registered("shards:2", Argument("COUNT", whole=True), paper=_FEDAVG)
def _shards(deal: Deal, count: int) -> Plan:
    """rows sorted by label and cut into equal shards, COUNT of them for each client at random; no groups"""
    rows, shards = int(deal.sizes.sum()), deal.clients * count
    if shards > rows:
        raise FedcladeError(f"{deal.clients} clients x {count} shards exceed {rows} rows: use fewer clients or shards")
    shard = np.arange(rows) * shards // rows
    client_of = deal.rng.permutation(np.arange(shards) // count)
    return Plan(_table(client_of[shard], np.repeat(np.arange(deal.classes), deal.sizes), deal))


@_registered("label-groups:4", GROUPS, paper="none: the plainest hidden groups, for demonstrations")
def _label_groups(deal: Deal, groups: int) -> Plan:
    """labels cut into GROUPS ranges, each for one group of clients; clients of a group are alike"""
    _enough_labels(deal, groups, f"label-groups:{groups}")
    group = _side_by_side(deal, groups, f"label-groups:{groups}")
    counts = np.zeros((deal.clients, deal.classes), dtype=np.int64)
    for number, labels in enumerate(np.array_split(np.arange(deal.classes), groups)):
        members = np.flatnonzero(group == number)
        pool = deal.rng.permutation(np.repeat(labels, deal.sizes[labels]))
        counts += _table(members[np.arange(len(pool)) * len(members) // max(1, len(pool))], pool, deal)
    return Plan(counts, group)


@_registered("non-iid-1", paper=_HICFL)
def _non_iid_1(deal: Deal) -> Plan:
    """four groups, labels 0-3, 3-6, 4-9, 0-9 of ten (scaled to other numbers), Dirichlet(1) inside, unequal sizes"""
    _enough_labels(deal, 4, "non-iid-1")
    group = _side_by_side(deal, 4, "non-iid-1")
    owned = np.zeros((4, deal.classes), dtype=bool)
    for number, (first, end) in enumerate(((0, 4), (3, 7), (4, 10), (0, 10))):
        owned[number, first * deal.classes // 10 : -(-end * deal.classes // 10)] = True
    return Plan(_dirichlet_in_groups(deal, group, owned), group)


@_registered("non-iid-2:0.5", FRACTION, paper=_HICFL)
def _non_iid_2(deal: Deal, fraction: float) -> Plan:
    """four groups, FRACTION of a client's rows has the group's label (0-3), Dirichlet(1) for the rest, unequal sizes"""
    _enough_labels(deal, 4, "non-iid-2")
    group = _side_by_side(deal, 4, "non-iid-2")
    taste = deal.rng.standard_exponential((deal.clients, deal.classes))  # Dirichlet(1), once normalised
    appetite = deal.rng.uniform(0.5, 1.5, deal.clients)  # the paper: sizes differ; it does not say by how much
    return Plan(_dominated(deal, group, fraction, taste, appetite), group)


@_registered("non-iid-3", paper=_HICFL)
def _non_iid_3(deal: Deal) -> Plan:
    """images turned by group, grey 0/180, colour 0/90/180/270 degrees; all labels by Dirichlet(1), unequal sizes"""
    turns = (0, 1, 2, 3) if deal.colour else (0, 2)
    group = _side_by_side(deal, len(turns), "non-iid-3")
    owned = np.ones((len(turns), deal.classes), dtype=bool)
    return Plan(_dirichlet_in_groups(deal, group, owned), group, turns)


@_registered("adacfl-alpha:0.8", FRACTION, replace(GROUPS, optional=True), paper=_ADACFL)
def _adacfl_alpha(deal: Deal, fraction: float, groups: int = 0) -> Plan:
    """FRACTION of a client's rows has its group's label; GROUPS as in the paper: 10 for colour images, else 5"""
    groups = groups or min(10 if deal.colour else 5, deal.classes)
    _enough_labels(deal, groups, "adacfl-alpha")
    group = _side_by_side(deal, groups, "adacfl-alpha")
    taste = np.ones((deal.clients, deal.classes))
    return Plan(_dominated(deal, group, fraction, taste, np.ones(deal.clients)), group)


@_registered("adacfl-b", paper=_ADACFL)
def _adacfl_b(deal: Deal) -> Plan:
    """two labels a client, (g, g + 1) in group g, as many groups as labels; owners share a label equally"""
    _enough_labels(deal, 3, "adacfl-b")  # with two, the pairs (0, 1) and (1, 0) are one group
    group = _side_by_side(deal, deal.classes, "adacfl-b")
    owned = np.zeros((deal.clients, deal.classes), dtype=bool)
    for step in (0, 1):
        owned[np.arange(deal.clients), (group + step) % deal.classes] = True
    return Plan(_split_among_owners(deal, owned), group)


@_registered("rotation:4", GROUPS, paper="IFCA (NeurIPS 2020)")
def _rotation(deal: Deal, groups: int) -> Plan:
    """square images turned by group, 2: 0/180, 4: 0/90/180/270 degrees; labels alike, equal sizes"""
    if groups not in (2, 4):
        raise FedcladeError(f"split 'rotation:{groups}': write rotation:2 (0, 180 degrees) or rotation:4 (0, 90, ...)")
    group = _side_by_side(deal, groups, f"rotation:{groups}")
    return replace(_iid(deal), group=group, turns=(0, 2) if groups == 2 else (0, 1, 2, 3))


_SPLITS["natural"] = Split(
    "natural",
    "each owner of rows (a person, a drug) is a client, or the N owners with the most rows; groups unknown",
    "natural",
    "FedSCCS (ICC 2024), Clustered FedStack, HiCFL (TMC 2024)",
)


# --- from a spec to a federation --------------------------------------------------------------------------------------


def split(dataset: Dataset, spec: str, clients: int | None, seed: int = 0, test_view: str | None = None) -> Federation:
    """Deal a data set out to clients, e.g. `split(mnist, "label-skew:0.2", 100)`.

    `clients` may be None for `natural` only: every owner with enough rows to be trained and tested.
    `test_view` is one of `TEST_VIEWS`. Left out, it is `label-support`, or `holdout` where the data set has no test
    rows; under `natural` a client is tested on its owner's own test rows, or on a holdout if it has none.
    """
    chosen, arguments = _parsed(spec)
    _check_request(dataset, chosen, clients, test_view)
    if chosen.plan is None:
        return _natural(dataset, clients, seed, test_view).checked()
    assert clients is not None
    sizes = np.bincount(dataset.y[: dataset.n_train], minlength=dataset.n_classes)
    colour = dataset.x.ndim == 4 and dataset.x.shape[1] == 3
    plan = chosen.plan(Deal(sizes, int(clients), colour, stream(seed, "split")), *arguments)
    empty = int((plan.counts.sum(axis=1) == 0).sum())
    if empty:
        raise FedcladeError(
            f"split {spec!r} leaves {empty} of {clients} clients without rows: use fewer clients or another split"
        )

    width = max(3, len(str(clients - 1)))
    hands = [
        Client(f"client-{number:0{width}}", rows, rows[:0], None if plan.group is None else int(plan.group[number]))
        for number, rows in enumerate(_dealt(dataset, plan.counts, seed))
    ]
    x, y = _turned(dataset, plan.turns, hands) if plan.turns else (dataset.x, dataset.y)
    view = test_view or ("label-support" if len(dataset.y) > dataset.n_train else "holdout")
    tested = _tested(hands, dataset, view, seed, by_group=bool(plan.turns))
    return Federation(x, y, tuple(tested), dataset.classes, dataset.name, spec).checked()


def _parsed(spec: str) -> tuple[Split, list[float]]:
    """The split a spec names, and its arguments."""
    name, *texts = spec.split(":")
    if name not in _SPLITS:
        raise unknown("split", name, _SPLITS)
    chosen = _SPLITS[name]
    needed = sum(not argument.optional for argument in chosen.arguments)
    if not needed <= len(texts) <= len(chosen.arguments):
        problem = "lacks a number" if len(texts) < needed else "has a number too many"
        raise FedcladeError(f"split {spec!r} {problem}: write {chosen.syntax}, e.g. {chosen.example}")
    values = []
    for argument, text in zip(chosen.arguments, texts, strict=False):
        try:
            values.append(argument.read(text))
        except ValueError:
            wrong = f"split {spec!r}: {argument.name} is {text!r}"
            raise FedcladeError(f"{wrong}: give {argument.wanted}, e.g. {chosen.example}") from None
    return chosen, values


def _check_request(dataset: Dataset, chosen: Split, clients: int | None, test_view: str | None) -> None:
    """Raise where the data set cannot be split as asked."""
    shape = "x".join(map(str, dataset.x.shape[1:]))
    if dataset.n_train == 0:
        raise FedcladeError(f"data set {dataset.name!r} has no training rows: give it some")
    if test_view is not None and test_view not in TEST_VIEWS:
        raise unknown("test view", test_view, TEST_VIEWS)
    if test_view not in (None, "holdout") and len(dataset.y) == dataset.n_train:
        raise FedcladeError(f"data set {dataset.name!r} has no test rows for the view {test_view!r}: use 'holdout'")
    if clients is not None and (not isinstance(clients, int | np.integer) or clients < 1):
        raise FedcladeError(f"{clients} clients: give a whole number, 1 or more")
    if chosen.plan is None:
        if dataset.owner is None:
            raise FedcladeError(
                f"data set {dataset.name!r} does not say who owns its rows: take another split, e.g. iid"
            )
    elif clients is None:
        raise FedcladeError(f"split {chosen.name!r} needs a number of clients: give one, e.g. 20")
    elif clients > dataset.n_train:
        raise FedcladeError(f"{clients} clients but {dataset.n_train} training rows: give at most {dataset.n_train}")
    elif chosen.name in ("rotation", "non-iid-3") and (dataset.x.ndim != 4 or len(set(dataset.x.shape[2:])) > 1):
        raise FedcladeError(f"split {chosen.name!r} turns square images, not rows of {shape}: take another split")


def _dealt(dataset: Dataset, counts: np.ndarray, seed: int) -> list[np.ndarray]:
    """The training rows of each client, by these counts."""
    rng = stream(seed, "split rows")
    holder = np.full(dataset.n_train, -1)
    for label, wanted in enumerate(counts.T):
        rows = rng.permutation(np.flatnonzero(dataset.y[: dataset.n_train] == label))
        holder[rows[: wanted.sum()]] = np.repeat(np.arange(len(counts)), wanted)
    return _rows_by(holder, len(counts))


def _rows_by(holder: np.ndarray, holders: int) -> list[np.ndarray]:
    """The row numbers of holder 0, 1, ..., each in ascending order; a row with holder -1 is nobody's."""
    order = np.argsort(holder, kind="stable").astype(np.int32)
    return np.split(order, np.searchsorted(holder[order], np.arange(holders + 1)))[1:-1]


def _turned(dataset: Dataset, turns: Sequence[int], clients: Sequence[Client]) -> tuple[np.ndarray, np.ndarray]:
    """The pool with every client's images turned, and the test rows once for each group, one group after the other."""
    n_train, n_test = dataset.n_train, len(dataset.y) - dataset.n_train
    x = np.empty((n_train + len(turns) * n_test, *dataset.x.shape[1:]), dtype=dataset.x.dtype)
    x[:n_train] = dataset.x[:n_train]
    for group, quarters in enumerate(turns):
        mine = np.concatenate([client.train for client in clients if client.group == group])
        first = n_train + group * n_test
        x[mine] = np.rot90(dataset.x[mine], quarters, axes=(2, 3))
        x[first : first + n_test] = np.rot90(dataset.x[n_train:], quarters, axes=(2, 3))
    return x, np.concatenate([dataset.y[:n_train], np.tile(dataset.y[n_train:], len(turns))])


def _natural(dataset: Dataset, clients: int | None, seed: int, test_view: str | None) -> Federation:
    """Owners as clients. One who has a single row and would have to hold it out is left out."""
    assert dataset.owner is not None
    train, test = (_rows_by(part, len(dataset.owners)) for part in np.split(dataset.owner, [dataset.n_train]))
    owners = [
        Client(name, train[number], test[number] + np.int32(dataset.n_train))
        for number, name in enumerate(dataset.owners)
    ]
    holds_out = {owner.name for owner in owners if test_view == "holdout" or (not test_view and not len(owner.test))}
    usable = [owner for owner in owners if len(owner.train) > (owner.name in holds_out)]
    if clients is not None and clients > len(usable):
        raise FedcladeError(f"{clients} clients but {len(usable)} owners with enough rows: give at most {len(usable)}")
    richest = {owner.name for owner in sorted(usable, key=lambda owner: -len(owner.train))[:clients]}
    hands = [owner for owner in usable if owner.name in richest]

    if test_view in (None, "holdout"):
        tested = [_held_out(hand, dataset.y, seed, in_order=True) if hand.name in holds_out else hand for hand in hands]
    else:
        tested = _tested(hands, dataset, str(test_view), seed, by_group=False)
    return Federation(dataset.x, dataset.y, tuple(tested), dataset.classes, dataset.name, "natural")


# --- test views -------------------------------------------------------------------------------------------------------


def _tested(hands: Sequence[Client], dataset: Dataset, view: str, seed: int, by_group: bool) -> list[Client]:
    """The clients with the test rows of a view; `by_group`: each group has its own copy of the test rows."""
    if view == "holdout":
        return [_held_out(client, dataset.y, seed, in_order=False) for client in hands]
    test_y = dataset.y[dataset.n_train :]
    shared: dict[tuple[bytes, int], np.ndarray] = {}  # clients with equal views share one array
    tested = []
    for client in hands:
        first = dataset.n_train + (len(test_y) * (client.group or 0) if by_group else 0)
        counts = np.bincount(dataset.y[client.train], minlength=dataset.n_classes)
        if not counts[test_y].any():
            labels = listed(dataset.classes[label] for label in np.flatnonzero(counts))
            raise FedcladeError(f"no test row has a label of {client.name!r} ({labels}): use the test view 'holdout'")
        if view == "proportional":
            rng = stream(seed, "proportional", client.name)
            test = (first + _in_proportion(counts, test_y, dataset.n_train, rng)).astype(np.int32)
        else:
            key = ((counts > 0).tobytes(), first)
            if key not in shared:
                shared[key] = (first + np.flatnonzero(counts[test_y])).astype(np.int32)
            test = shared[key]
        tested.append(replace(client, test=test))
    return tested


def _in_proportion(counts: np.ndarray, test_y: np.ndarray, n_train: int, rng: np.random.Generator) -> np.ndarray:
    """Positions among the test rows, in the proportions of a client's label counts."""
    there = np.bincount(test_y, minlength=len(counts))
    wanted = np.where(there > 0, counts, 0)
    fair = wanted.sum() * len(test_y) / n_train
    possible = wanted.sum() * np.min(there[wanted > 0] / wanted[wanted > 0])
    drawn = apportion(max(1, int(min(fair, possible) + 1e-9)), wanted, rng.random())
    rows = [rng.permutation(np.flatnonzero(test_y == label))[: drawn[label]] for label in np.flatnonzero(drawn)]
    return np.sort(np.concatenate(rows))


def _held_out(client: Client, y: np.ndarray, seed: int, in_order: bool) -> Client:
    """The client with a fifth of its rows, of every label alike, set aside for testing.

    They are drawn at random, or are the last of each label where rows stand in the order of time: neighbouring rows of
    a sensor are almost copies, and must not stand on both sides.
    """
    if len(client.train) < 2:
        raise FedcladeError(
            f"client {client.name!r} has one row, so none can be held out to test it: use fewer clients"
        )
    rng = stream(seed, "holdout", client.name)
    rows = client.train if in_order else rng.permutation(client.train)
    aside = apportion(max(1, len(rows) // HOLDOUT), np.bincount(y[rows]), rng.random())
    test = np.concatenate([rows[y[rows] == label][-aside[label] :] for label in np.flatnonzero(aside)])
    return replace(client, train=np.setdiff1d(rows, test), test=np.sort(test))
