"""Splits: every row has one owner, counts are the papers', test rows are the client's own kind."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedclade.data.federation import Dataset, Federation
from fedclade.data.partition import TEST_VIEWS, partition, splits
from fedclade.data.partition.allocation import apportion
from fedclade.errors import FedcladeError

DEALT = [entry.example for entry in splits().values() if entry.name != "natural"]
FLAT = [spec for spec in DEALT if spec not in ("rotation:4", "non-iid-3")]


def images(per_class: int = 60, tests_per_class: int = 12, classes: int = 10, channels: int = 1) -> Dataset:
    """Small images, all different, in shuffled order: the first training, then test rows."""
    rng = np.random.default_rng(7)
    parts = [rng.permutation(np.repeat(np.arange(classes), each)) for each in (per_class, tests_per_class)]
    y = np.concatenate(parts)
    x = rng.integers(0, 256, (len(y), channels, 4, 4), dtype=np.uint8)
    return Dataset("toy", x, y, len(parts[0]), tuple(f"c{label}" for label in range(classes)))


def owned_rows(train: list[int], test: list[int]) -> Dataset:
    """People `p0`, `p1`, ... with so many training and test rows, labels 0 and 1 in turn, rows in order of time."""
    owner = np.concatenate([np.repeat(np.arange(len(part)), part) for part in (train, test)])
    y = np.arange(len(owner)) % 2
    x = np.arange(len(owner) * 3, dtype=np.float32).reshape(-1, 3)
    return Dataset("people", x, y, sum(train), ("a", "b"), owner, tuple(f"p{n}" for n in range(len(train))))


def train_rows(federation: Federation) -> np.ndarray:
    return np.concatenate([client.train for client in federation.clients])


# --- what holds for every split ---------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from(DEALT),
    clients=st.integers(10, 40),
    seed=st.integers(0, 2**32),
    view=st.sampled_from([None, *TEST_VIEWS]),
    channels=st.sampled_from([1, 3]),
)
def test_every_split_deals_fairly(spec: str, clients: int, seed: int, view: str | None, channels: int) -> None:
    data = images(channels=channels)
    federation = partition(data, spec, clients, seed, view)
    assert federation.names == tuple(f"client-{number:03}" for number in range(clients))
    rows = train_rows(federation)
    assert len(np.unique(rows)) == len(rows)  # no row has two owners
    assert rows.max() < data.n_train
    np.testing.assert_array_equal(federation.y[: len(data.y)], data.y)
    for client in federation.clients:
        assert client.train.dtype == client.test.dtype == np.int32
        labels, tested = np.unique(data.y[client.train]), np.unique(federation.y[client.test])
        assert len(np.intersect1d(client.train, client.test)) == 0
        if view == "holdout":
            assert client.test.max() < data.n_train
            assert len(client.test) == max(1, (len(client.train) + len(client.test)) // 5)
        else:
            assert client.test.min() >= data.n_train
            assert set(tested) <= set(labels)
    again = partition(data, spec, clients, seed, view)
    for one, other in zip(federation.clients, again.clients, strict=True):
        np.testing.assert_array_equal(one.train, other.train)
        np.testing.assert_array_equal(one.test, other.test)
        assert one.group == other.group


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from(["iid", "dirichlet:0.05", "label-skew:0.3", "shards:2", "non-iid-1", "adacfl-b"]),
    sizes=st.lists(st.integers(40, 90), min_size=4, max_size=12),
    clients=st.integers(12, 20),
    seed=st.integers(0, 99),
)
def test_unbalanced_labels_are_dealt_out_to_the_last_row(spec: str, sizes: list[int], clients: int, seed: int) -> None:
    y = np.repeat(np.arange(len(sizes)), sizes)
    data = Dataset("toy", np.zeros((len(y), 2), np.float32), y, len(y), tuple(map(str, range(len(sizes)))))
    federation = partition(data, spec, clients, seed)  # no test rows: a holdout
    held = np.concatenate([client.test for client in federation.clients])
    np.testing.assert_array_equal(np.sort(np.concatenate([train_rows(federation), held])), np.arange(len(y)))


@pytest.mark.parametrize("spec", DEALT)
def test_seeds_differ(spec: str) -> None:
    one, other = (train_rows(partition(images(), spec, 20, seed)) for seed in (0, 1))
    assert one.tobytes() != other.tobytes()


@pytest.mark.parametrize("spec", [*DEALT, "dirichlet:0.000001"])
def test_a_thousand_clients_are_light(spec: str) -> None:
    data = images(per_class=2000, tests_per_class=200)
    federation = partition(data, spec, 1000)
    assert len(federation) == 1000
    assert min(len(client.train) for client in federation.clients) >= 1
    assert sum({id(client.test): client.test.nbytes for client in federation.clients}.values()) < 10e6


@pytest.mark.parametrize("spec", FLAT)
def test_rows_are_not_copied(spec: str) -> None:
    data = images()
    assert partition(data, spec, 20).x is data.x


def test_where_rows_are_few_clients_share_them() -> None:
    for seed in range(30):
        y = np.repeat(np.arange(4), [31, 13, 12, 16])
        data = Dataset("toy", np.zeros((len(y), 2), np.float32), y, len(y) - 4, tuple("abcd"))
        assert partition(data, "non-iid-1", 12, seed, "holdout").label_counts().sum(axis=1).min() >= 1


def test_names_grow_with_the_number_of_clients() -> None:
    federation = partition(images(per_class=200), "iid", 1001)
    assert federation.names[0] == "client-0000"
    assert (federation.data, federation.split) == ("toy", "iid")


@given(
    total=st.integers(0, 1000),
    weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=20).filter(any),
    offset=st.floats(0, 1, exclude_max=True),
)
def test_apportion_is_exact_and_within_one_of_the_quota(total: int, weights: list[float], offset: float) -> None:
    parts = apportion(total, np.array(weights), offset)
    quota = total * np.array(weights) / sum(weights)
    assert parts.sum() == total
    assert (np.abs(parts - quota) < 1 + 1e-9).all()
    assert (parts[np.array(weights) == 0] == 0).all()


# --- each split, by its paper -----------------------------------------------------------------------------------------


def test_iid_is_one_group_of_equal_clients() -> None:
    federation = partition(images(per_class=61), "iid", 7)
    assert np.ptp(federation.label_counts().sum(axis=1)) <= 1
    assert set(federation.groups.values()) == {0}
    assert len({id(client.test) for client in federation.clients}) == 1  # equal views, one array


@settings(max_examples=10, deadline=None)
@given(alpha=st.sampled_from([1e-9, 0.01, 0.1, 1, 1000]), clients=st.integers(1, 60), seed=st.integers(0, 99))
def test_dirichlet_uses_every_row_and_leaves_nobody_short(alpha: float, clients: int, seed: int) -> None:
    federation = partition(images(), f"dirichlet:{alpha}", clients, seed)
    counts = federation.label_counts()
    np.testing.assert_array_equal(counts.sum(axis=0), 60)
    assert counts.sum(axis=1).min() >= 10
    assert federation.groups is None


def test_dirichlet_gives_everybody_a_row_where_there_is_one_each() -> None:
    assert (partition(images(per_class=3), "dirichlet:0.01", 30).label_counts().sum(axis=1) == 1).all()


def test_a_small_alpha_makes_clients_unlike() -> None:
    labels = [(partition(images(), f"dirichlet:{alpha}", 10).label_counts() > 0).sum() for alpha in (0.05, 100)]
    assert labels[0] < 50
    assert labels[1] == 100


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), clients=st.integers(10, 60))
def test_label_skew_20_percent_of_ten_is_two_labels(seed: int, clients: int) -> None:
    federation = partition(images(), "label-skew:0.2", clients, seed)
    held = federation.label_counts() > 0
    assert (held.sum(axis=1) == 2).all()
    assert all(held[number, number % 10] for number in range(clients))
    for counts in federation.label_counts().T:  # owners share a label's rows equally
        assert counts.sum() == 60
        assert np.ptp(counts[counts > 0]) <= 1
    for one, a in zip(federation.clients, held, strict=True):
        for other, b in zip(federation.clients, held, strict=True):
            assert (one.group == other.group) == (a == b).all()


@pytest.mark.parametrize(
    ("fraction", "classes", "labels"), [("0.3", 10, 3), ("0.2", 100, 20), ("0.01", 10, 1), ("1", 10, 10)]
)
def test_label_skew_counts_labels(fraction: str, classes: int, labels: int) -> None:
    federation = partition(images(classes=classes), f"label-skew:{fraction}", classes)
    assert ((federation.label_counts() > 0).sum(axis=1) == labels).all()


def test_shards_are_few_labels_and_equal_sizes() -> None:
    federation = partition(images(), "shards:2", 20)
    counts = federation.label_counts()
    assert (counts.sum(axis=1) == 30).all()
    assert (counts > 0).sum(axis=1).max() <= 2  # 15 rows divide the 60 of a label
    assert federation.groups is None


def test_label_groups_are_disjoint() -> None:
    federation = partition(images(), "label-groups:4", 10)
    held = federation.label_counts() > 0
    labels = {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7], 3: [8, 9]}
    for client, mine in zip(federation.clients, held, strict=True):
        assert np.flatnonzero(mine).tolist() == labels[client.group]
    assert np.bincount(list(federation.groups.values())).tolist() == [3, 2, 3, 2]
    np.testing.assert_array_equal(federation.label_counts().sum(axis=0), 60)


def test_label_groups_without_alpha_are_what_they_always_were() -> None:
    assert partition(images(), "label-groups:2", 4).label_counts().tolist() == [
        [27, 31, 30, 38, 24, 0, 0, 0, 0, 0],
        [33, 29, 30, 22, 36, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 33, 35, 29, 25, 28],
        [0, 0, 0, 0, 0, 27, 25, 31, 35, 32],
    ]


@pytest.mark.parametrize("seed", range(3))
def test_label_groups_with_alpha_vary_inside_and_stay_disjoint(seed: int) -> None:
    federation = partition(images(per_class=600), "label-groups:2:1", 10, seed)
    counts, group = federation.label_counts(), np.array(list(federation.groups.values()))
    assert group.tolist() == [0] * 5 + [1] * 5
    np.testing.assert_array_equal(counts[:5].sum(axis=0), [600] * 5 + [0] * 5)
    np.testing.assert_array_equal(counts[5:].sum(axis=0), [0] * 5 + [600] * 5)
    assert min(np.ptp(counts[:5].sum(axis=1)), np.ptp(counts[5:].sum(axis=1))) > 50


@pytest.mark.parametrize("seed", range(5))
def test_loners_have_sets_of_labels_of_their_own(seed: int) -> None:
    federation = partition(images(), "loners:4", 20, seed=seed)
    held = federation.label_counts() > 0
    group = np.array(list(federation.groups.values()))
    assert np.bincount(group).tolist() == [4, 4, 4, 4, 1, 1, 1, 1]
    assert all((held[group == number] == held[group == number][0]).all() for number in range(4))
    assert len(np.unique(held, axis=0)) == 8
    assert set(held[16:].sum(axis=1)) <= {2, 3, 4, 5}
    np.testing.assert_array_equal(federation.label_counts().sum(axis=0), 60)


@pytest.mark.parametrize("seed", range(5))
def test_unequal_groups_have_clients_of_very_unlike_sizes(seed: int) -> None:
    federation = partition(images(per_class=600), "unequal:4", 40, seed=seed)
    sizes = federation.label_counts().sum(axis=1)
    assert sizes.sum() == 6000
    assert sizes.min() >= 10
    assert sizes.max() > 10 * sizes.min()
    labels = {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7], 3: [8, 9]}
    for client, mine in zip(federation.clients, federation.label_counts() > 0, strict=True):
        assert set(np.flatnonzero(mine)) <= set(labels[client.group])


def test_non_iid_1_has_the_papers_label_ranges_and_unequal_sizes() -> None:
    federation = partition(images(per_class=600), "non-iid-1", 20)
    counts, group = federation.label_counts(), np.array(list(federation.groups.values()))
    for number, labels in enumerate((range(4), range(3, 7), range(4, 10), range(10))):
        members = counts[group == number]
        assert len(members) == 5
        assert np.flatnonzero(members.any(axis=0)).tolist() == list(labels)
        assert np.ptp(members.sum(axis=1)) > 50
    np.testing.assert_array_equal(counts.sum(axis=0), 600)
    zeros = [counts[group == number, 0].sum() for number in (0, 3)]  # two groups share label 0
    assert abs(zeros[0] - zeros[1]) <= 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("spec", ["non-iid-1", "non-iid-2:0.7", "non-iid-3"])
def test_hicfls_first_two_groups_share_all_clients(spec: str, channels: int) -> None:
    federation = partition(images(per_class=600, channels=channels), f"{spec}:1:2", 20)
    counts, group = federation.label_counts(), np.array(list(federation.groups.values()))
    assert group.tolist() == [0] * 10 + [1] * 10
    labels = [np.flatnonzero(counts[group == number].any(axis=0)).tolist() for number in (0, 1)]
    if spec == "non-iid-1":
        assert labels == [[0, 1, 2, 3], [3, 4, 5, 6]]
        assert counts.sum(axis=0).tolist() == [600] * 7 + [0] * 3
    elif spec == "non-iid-2:0.7":
        dominant = counts[np.arange(20), group]
        assert (np.abs(dominant - 0.7 * counts.sum(axis=1)) <= 0.5).all()
    else:
        assert labels == [list(range(10))] * 2
        assert counts.sum(axis=0).tolist() == [600] * 10


@pytest.mark.parametrize(("spec", "channels"), [("non-iid-1", 1), ("non-iid-2:0.7", 1), ("non-iid-3", 3)])
def test_all_four_groups_are_the_default(spec: str, channels: int) -> None:
    one, other = (partition(images(channels=channels), words, 20) for words in (spec, f"{spec}:1:4"))
    assert one.groups == other.groups
    assert train_rows(one).tobytes() == train_rows(other).tobytes()


@pytest.mark.parametrize(("spec", "members"), [("non-iid-1", 5), ("non-iid-2:0.5", 5), ("non-iid-3", 10)])
def test_members_are_the_more_alike_the_larger_alpha_is(spec: str, members: int) -> None:
    def unlike(alpha: str) -> float:
        """How far the label shares of a group's members lie apart: half of the L1 distance to their mean."""
        counts = np.concatenate(
            [partition(images(per_class=3000), f"{spec}{alpha}", 20, seed).label_counts() for seed in range(3)]
        )
        shares = (counts / counts.sum(axis=1, keepdims=True)).reshape(-1, members, 10)
        return float(np.abs(shares - shares.mean(axis=1, keepdims=True)).sum(axis=-1).mean() / 2)

    assert unlike(":1") == unlike("")  # the paper's
    assert unlike(":0.001") > 1.5 * unlike(":1") > 5 * unlike(":100")
    assert unlike(":1000000") < 0.01


