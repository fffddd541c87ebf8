"""Do clients differ, in what, and in how many groups? Two halves of each client's rows tell.

Every client tells the same statistics of each half of its rows, a and b (clients, numbers). What is real repeats itself
in both halves; the noise of the halves is independent, so products of a and b are free of it.

1. *Do clients differ?* t = sum_i <a_i, b_i>, centred over clients and scaled so that all noise is of one size. If
   clients are alike, all halves may be paired in any way, which gives the null of t whatever the dimension. Counts of
   labels are tested as such: tables of the same margins are the null. The p-value is corrected for the number of
   views, so that clients that are alike are split with a chance of at most `ALPHA`.
2. *Where?* The layers of a view are added up, each in units of its noise and weighted by how far it is from that null.
3. *How many groups?* Ward's tree of the halves' means is cut further as long as the next cuts explain more than those
   of *clouds* would: inside each cluster so far, points of the very same spectrum, turned at random.
4. *Are they groups?* Clearness: what the clusters explain beyond what those of one cloud would, as a share of what the
   latter leave; 1: members of a cluster do not differ; 0: a cloud. Below `CLEAR`, all stay one cluster. So they do
   where clients differ for sure, but by less than matters (`View.least`).
5. Of several views that show groups the clearest counts; the others are looked at inside its clusters.

A view may be seen in several *pictures* (shares of labels, which labels are there at all): they are tested together,
and of those in which clients differ the first counts unless another is much clearer.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from fedclade.clustering.labels import in_order

ALPHA = 0.02  # the chance to split clients that are alike
BETA = 0.01  # the chance to cut a cloud further
CLEAR = 0.2  # from here on clusters are more than pieces of a cloud
CLEARER = 0.5  # the same inside clusters that another view has shown
CLEARLY = 0.1  # by which another picture must be clearer than the first
PRUNE = 0.05  # the chance to look for more clusters where members are alike
GAIN = 0.02  # by which more clusters must be clearer
COMPLETE = 0.98  # of the real spread: nothing is left to explain
MOST = 50  # clusters
MANY = 200  # clients, whose trees take time: fewer clouds do
MANY_ROWS = 20_000_000  # of all clients, above which tables of counts are not drawn
AT_ONCE = 20_000_000  # numbers of drawn tables

K = TypeVar("K", bound=Hashable)
Pair = tuple[np.ndarray, np.ndarray]  # the statistics of both halves, (clients, numbers) each
Layers = Mapping[str, Pair]


@dataclass(frozen=True)
class View:
    """One thing that clients can differ in."""

    pictures: Mapping[str, Layers]
    noise: np.ndarray  # (clients, halves): the variance of the halves' noise, up to a factor
    counts: np.ndarray | None = None  # (clients, classes), where shares of rows are seen: the test is exact then
    least: float = 0.0  # the spread of clients in the first picture from which on it can matter to a model

    def of(self, members: np.ndarray) -> "View":
        """The same of some clients."""
        pictures = {
            picture: {layer: (a[members], b[members]) for layer, (a, b) in layers.items()}
            for picture, layers in self.pictures.items()
        }
        counts = None if self.counts is None else self.counts[members]
        return View(pictures, self.noise[members], counts, self.least)

    @property
    def spread(self) -> float:
        """How far clients are from their mean in the first picture, root mean square, free of the halves' noise."""
        products = [np.trace(Halves.of(*pair).ab) for pair in next(iter(self.pictures.values())).values()]
        return float(np.sqrt(max(sum(products), 0.0) / max(len(self.noise) - 1, 1)))


@dataclass(frozen=True)
class How:
    """How sure one must be, and how many draws that is judged by."""

    level: float  # the chance to find that clients differ in one view although they are alike
    beta: float
    n_permutations: int
    n_clouds: int
    slack: float | None = None


@dataclass(frozen=True)
class Step:
    """From some clusters to more of them."""

    n_clusters: int
    beyond: float  # standard deviations above what clouds give
    needed: float
    p: float


