"""A person's own arrays and torch data sets as a federation."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from expect import refused
from fedclade.data import DataOptions, federation_of
from fedclade.data.federation import Client, Dataset, Federation


def from_arrays(clients: dict[str, Any], classes: Any = None, seed: int = 0, **options: Any) -> Federation:
    return federation_of(clients, classes=classes, seed=seed, options=DataOptions(**options))


def table(rows: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 3)), rng.integers(0, 2, rows)


def held_by(federation: Federation, name: str, part: str) -> np.ndarray:
    return federation.x[getattr(federation[name], part)]


def test_a_client_holds_out_its_own_rows() -> None:
    x, y = table(20)
    federation = from_arrays({"a": (x, y), "b": table(7, 1)})
    client = federation["a"]
    assert len(client.train) == 16
    assert len(client.test) == 4
    assert client.train.dtype == client.test.dtype == np.int32
    assert sorted([*client.train, *client.test]) == list(range(20))
    np.testing.assert_allclose(federation.x[:20], x.astype(np.float32))
    np.testing.assert_array_equal(federation.y[:20], y)


def test_what_is_held_out_depends_on_seed_and_name_only() -> None:
    alone = from_arrays({"b": table()})["b"].test
    among_others = from_arrays({"a": table(2), "b": table(), "c": table()})
    np.testing.assert_array_equal(among_others["b"].test - 2, alone)
    seeds = {tuple(from_arrays({"b": table()}, seed=seed)["b"].test) for seed in range(9)}
    names = {tuple(from_arrays({name: table()})[name].test) for name in "abcdefghi"}
    assert min(len(seeds), len(names)) > 1


def test_one_rule_holds_out_rows_of_every_client() -> None:
    """The same rows whether they come as arrays, as a federation, or as a data set that says who owns them."""
    x, y = table(50)
    mine = from_arrays({"p0": (x, y)}, seed=3)["p0"]
    whole = replace(from_arrays({"p0": (x, y)}), clients=(Client("p0", np.arange(50, dtype=np.int32), np.arange(0)),))
    given = federation_of(whole, seed=3)["p0"]
    last = from_arrays({"p0": (x, y)}, seed=3, holdout_rows="last")["p0"]
    owned = Dataset("toy", x.astype(np.float32), y, 50, ("0", "1"), np.zeros(50, np.int64), ("p0",))
    in_time = federation_of(owned, "natural", seed=3)["p0"]
    for one, other in ((mine, given), (last, in_time)):
        np.testing.assert_array_equal(one.test, other.test)
        np.testing.assert_array_equal(one.train, other.train)
        assert one.held_out
    counts = [np.bincount(y[rows], minlength=2) for rows in (mine.train, mine.test)]
    np.testing.assert_allclose(counts[1] / (counts[0] + counts[1]), 0.2, atol=0.05)  # of every label alike
    for label in (0, 1):  # the last of each label
        rows = np.flatnonzero(y == label)
        held = last.test[y[last.test] == label]
        np.testing.assert_array_equal(held, rows[-len(held) :])


def test_test_views_of_own_data() -> None:
    x, y = table(20)
    clients = {"a": (x, y, x[:3], y[:3]), "b": (x, y)}
    as_given = federation_of(clients)
    assert (len(as_given["a"].test), len(as_given["b"].test)) == (3, 4)
    assert as_given.held_out.keys() == {"b"}
    all_held = federation_of(clients, test_view="holdout")
    assert [(len(client.train), len(client.test)) for client in all_held.clients] == [(16, 4), (16, 4)]
    assert all_held.held_out.keys() == {"a", "b"}
    assert max(all_held["a"].test) < 20  # the rows that were given for testing are not looked at
    again = federation_of(as_given, test_view="holdout")
    np.testing.assert_array_equal(again["a"].test, all_held["a"].test)
    for data in (clients, as_given):
        for view in ("label-support", "proportional"):
            refused(lambda data=data, view=view: federation_of(data, test_view=view), repr(view), "use 'holdout'")
        refused(lambda data=data: federation_of(data, test_view="all"), "unknown test view 'all'")


def test_held_out_rows_are_those_of_the_clients_own_table() -> None:
    federation = from_arrays({"a": table(10), "b": table(30, 1)})
    for name, seed in (("a", 0), ("b", 1)):
        x, _ = table(10 if name == "a" else 30, seed)
        np.testing.assert_array_equal(
            held_by(federation, name, "test"), x[federation.held_out[name]].astype(np.float32)
        )
    alone = federation.alone("b", known_as="bea")
    np.testing.assert_array_equal(alone.held_out["bea"], federation.held_out["b"])
    np.testing.assert_array_equal(held_by(alone, "bea", "train"), held_by(federation, "b", "train"))


@pytest.mark.parametrize(("rows", "holdout", "test"), [(2, 0.01, 1), (2, 0.99, 1), (10, 0.3, 3), (5, 0.99, 4)])
def test_each_part_gets_a_row(rows: int, holdout: float, test: int) -> None:
    client = from_arrays({"a": table(rows)}, holdout=holdout)["a"]
    assert len(client.test) == test
    assert len(client.train) == rows - test


def test_a_single_row_cannot_train_and_test() -> None:
    clients = {"a": table(1), "b": table(2), "c": (*table(1), *table(1, 1))}
    refused(lambda: from_arrays(clients), "client 'a' has one row", "data.skip_small=true")
    without = from_arrays(clients, skip_small=True)
    assert without.names == ("b", "c")
    assert without.remarks == ("too few rows, left out: a",)
    refused(lambda: from_arrays({"a": table(1)}, skip_small=True), "no clients")


def test_given_test_rows_are_kept_apart() -> None:
    (x, y), (x_test, y_test) = table(6), table(3, 1)
    as_tuple = from_arrays({"a": (x, y, x_test, y_test)})
    as_dict = from_arrays({"a": {"x": x, "y": y, "x_test": x_test, "y_test": y_test}})
    for federation in (as_tuple, as_dict):
        np.testing.assert_allclose(held_by(federation, "a", "train"), x.astype(np.float32))
        np.testing.assert_allclose(held_by(federation, "a", "test"), x_test.astype(np.float32))
    without = from_arrays({"a": (x, y, x_test[:0], y_test[:0])})
    assert len(without["a"].test) == 1


def test_clients_are_in_natural_order() -> None:
    names = ["client-10", "client-2", "client-1", "b", "2", "10", "client-02"]
    federation = from_arrays({name: table() for name in names})
    assert federation.names == ("2", "10", "b", "client-1", "client-02", "client-2", "client-10")


def test_labels_of_any_kind() -> None:
    x = np.zeros((3, 2))
    numbers = from_arrays({"a": (x, [30, -1, 30]), "b": (x, [7, 7, 7])})
    assert numbers.classes == ("-1", "7", "30")
    assert numbers.y.tolist() == [2, 0, 2, 1, 1, 1]
    assert numbers.y.dtype == np.int64
    words = from_arrays({"a": (x, ["dog", "cat", "dog"]), "b": (x, np.array(["eel"] * 3, object))})
    assert words.classes == ("cat", "dog", "eel")
    assert words.y.tolist() == [1, 0, 1, 2, 2, 2]
    for same in ([1.0, 0.0, 1.0], [[1], [0], [1]], [True, False, True], torch.tensor([1, 0, 1])):
        assert from_arrays({"a": (x, same)}).y.tolist() == [1, 0, 1]


def test_classes_can_be_given() -> None:
    x = np.zeros((2, 2))
    by_name = from_arrays({"a": (x, ["dog", "cat"])}, classes=["eel", "dog", "cat"])
    assert by_name.y.tolist() == [1, 2]
    assert by_name.n_classes == 3
    by_number = from_arrays({"a": (x, [2, 0])}, classes=["eel", "dog", "cat"])
    assert by_number.y.tolist() == [2, 0]
    refused(lambda: from_arrays({"a": (x, ["dog", "cow"])}, classes=["dog"]), "client 'a'", "'cow'")
    refused(lambda: from_arrays({"a": (x, [0, 3])}, classes=["dog", "cat"]), "client 'a'", "'3'")
    refused(lambda: from_arrays({"a": (x, [0, 1])}, classes=["dog", "dog"]), "twice")


def test_labels_of_newcomers_mean_what_the_classes_of_the_run_say() -> None:
    x = np.zeros((2, 2))

    def newcomer(labels: list[Any], classes: list[str]) -> list[int]:
        return from_arrays({"a": (x, labels)}, classes=classes).y.tolist()

    assert newcomer([2, 3], ["1", "2", "3"]) == [1, 2]  # names, though they would do as places too
    refused(lambda: newcomer([0, 2], ["1", "2", "3"]), "label '0' is not among the classes")
    assert newcomer([0, 2], ["ant", "bee", "cat"]) == [0, 2]
    refused(lambda: newcomer([0, 1], ["ant", "7"]), "label '0'")
    assert newcomer(["bee", "ant"], ["ant", "bee"]) == [1, 0]


def test_groups_by_number_and_by_name() -> None:
    def grouped(*groups: Any) -> Federation:
        x, y = table()
        return from_arrays({n: {"x": x, "y": y, "group": g} for n, g in zip("abc", groups, strict=True)})

    assert from_arrays({"a": table()}).groups is None
    assert grouped(5, 0, 5).groups == {"a": 5, "b": 0, "c": 5}
    assert grouped("old", "young", "old").groups == {"a": 0, "b": 1, "c": 0}
    assert grouped(1, None, 0)["b"].group is None
    refused(lambda: grouped(1, [1, 2], 0), "client 'b'", "not a single value")


def test_labels_without_end_are_taken_for_a_mistake() -> None:
    x, y = np.zeros((2000, 1)), np.arange(2000)
    refused(lambda: from_arrays({"a": (x, y)}), "2,000 different labels", "data.label", "data.max_classes")
    refused(lambda: from_arrays({"a": (x[:900], y[:900]), "b": (x[:900], y[900:1800])}), "1,800 different labels")
    assert from_arrays({"a": (x, y)}, max_classes=2000).n_classes == 2000
    refused(lambda: from_arrays({"a": (x, y / 3)}), "fractions")


@pytest.mark.parametrize(
    ("shape", "dtype", "row", "kept"),
    [
        ((5, 28, 28), np.uint8, (1, 28, 28), np.uint8),
        ((5, 3, 8, 8), np.uint8, (3, 8, 8), np.uint8),
        ((5, 8, 9, 3), np.uint8, (3, 8, 9), np.uint8),
        ((5, 8, 9, 1), np.float64, (1, 8, 9), np.float32),
        ((5, 3, 9, 3), np.uint8, (3, 9, 3), np.uint8),
        ((5, 6, 200), np.float64, (6, 200), np.float32),
        ((5, 7), np.uint8, (7,), np.float32),
        ((5, 7), np.int64, (7,), np.float32),
        ((5, 7), bool, (7,), np.float32),
        ((5,), np.float16, (1,), np.float32),
    ],
)
def test_shapes_of_rows(shape: tuple[int, ...], dtype: type, row: tuple[int, ...], kept: type) -> None:
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    federation = from_arrays({"a": (x, np.arange(5))})
    assert federation.input_shape == row
    assert federation.x.dtype == kept
    if row == (3, 8, 9):
        np.testing.assert_array_equal(federation.x, x.transpose(0, 3, 1, 2))


def test_bad_arrays_name_the_client() -> None:
    x, y = table()
    with_nan = x.copy()
    with_nan[4, 1] = np.nan
    for value, word in (
        ((x, y[:-1]), "10 rows but 9 labels"),
        ((x, y, x, y[:-1]), "10 test rows but 9 labels"),
        ((x[:0], y[:0]), "no training rows"),
        ((with_nan, y), "row 4 has no value in column '1'"),
        ((x * 1e300, y), "infinite or too large value in column '0'"),
        ((x.astype(object), y), "object"),
        ((x.astype(str), y), "give numbers"),
        (([[1, 2], [3]], [0, 1]), "no array"),
        ((x, np.zeros((10, 2))), "one label for each row"),
        ((x, y + 0.5), "fractions"),
        ((x, [None] * 10), "whole numbers or strings"),
        ((x, y, x[:, :2], y), "test rows are numbers of shape (2,)"),
        ((x, y, x, y.astype(str)), "use one kind"),
        ((x[:, :2], y), "numbers of shape (2,), but those of client 'fine' are numbers of shape (3,)"),
        ((np.zeros((10, 3, 3), np.uint8), y), "images of shape (1, 3, 3)"),
        ((x, y.astype(str)), "its labels are strings"),
        ((x, y, x), "give (x, y)"),
        ({"x": x}, "must hold x and y"),
        ({"x": x, "y": y, "x_test": x}, "both or none of x_test and y_test"),
        (None, "neither arrays (x, y) nor a data set"),
        ((1.0, 2), "single number"),
    ):
        refused(lambda value=value: from_arrays({"fine": table(), "odd": value}), "client 'odd'", word)
    refused(lambda: from_arrays({}), "no clients")


class Squares(torch.utils.data.Dataset[tuple[np.ndarray, int]]):
    """Does not raise IndexError beyond its end, as many a data set does not."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return np.full((5, 6, 3), i, np.uint8), i % 2