@pytest.mark.parametrize("classes", [4, 6, 100])
def test_non_iid_1_scales_to_other_numbers_of_labels(classes: int) -> None:
    federation = partition(images(classes=classes), "non-iid-1", 8)
    counts, group = federation.label_counts(), np.array(list(federation.groups.values()))
    sets = {tuple(np.flatnonzero(counts[group == number].any(axis=0))) for number in range(4)}
    assert len(sets) == 4
    assert tuple(range(classes)) in sets


@settings(max_examples=20, deadline=None)
@given(fraction=st.sampled_from([0.3, 0.5, 0.7, 0.75, 1.0]), seed=st.integers(0, 99))
def test_non_iid_2_has_exact_dominant_fractions(fraction: float, seed: int) -> None:
    federation = partition(images(per_class=300), f"non-iid-2:{fraction}", 20, seed)
    sizes = federation.label_counts().sum(axis=1)
    for client, counts in zip(federation.clients, federation.label_counts(), strict=True):
        assert abs(counts[client.group] - fraction * counts.sum()) <= 0.5
    assert np.ptp(sizes) > 10
    assert sorted(federation.groups.values()) == sorted([0, 1, 2, 3] * 5)


@settings(max_examples=20, deadline=None)
@given(
    fraction=st.sampled_from([0.5, 0.8, 1.0]),
    clients=st.integers(10, 60),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
def test_adacfl_alpha_has_exact_dominant_fractions(fraction: float, clients: int, channels: int, seed: int) -> None:
    federation = partition(images(per_class=300, channels=channels), f"adacfl-alpha:{fraction}", clients, seed)
    counts = federation.label_counts()
    assert len(set(federation.groups.values())) == (5 if channels == 1 else 10)
    assert np.ptp(counts.sum(axis=1)) == 0
    for client, row in zip(federation.clients, counts, strict=True):
        assert abs(row[client.group] - fraction * row.sum()) <= 0.5
        assert np.ptp(np.delete(row, client.group)) <= 1  # the rest evenly
    tight = counts.sum(axis=0).max()
    assert 300 - tight <= 0.05 * 300 + clients  # clients are as large as the scarcest label allows


def test_adacfl_alpha_takes_a_number_of_groups() -> None:
    assert set(partition(images(), "adacfl-alpha:0.8:7", 20).groups.values()) == set(range(7))


def test_adacfl_b_is_ten_groups_of_neighbouring_pairs() -> None:
    federation = partition(images(), "adacfl-b", 100)
    for client, counts in zip(federation.clients, federation.label_counts(), strict=True):
        assert set(np.flatnonzero(counts)) == {client.group, (client.group + 1) % 10}
    assert np.bincount(list(federation.groups.values())).tolist() == [10] * 10
    np.testing.assert_array_equal(federation.label_counts().sum(axis=0), 60)


@pytest.mark.parametrize(
    ("spec", "channels", "turns"),
    [
        ("rotation:2", 3, (0, 2)),
        ("rotation:4", 1, (0, 1, 2, 3)),
        ("non-iid-3", 1, (0, 2)),
        ("non-iid-3", 3, (0, 1, 2, 3)),
        ("non-iid-3:1:2", 3, (0, 2)),
        ("non-iid-3:1:4", 1, (0, 1, 2, 3)),
    ],
)
def test_rotations_turn_training_and_test_rows_alike(spec: str, channels: int, turns: tuple[int, ...]) -> None:
    data = images(channels=channels)
    before = data.x.copy()
    federation = partition(data, spec, 12)
    np.testing.assert_array_equal(data.x, before)
    assert len(federation.x) == data.n_train + len(turns) * 120
    for client in federation.clients:
        quarters = turns[client.group]
        np.testing.assert_array_equal(federation.x[client.train], np.rot90(data.x[client.train], quarters, (2, 3)))
        source = (client.test - data.n_train) % 120 + data.n_train
        np.testing.assert_array_equal(federation.x[client.test], np.rot90(data.x[source], quarters, (2, 3)))
        np.testing.assert_array_equal(federation.y[client.test], data.y[source])
    assert np.bincount(list(federation.groups.values())).tolist() == [12 // len(turns)] * len(turns)


# --- test views -------------------------------------------------------------------------------------------------------


def test_label_support_is_all_test_rows_of_the_labels() -> None:
    data = images()
    for client in partition(data, "label-skew:0.2", 20).clients:
        wanted = np.isin(data.y, data.y[client.train])
        wanted[: data.n_train] = False
        np.testing.assert_array_equal(client.test, np.flatnonzero(wanted))


def test_proportional_keeps_the_proportions() -> None:
    data = images(per_class=600, tests_per_class=120)
    federation = partition(data, "adacfl-alpha:0.8", 20, test_view="proportional")
    for client in federation.clients:
        assert len(client.test) == len(client.train) // 5  # a fifth as many test rows as training rows, over all
        assert abs((data.y[client.test] == client.group).mean() - 0.8) < 1.5 / len(client.test)
        assert len(np.unique(client.test)) == len(client.test)


def test_proportional_stops_where_a_label_runs_out() -> None:
    y = np.array([0] * 50 + [1] * 50 + [0] * 2 + [1] * 98)
    data = Dataset("toy", np.zeros((200, 2), np.float32), y, 100, ("a", "b"))
    (client,) = partition(data, "iid", 1, test_view="proportional").clients
    assert np.bincount(y[client.test]).tolist() == [2, 2]


def test_a_label_nobody_tests_is_an_error_that_names_the_way_out() -> None:
    data = Dataset("toy", np.zeros((6, 2), np.float32), np.array([0, 0, 1, 1, 0, 0]), 4, ("a", "b"))
    with pytest.raises(FedcladeError, match="'client-001' \\(b\\): use the test view 'holdout'"):
        partition(data, "label-groups:2", 2)
    assert len(partition(data, "label-groups:2", 2, test_view="holdout")) == 2


# --- natural ----------------------------------------------------------------------------------------------------------


def test_natural_clients_are_owners_with_their_own_test_rows() -> None:
    data = owned_rows(train=[10, 0, 1, 6, 1], test=[4, 3, 2, 0, 0])
    federation = partition(data, "natural", None)
    assert federation.names == ("p0", "p2", "p3")  # p1 has nothing to train on, p4 one row and no tests
    assert federation["p0"].train.tolist() == list(range(10))
    assert federation["p0"].test.tolist() == [18, 19, 20, 21]
    assert federation["p3"].test.tolist() in ([15], [16])  # held out: the last in time of its label
    assert sorted([*federation["p3"].train, *federation["p3"].test]) == list(range(11, 17))
    assert federation.groups is None
    assert federation.x is data.x


def test_natural_holds_out_the_last_rows_of_each_label() -> None:
    federation = partition(owned_rows(train=[20, 40], test=[]), "natural", None)
    assert federation["p0"].test.tolist() == [16, 17, 18, 19]
    assert federation["p1"].test.tolist() == list(range(52, 60))


def test_natural_takes_the_owners_with_the_most_rows() -> None:
    data = owned_rows(train=[10, 30, 20, 30], test=[])
    assert partition(data, "natural", 2).names == ("p1", "p3")
    assert partition(data, "natural", 3).names == ("p1", "p2", "p3")
    with pytest.raises(FedcladeError, match="5 clients but 4 owners"):
        partition(data, "natural", 5)


@pytest.mark.parametrize("view", list(TEST_VIEWS))
def test_natural_takes_every_test_view(view: str) -> None:
    federation = partition(owned_rows(train=[10, 10], test=[0, 6]), "natural", None, test_view=view)
    assert all((client.test < 20).all() == (view == "holdout") for client in federation.clients)


# --- what people get wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "clients", "message"),
    [
        ("dirichlett:0.1", 10, "unknown split 'dirichlett': did you mean 'dirichlet'"),
        ("", 10, "unknown split ''"),
        ("dirichlet", 10, "lacks a number: write dirichlet:ALPHA, e.g. dirichlet:0.1"),
        ("dirichlet:", 10, "ALPHA is '': give a number above 0"),
        ("dirichlet:0", 10, "ALPHA is '0': give a number above 0"),
        ("dirichlet:-1", 10, "above 0"),
        ("dirichlet:nan", 10, "above 0"),
        ("dirichlet:inf", 10, "up to 1e+06"),
        ("dirichlet:much", 10, "ALPHA is 'much'"),
        ("iid:3", 10, "has a number too many: write iid, e.g. iid"),
        ("label-skew:0.2:3", 10, "has a number too many"),
        ("label-skew:1.5", 10, "a number above 0, up to 1"),
        ("shards:1.5", 10, "a whole number, 1 or more"),
        ("shards:0", 10, "a whole number, 1 or more"),
        ("shards:100", 10, "10 clients x 100 shards exceed 600 rows"),
        ("label-groups:11", 20, "needs 11 or more labels"),
        ("label-groups:4", 3, "has 4 groups but there are 3 clients"),
        ("loners:4:1", 20, "has 4 groups but there are 0 clients"),
        ("loners:2:0.9", 400, "has sets of labels for 313 loners, not 360"),
        ("unequal:11", 20, "needs 11 or more labels"),
        ("non-iid-1", 3, "has 4 groups but there are 3 clients"),
        ("non-iid-1:1:5", 20, "GROUPS is '5': give a whole number, 1 to 4, e.g. non-iid-1"),
        ("non-iid-1:1:0", 20, "a whole number, 1 to 4"),
        ("non-iid-2:0.7:1:1.5", 20, "a whole number, 1 to 4"),
        ("non-iid-2:0.7:1:2", 1, "has 2 groups but there are 1 clients"),
        ("non-iid-2:0.7:1:2:3", 20, "write non-iid-2:FRACTION[:ALPHA[:GROUPS]]"),
        ("non-iid-3:1:3", 20, "write non-iid-3:1:2 (0, 180 degrees) or non-iid-3:1:4 (0, 90, ...)"),
        ("non-iid-3:1:0", 20, "a whole number, 1 or more"),
        ("label-groups:2:0", 20, "ALPHA is '0': give a number above 0"),
        ("adacfl-b", 9, "has 10 groups but there are 9 clients: give 10 or more"),
        ("adacfl-alpha:0.8:11", 20, "needs 11 or more labels"),
        ("rotation:3", 10, "write rotation:2"),
        ("natural", None, "does not say who owns its rows"),
        ("iid", None, "needs a number of clients"),
        ("iid", 0, "0 clients: give a whole number, 1 or more"),
        ("iid", -4, "-4 clients"),
        ("iid", 601, "601 clients but 600 training rows: give at most 600"),
    ],
)
def test_wrong_requests_get_one_clear_line(spec: str, clients: int | None, message: str) -> None:
    with pytest.raises(FedcladeError, match=re.escape(message)) as caught:
        partition(images(), spec, clients)
    assert "\n" not in str(caught.value)


def test_wrong_data_get_one_clear_line() -> None:
    flat = Dataset("flat", np.zeros((40, 12), np.float32), np.arange(40) % 2, 40, ("a", "b"))
    wide = Dataset("wide", np.zeros((40, 1, 4, 5), np.uint8), np.arange(40) % 2, 40, ("a", "b"))
    for data, shape in ((flat, "12"), (wide, "1x4x5")):
        for spec in ("rotation:2", "non-iid-3"):
            with pytest.raises(FedcladeError, match=f"turns square images, not rows of {shape}"):
                partition(data, spec, 4)
    for spec in ("non-iid-1", "non-iid-2:0.5", "adacfl-b"):
        with pytest.raises(FedcladeError, match="or more labels, the data have 2"):
            partition(flat, spec, 20)
    with pytest.raises(FedcladeError, match="no test rows for the view 'label-support': use 'holdout'"):
        partition(flat, "iid", 4, test_view="label-support")
    with pytest.raises(FedcladeError, match="unknown test view 'all'"):
        partition(flat, "iid", 4, test_view="all")
    with pytest.raises(FedcladeError, match="has one row, so none can be held out"):
        partition(flat, "iid", 40)
    rare = Dataset("rare", np.zeros((32, 2), np.float32), np.repeat([0, 1, 2], [1, 1, 30]), 32, ("a", "b", "c"))
    with pytest.raises(FedcladeError, match="leaves 6 of 12 clients without rows: use fewer clients"):
        partition(rare, "label-skew:0.3", 12)  # one label each: four clients share the one row of a, four that of b


def test_the_registry_tells_how_to_write_each_split() -> None:
    for name, entry in splits().items():
        assert entry.name == name
        assert entry.syntax.startswith(name)
        assert entry.example.startswith(name)
        assert entry.paper
        assert entry.description
        assert "\n" not in entry.description
    assert splits()["adacfl-alpha"].syntax == "adacfl-alpha:FRACTION[:GROUPS]"
    assert splits()["non-iid-2"].syntax == "non-iid-2:FRACTION[:ALPHA[:GROUPS]]"