@dataclass(frozen=True)
class Look:
    """What one picture shows."""

    picture: str
    p: float  # of clients being alike
    z: Mapping[str, float]  # how far each layer is from that
    weights: Mapping[str, float]  # what each layer counts: shares of 1
    scales: Mapping[str, float]  # by which squares of each layer were multiplied for that
    reliability: float  # the share of the spread between clients that is real
    labels: np.ndarray
    explained: Mapping[int, float] = field(default_factory=dict)  # of the real spread, by number of clusters
    usual: Mapping[int, float] = field(default_factory=dict)  # what cuts of one cloud explain
    steps: tuple[Step, ...] = ()
    clearness: float = 0.0
    merges: np.ndarray = field(default_factory=lambda: np.empty((0, 4)))
    products: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))  # of the halves' means, centred
    matters: bool = True  # clients differ by enough for groups to be of use

    @property
    def n_clusters(self) -> int:
        return int(self.labels.max(initial=0)) + 1


@dataclass(frozen=True)
class Evidence:
    """The answer."""

    labels: np.ndarray
    why: str  # "alike", "no clear groups", "groups"
    p: float  # of all clients being alike
    views: tuple[str, ...]  # what the clusters were found by, the clearest first
    looks: Mapping[str, Look]  # the clearest picture of each view
    margins: np.ndarray  # how much nearer each client is to its cluster than to the next: 0 to 1

    @property
    def n_clusters(self) -> int:
        return int(self.labels.max(initial=0)) + 1


def find_groups(
    views: Mapping[str, View],
    seed: int = 0,
    *,
    alpha: float = ALPHA,
    beta: float = BETA,
    clear: float = CLEAR,
    n_permutations: int = 999,
    n_clouds: int | None = None,
    slack: float | None = None,
) -> Evidence:
    """The clusters of clients, from both halves' statistics in every view.

    A step goes to the fewest clusters that explain more than clouds; with `slack`, to the fewest of which it is almost
    as sure (so many standard deviations) as of any.
    """
    random = np.random.default_rng(seed)
    n = len(next(iter(views.values())).noise)
    n_clouds = n_clouds or (199 if n <= MANY else 99)
    how = How(alpha / max(len(views), 1), beta, n_permutations, n_clouds, slack)
    looks = {name: clearest(view, random, how) for name, view in views.items()}
    one = np.zeros(n, np.int64)
    p = min(1.0, len(views) * min(look.p for look in looks.values()))
    if p > alpha or n < 4:
        return Evidence(one, "alike", p, (), looks, np.ones(n))
    grouped = sorted((v for v, look in looks.items() if look.clearness >= clear), key=lambda v: -looks[v].clearness)
    if not grouped:
        return Evidence(one, "no clear groups", p, (), looks, np.ones(n))
    labels, used = looks[grouped[0]].labels, [grouped[0]]
    for name in [name for name in views if name != grouped[0]]:
        finer = _inside(labels, views[name], random, how)
        if finer.max() > labels.max():
            labels, used = finer, [*used, name]
    seen = [looks[name].products for name in used if len(looks[name].products)]
    margins = margins_of(np.sum([products / max(np.trace(products), 1e-300) for products in seen], axis=0), labels)
    return Evidence(in_order(labels), "groups", p, tuple(used), looks, margins)


def _inside(labels: np.ndarray, view: View, random: np.random.Generator, how: How) -> np.ndarray:
    """Clusters divided further where another view shows groups in them."""
    finer = labels * (len(labels) + 1)
    for cluster in range(labels.max() + 1):
        members = np.flatnonzero(labels == cluster)
        if len(members) < 4:
            continue
        look = clearest(view.of(members), random, how)
        if look.clearness >= CLEARER:
            finer[members] += look.labels
    return in_order(finer)