class Stream(IterableDataset[tuple[torch.Tensor, str]]):
    def __iter__(self) -> Any:
        return iter([(torch.ones(2), "yes"), (torch.zeros(2), "no")])


def test_torch_data_sets() -> None:
    pictures = from_arrays({"a": Squares(), "b": (Squares(), Squares())})
    assert pictures.input_shape == (3, 5, 6)
    assert pictures.x.dtype == np.uint8
    assert len(pictures["a"].test) == 1
    assert len(pictures["b"].test) == 6
    x, y = torch.randn(8, 5), torch.arange(8) % 3
    tensors = from_arrays({"a": TensorDataset(x, y)})
    np.testing.assert_array_equal(tensors.x, x.numpy())
    assert tensors.y.tolist() == y.tolist()
    assert from_arrays({"a": Stream()}).classes == ("no", "yes")


def test_bad_torch_data_sets() -> None:
    refused(lambda: from_arrays({"odd": 5}), "client 'odd'", "nor a data set")
    refused(lambda: from_arrays({"odd": [(np.zeros(2), 0), (np.zeros(3), 1)]}), "client 'odd'", "unlike shapes")
    refused(lambda: from_arrays({"odd": Squares(), "none": (Squares(), [])[1:]}), "client 'none'")
    refused(lambda: from_arrays({"odd": [(np.zeros(2), [0, 1])]}), "client 'odd'", "nor a data set")


def test_what_only_own_files_have_is_refused_for_known_data() -> None:
    for option in ({"label": "age"}, {"scaling": "client"}, {"holdout_rows": "last"}):
        refused(
            lambda option=option: federation_of("digits", options=DataOptions(**option)),
            "for files and tables",
            *option,
        )  # type: ignore[misc]