def clearest(view: View, random: np.random.Generator, how: How) -> Look:
    """The first picture, unless another shows groups much more clearly; they are tested together, and noise that looks
    like groups in a picture of which nobody is sure does not count."""
    every = {(picture, name): pair for picture, layers in view.pictures.items() for name, pair in layers.items()}
    z, null, spread = differ(every, view.noise, random, how.n_permutations)
    ps = {picture: p_value(max(z[picture, name] for name in layers), null) for picture, layers in view.pictures.items()}
    if view.counts is not None:  # tables of the same margins tell more, of all pictures
        ps = dict.fromkeys(ps, counts_differ(view.counts, random, how.n_permutations))
    looks = []
    for picture, layers in view.pictures.items():
        far, noise = ({name: of[picture, name] for name in layers} for of in (z, spread))
        matters = view.spread >= view.least
        look = look_at(picture, layers, view.noise, ps[picture], far, noise, random, how, matters)
        looks.append(replace(look, p=min(ps.values())))
    return max(looks, key=lambda look: look.clearness + CLEARLY * (look is looks[0]))


def look_at(
    picture: str,
    layers: Layers,
    variances: np.ndarray,
    p: float,
    z: Mapping[str, float],
    spread: Mapping[str, float],
    random: np.random.Generator,
    how: How,
    matters: bool = True,
) -> Look:
    """Steps 2 to 4 for one picture; of one that does not matter, step 2."""
    halves = {name: Halves.of(*pair) for name, pair in layers.items()}
    counts = {name: max(z[name], 0.0) ** 2 / spread[name] if spread[name] > 0 else 0.0 for name in halves}
    counts = counts if any(counts.values()) else dict.fromkeys(halves, 1.0)
    ab, mean = (sum(counts[name] * getattr(one, part) for name, one in halves.items()) for part in ("ab", "mean"))
    shares = {name: counts[name] * np.trace(one.mean) for name, one in halves.items()}
    total = sum(shares.values()) or 1.0
    weights = {name: float(share / total) for name, share in shares.items()}
    reliability = float(np.trace(ab) / max(np.trace(mean), 1e-300))
    n = len(mean)
    most = min(n // 2, MOST)
    if p > how.level or most < 2 or reliability <= 0 or not matters:
        return Look(picture, p, z, weights, counts, reliability, np.zeros(n, np.int64), matters=matters)
    tree = ward(mean)
    curve = {1: 0.0} | {c: explained(ab, cut(tree, c)) for c in range(2, most + 1)}
    steps: list[Step] = []
    k, clearness = 1, 0.0
    usual: dict[int, float] = {}
    every = np.zeros((2 * n, 2 * n))
    for name, one in halves.items():
        every += counts[name] * one.every
    while k < most and alike_inside(every, variances, cut(tree, k), random) <= PRUNE:
        step, means = next_step(tree, mean, k, most, random, how)
        usual = usual or means
        if step is None:
            break
        # Of all cuts up to there, the first that is no less clear than the next.
        cuts = range(k + 1, step.n_clusters + 1)
        clear = {c: min((curve[c] - usual[c]) / max(1 - usual[c], 1e-9), 1.0) for c in cuts}
        enough = COMPLETE if how.slack is not None else np.inf  # the fewest clusters need no such stop
        to = next(c for c in cuts if c == step.n_clusters or clear[c] >= clear[c + 1] - GAIN or curve[c] >= enough)
        if steps and clear[to] < clearness + GAIN:
            break
        steps, k, clearness = [*steps, replace(step, n_clusters=to)], to, clear[to]
    labels = cut(tree, k)
    return Look(
        picture, p, z, weights, counts, reliability, labels, curve, usual, tuple(steps), float(clearness), tree, mean
    )  # fmt: skip


@dataclass(frozen=True)
class Halves:
    """The products of all clients' statistics of one layer, centred over clients."""

    aa: np.ndarray
    ab: np.ndarray
    bb: np.ndarray

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray) -> "Halves":
        a, b = (half.astype(np.float64) - half.mean(axis=0, dtype=np.float64) for half in (a, b))
        return cls(a @ a.T, a @ b.T, b @ b.T)

    @property
    def every(self) -> np.ndarray:
        """(halves, halves): of all halves, the first ones of all clients, then the second ones."""
        return np.block([[self.aa, self.ab], [self.ab.T, self.bb]])

    @property
    def mean(self) -> np.ndarray:
        """Of the means of both halves."""
        return (self.aa + self.ab + self.ab.T + self.bb) / 4


def differ(
    layers: Mapping[K, Pair], noise: np.ndarray, random: np.random.Generator, n: int
) -> tuple[dict[K, float], np.ndarray, dict[K, float]]:
    """How far each layer is from clients being alike in all of them, how far the farthest is if they are (drawn n
    times, after what was seen), and the noise of each."""
    count = 2 * len(noise)
    pairings = np.array([np.arange(count), *(random.permutation(count) for _ in range(n))]).reshape(n + 1, -1, 2)
    sure = 1 / np.maximum(noise, 1e-300).reshape(-1, 1)  # (halves of all clients, 1)
    scores = np.empty((len(layers), n + 1))
    for row, (a, b) in zip(scores, layers.values(), strict=True):
        halves = np.stack([a, b], axis=1).reshape(count, -1).astype(np.float64)
        halves = (halves - (sure * halves).sum(0) / sure.sum()) * np.sqrt(sure)
        row[:] = (halves @ halves.T)[pairings[..., 0], pairings[..., 1]].sum(axis=1)
    spread = scores.std(axis=1)
    z = (scores - scores.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1.0)[:, None]
    seen, noise_of = (dict(zip(layers, values.tolist(), strict=True)) for values in (z[:, 0], spread))
    return seen, z.max(axis=0), noise_of


def p_value(seen: float, null: np.ndarray) -> float:
    """Among draws of which what was seen, or what is beyond it, is one."""
    return float((null >= seen - 1e-9).mean())


def counts_differ(counts: np.ndarray, random: np.random.Generator, n: int) -> float:
    """The p-value of all clients drawing from the same classes: Pearson's statistic among tables of equal margins."""
    table = counts[:, counts.sum(axis=0) > 0].astype(np.int64)
    if len(table) < 2 or table.shape[1] < 2:
        return 1.0
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    expected = np.outer(rows, columns) / rows.sum()
    from scipy.stats import chi2, random_table

    def statistic(tables: np.ndarray) -> np.ndarray:
        return np.asarray(((tables - expected) ** 2 / expected).sum(axis=(-2, -1)))

    seen = statistic(table)
    if rows.sum() > MANY_ROWS:  # its distribution is known then, and drawing would take too much
        return float(chi2.sf(seen, (len(rows) - 1) * (len(columns) - 1)))
    tables = random_table(rows, columns, seed=random)
    at_once = max(AT_ONCE // table.size, 1)
    null = np.concatenate([statistic(tables.rvs(size=min(at_once, n - done))) for done in range(0, n, at_once)])
    return float((1 + (null >= seen * (1 - 1e-12)).sum()) / (n + 1))


def next_step(
    tree: np.ndarray, products: np.ndarray, k: int, most: int, random: np.random.Generator, how: How
) -> tuple[Step | None, dict[int, float]]:
    """More clusters than k that explain more than clouds inside the k would, as `find_groups` says which; and what
    those explain."""
    labels = cut(tree, k)
    parts = [products[np.ix_(members, members)] for members in (np.flatnonzero(labels == c) for c in range(k))]
    spectra = [spectrum(part) for part in parts if len(part) > 1]
    seen = np.cumsum(gains(tree)[k - 1 : most - 1])
    clouds = np.empty((how.n_clouds, len(seen)))
    for cloud in clouds:
        inside = np.sort(np.concatenate([gains(ward(turned(values, random))) for values in spectra]))[::-1]
        cloud[:] = np.cumsum(inside[: len(seen)])
    scale = np.maximum(clouds.std(0), 1e-9 * np.trace(products))
    beyond = (seen - clouds.mean(0)) / scale
    tops = ((clouds - clouds.mean(0)) / scale).max(1)
    needed = float(np.sort(tops)[::-1][int(how.beta * (how.n_clouds + 1)) - 1])
    means = dict(zip(range(k + 1, most + 1), (clouds.mean(0) / np.trace(products)).tolist(), strict=True))
    far = np.flatnonzero(beyond > needed)
    if not len(far):
        return None, means
    first = int(far[0] if how.slack is None else np.argmax(beyond >= beyond.max() - how.slack))
    p = float((1 + (tops >= beyond[first]).sum()) / (how.n_clouds + 1))
    return Step(k + 1 + first, float(beyond[first]), needed, p), means


def alike_inside(
    products: np.ndarray, noise: np.ndarray, labels: np.ndarray, random: np.random.Generator, n: int = 199
) -> float:
    """The p-value of the members of each cluster being alike: the halves are dealt anew inside clusters.

    Their products are taken around the cluster's mean, and scaled so that all noise is of one size.
    """
    sure, both = (1 / np.maximum(noise, 1e-300)).T.reshape(-1), np.tile(labels, 2)
    same = (both[:, None] == both) * sure
    means = same / same.sum(axis=1, keepdims=True)
    centred = products - means @ products
    centred = (centred - centred @ means.T) * np.sqrt(sure[:, None] * sure)
    ab = centred[: len(labels), len(labels) :]
    order = np.argsort(labels, kind="stable")
    seen, count = np.trace(ab), 1
    for _ in range(n):
        dealt = np.empty_like(order)
        dealt[order] = order[np.lexsort((random.random(len(order)), labels[order]))]
        count += ab[np.arange(len(order)), dealt].sum() >= seen
    return count / (n + 1)


def spectrum(products: np.ndarray) -> np.ndarray:
    """Of points around their mean: one value less than points."""
    centred = products - products.mean(0) - products.mean(1)[:, None] + products.mean()
    return np.maximum(np.linalg.eigvalsh(centred)[1:], 0.0)


def turned(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The products of a cloud of points of this spectrum, turned at random around their mean."""
    n = len(values) + 1
    keep = values > 1e-9 * values.max(initial=0.0)
    values = values[keep]
    points = random.normal(size=(n, len(values)))
    points = np.linalg.qr(points - points.mean(0))[0]
    return (points * values) @ points.T


def ward(products: np.ndarray) -> np.ndarray:
    squares = np.diag(products)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - products - products.T, 0.0))
    np.fill_diagonal(distances, 0.0)
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return linkage(squareform(distances, checks=False), "ward")


def gains(tree: np.ndarray) -> np.ndarray:
    """What each cut adds to the sum of squares between clusters, the first one first."""
    return tree[::-1, 2] ** 2 / 2


def cut(tree: np.ndarray, k: int) -> np.ndarray:
    from scipy.cluster.hierarchy import fcluster

    return in_order(fcluster(tree, k, "maxclust"))


def explained(ab: np.ndarray, labels: np.ndarray) -> float:
    """The share of the real spread between clients that lies between clusters."""
    if labels.max() == 0:
        return 0.0

    def real(members: np.ndarray) -> float:
        n, part = len(members), ab[np.ix_(members, members)]
        return float((np.trace(part) - part.sum() / n) * n / (n - 1)) if n > 1 else 0.0

    inside = sum(real(np.flatnonzero(labels == k)) for k in range(labels.max() + 1))
    return 1 - inside / real(np.arange(len(labels)))


def margins_of(products: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How much nearer each client is to the mean of its cluster than to that of the next one: 1 - near / next."""
    if labels.max() == 0:
        return np.ones(len(labels))
    members = (labels[:, None] == np.arange(labels.max() + 1)).astype(float)
    sizes = members.sum(0)
    squares, to = np.diag(products), products @ members / sizes
    means = np.einsum("ik,ij,jk->k", members, products, members) / sizes**2
    far = np.sqrt(np.maximum(squares[:, None] - 2 * to + means, 0.0))
    own = far[np.arange(len(labels)), labels]
    far[np.arange(len(labels)), labels] = np.inf
    return np.clip(1 - own / np.maximum(far.min(1), 1e-300), 0.0, 1.0)


__all__ = ["ALPHA", "BETA", "CLEAR", "Evidence", "Look", "Step", "find_groups"]
