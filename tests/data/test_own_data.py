"""A person's own data as a federation: arrays, torch data sets, and folders with a file for each client."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from fedclade.data.federation import Federation
from fedclade.data.own import from_arrays, from_datasets, from_folder
from fedclade.errors import FedcladeError


def refused(action: Callable[[], Any], *words: str) -> None:
    with pytest.raises(FedcladeError) as caught:
        action()
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line


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
    among_others = from_arrays({"a": table(1), "b": table(), "c": table()})
    np.testing.assert_array_equal(among_others["b"].test - 1, alone)
    assert not np.array_equal(among_others["c"].test - 11, alone)
    assert not np.array_equal(from_arrays({"b": table()}, seed=1)["b"].test, alone)


@pytest.mark.parametrize(("rows", "holdout", "test"), [(2, 0.01, 1), (2, 0.99, 1), (10, 0.3, 3), (5, 0.99, 4)])
def test_each_part_gets_a_row(rows: int, holdout: float, test: int) -> None:
    client = from_arrays({"a": table(rows)}, holdout=holdout)["a"]
    assert len(client.test) == test
    assert len(client.train) == rows - test


def test_a_single_row_is_used_for_both() -> None:
    client = from_arrays({"a": table(1)})["a"]
    assert client.train.tolist() == client.test.tolist() == [0]


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


def test_groups_by_number_and_by_name() -> None:
    clients = {name: table() for name in ("a", "b", "c")}
    assert from_arrays(clients).groups is None
    assert from_arrays(clients, groups={"a": 5, "b": 0, "c": 5}).groups == {"a": 5, "b": 0, "c": 5}
    assert from_arrays(clients, groups={"a": "old", "b": "young", "c": "old"}).groups == {"a": 0, "b": 1, "c": 0}
    assert from_arrays(clients, groups={"a": 1})["b"].group is None
    refused(lambda: from_arrays(clients, groups={"d": 1}), "'d'")


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
        ((with_nan, y), "row 4 holds a NaN"),
        ((x * 1e300, y), "NaN or infinite"),
        ((x.astype(object), y), "object"),
        ((x.astype(str), y), "give numbers"),
        (([[1, 2], [3]], [0, 1]), "no array"),
        ((x, np.zeros((10, 2))), "one label for each row"),
        ((x, y + 0.5), "whole numbers or strings"),
        ((x, [None] * 10), "whole numbers or strings"),
        ((x, y, x[:, :2], y), "test rows are float32 of shape (2,)"),
        ((x, y, x, y.astype(str)), "use one kind"),
        ((x[:, :2], y), "float32 of shape (2,), but those of 'fine' are float32 of shape (3,)"),
        ((np.zeros((10, 3, 3), np.uint8), y), "uint8 of shape (1, 3, 3)"),
        ((x, y.astype(str)), "its labels are strings"),
        ((x, y, x), "give (x, y)"),
        ({"x": x}, "give (x, y)"),
        ({"x": x, "y": y, "x_test": x}, "give (x, y)"),
        (None, "give (x, y)"),
        ((1.0, 2), "single number"),
    ):
        refused(lambda value=value: from_arrays({"fine": table(), "odd": value}), "client 'odd'", word)
    refused(lambda: from_arrays({}), "no clients")
    refused(lambda: from_arrays({"a": table()}, holdout=1.0), "holdout is 1.0")


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
    pictures = from_datasets({"a": Squares(), "b": (Squares(), Squares())})
    assert pictures.input_shape == (3, 5, 6)
    assert pictures.x.dtype == np.uint8
    assert len(pictures["a"].test) == 1
    assert len(pictures["b"].test) == 6
    x, y = torch.randn(8, 5), torch.arange(8) % 3
    tensors = from_datasets({"a": TensorDataset(x, y)}, groups={"a": 1})
    np.testing.assert_array_equal(tensors.x, x.numpy())
    assert tensors.y.tolist() == y.tolist()
    assert from_datasets({"a": Stream()}).classes == ("no", "yes")


def test_bad_torch_data_sets() -> None:
    refused(lambda: from_datasets({"odd": 5}), "client 'odd'", "cannot be read")
    refused(lambda: from_datasets({"odd": [(np.zeros(2), 0), (np.zeros(3), 1)]}), "client 'odd'", "unlike shapes")
    refused(lambda: from_datasets({"odd": []}), "client 'odd'", "no training rows")
    refused(lambda: from_datasets({"odd": [(np.zeros(2), [0, 1])]}), "client 'odd'", "cannot be read")


def frame(rows: int = 10, seed: int = 0) -> pd.DataFrame:
    x, y = table(rows, seed)
    return pd.DataFrame({"f1": x[:, 0], "f2": x[:, 1], "label": np.where(y, "yes", "no"), "f3": x[:, 2]})


def test_folder_of_tables_and_arrays(tmp_path: Path) -> None:
    frame(10, 1).to_csv(tmp_path / "client-10.csv", index=False)
    frame(10, 2)[["f3", "label", "f1", "f2"]].to_parquet(tmp_path / "client-2.parquet")
    x, y = table(10, 3)
    np.savez(tmp_path / "client-1.npz", x=x, y=np.where(y, "yes", "no"), x_test=x[:2], y_test=["yes", "no"])
    (tmp_path / "README.md").write_text("not a client")
    federation = from_folder(tmp_path)
    assert federation.names == ("client-1", "client-2", "client-10")
    assert federation.classes == ("no", "yes")
    assert federation.input_shape == (3,)
    assert len(federation["client-1"].test) == 2
    assert federation.data == f"folder:{tmp_path}"
    assert federation.columns == ("f3", "f1", "f2")  # the order of the first client with a table holds for all
    expected = table(10, 1)[0][:, [2, 0, 1]].astype(np.float32)
    np.testing.assert_array_equal(federation.x[22:32], expected)


@pytest.mark.parametrize("label", ["label", "y", "the last one"])
def test_the_label_column(tmp_path: Path, label: str) -> None:
    columns = {"a": [0.5, 1.5], label: [3, 4]} if label == "the last one" else {label: [3, 4], "a": [0.5, 1.5]}
    pd.DataFrame(columns).to_csv(tmp_path / "c.csv")  # with pandas' nameless index column, which is no feature
    federation = from_folder(tmp_path)
    assert federation.classes == ("3", "4")
    assert federation.x.tolist() == [[0.5], [1.5]]


def test_endings_in_capitals(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "a.CSV", index=False)
    assert from_folder(tmp_path).names == ("a",)


def test_split_and_group_columns(tmp_path: Path) -> None:
    split = ["train"] * 7 + ["test"] * 3
    frame().assign(split=split, group="old").to_csv(tmp_path / "a.csv", index=False)
    frame().assign(split="train", group="young").to_parquet(tmp_path / "b.parquet")
    np.savez(tmp_path / "c.npz", x=table()[0], y=["yes"] * 10, group="old")
    federation = from_folder(tmp_path)
    assert federation.groups == {"a": 0, "b": 1, "c": 0}
    assert federation["a"].test.tolist() == [7, 8, 9]
    assert len(federation["b"].test) == 2
    assert federation.input_shape == (3,)


def test_bad_files_are_named(tmp_path: Path) -> None:
    good = frame()
    no_numbers = good.assign(f1="red")
    with_gap = good.assign(f1=[np.nan, *range(9)])
    bad: dict[str, tuple[Callable[[Path], object], str]] = {
        "empty.csv": (lambda path: path.write_text(""), "cannot be read"),
        "empty.parquet": (lambda path: path.write_text(""), "cannot be read"),
        "empty.npz": (lambda path: path.write_text(""), "cannot be read"),
        "ragged.csv": (lambda path: path.write_text("a,b\n1,2\n1,2,3\n"), "cannot be read"),
        "cut.parquet": (
            lambda path: (good.to_parquet(path), path.write_bytes(path.read_bytes()[:-9])),
            "cannot be read",
        ),
        "pickled.npz": (lambda path: np.savez(path, x=np.array([{}, 1]), y=[0, 1]), "cannot be read"),
        "nameless.npz": (lambda path: np.savez(path, np.zeros(3)), "no arrays x and y"),
        "half.npz": (lambda path: np.savez(path, x=[[1]], y=[1], x_test=[[1]]), "only one of"),
        "groups.npz": (lambda path: np.savez(path, x=[[1]], y=[1], group=[1, 2]), "not a single value"),
        "words.csv": (lambda path: no_numbers.to_csv(path, index=False), "column 'f1' is not numeric"),
        "rowless.csv": (lambda path: good[:0].to_csv(path, index=False), "no rows"),
        "narrow.csv": (lambda path: good[["label"]].to_csv(path, index=False), "at least one feature"),
        "twice.csv": (lambda path: path.write_text("a,a,label\n1,2,3\n"), "same name"),
        "splits.csv": (lambda path: good.assign(split="val").to_csv(path, index=False), "only these two"),
        "latin.csv": (lambda path: path.write_bytes("a,label\n1,\xe9\n".encode("latin-1")), "not UTF-8"),
        "mixed.csv": (lambda path: good.assign(group=range(10)).to_csv(path, index=False), "one group"),
    }
    for name, (write, word) in bad.items():
        path = tmp_path / name
        write(path)
        refused(lambda: from_folder(tmp_path), str(path), word)
        path.unlink()
    for name, data, word in (
        ("gap.csv", with_gap, "NaN"),
        ("unlabelled.csv", good.assign(label=[None] * 10), "labels"),
        ("blank.csv", good.assign(label=["x"] * 4 + [""] * 6), "row 4 has no label"),
        ("untrained.csv", good.assign(split="test"), "no training rows"),
    ):
        data.to_csv(tmp_path / name, index=False)
        refused(lambda: from_folder(tmp_path), f"client '{name[:-4]}'", word)
        (tmp_path / name).unlink()


def test_labels_of_tables_are_text_where_anybodys_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("f,label,split\n1,007,train\n2,3,train\n4,007,test\n")
    (tmp_path / "b.csv").write_text("label,f\nx,5\n3,6\n")
    federation = from_folder(tmp_path)
    assert federation.classes == ("007", "3", "x")
    assert federation.y.tolist() == [0, 1, 0, 2, 1]
    (tmp_path / "b.csv").write_text("label,f\n7,5\n3,6\n")
    (tmp_path / "b.csv").rename(tmp_path / "b.csv.later")
    assert from_folder(tmp_path, classes=("x", "3", "007")).y.tolist() == [2, 1, 2]  # a newcomer of such a run
    (tmp_path / "b.csv.later").rename(tmp_path / "b.csv")
    assert from_folder(tmp_path).classes == ("3", "7")
    (tmp_path / "b.csv").write_text("label,f\nx,5\n3,6\n")
    (tmp_path / "a.csv").write_text("f,label\n1,7\n2,\n")
    refused(lambda: from_folder(tmp_path), "client 'a'", "none missing")
    np.savez(tmp_path / "a.npz", x=[[1.0], [2.0]], y=[7, 3])  # here the owner has said that they are numbers
    (tmp_path / "a.csv").unlink()
    refused(lambda: from_folder(tmp_path), "client 'b'", "labels are strings", "numbers")


def test_a_missing_header_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0.5,-1e3,0\n1.5,2,1\n")
    (tmp_path / "b.csv").write_text("f1,f2,label\n0.5,1,0\n")
    refused(lambda: from_folder(tmp_path), "b.csv", "columns differ", "the first line must name the columns")
    (tmp_path / "a.csv").write_text("0,0,1\n1.5,2,1\n")
    refused(lambda: from_folder(tmp_path), "a.csv", "same name", "the first line must name the columns")


def draw(path: Path, size: tuple[int, int] = (4, 3), mode: str = "RGB", shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    pixels = (np.arange(size[0] * size[1] * channels) + shade).astype(np.uint8).reshape(size[1], size[0], channels)
    Image.fromarray(pixels.squeeze(), mode).save(path)


def test_folders_of_images(tmp_path: Path) -> None:
    for number in range(5):
        draw(tmp_path / "st.mary" / "cat" / f"{number}.png", shade=number)
    draw(tmp_path / "st.mary" / "dog" / "1.BMP")
    draw(tmp_path / "hospital-b" / "train" / "eel" / "1.png", shade=100)
    draw(tmp_path / "hospital-b" / "test" / "cat" / "1.tif", shade=7)
    (tmp_path / "notes").mkdir()
    (tmp_path / "st.mary" / "cat" / "labels.txt").touch()
    (tmp_path / "st.mary" / "cat" / "._0.png").touch()
    federation = from_folder(tmp_path)
    assert federation.names == ("hospital-b", "st.mary")
    assert federation.classes == ("cat", "dog", "eel")
    assert federation.input_shape == (3, 3, 4)
    assert federation.x.dtype == np.uint8
    assert federation.y.tolist() == [2, 0, 0, 0, 0, 0, 0, 1]
    assert [len(client.test) for client in federation.clients] == [1, 1]
    expected = np.arange(7, 43, dtype=np.uint8).reshape(3, 4, 3).transpose(2, 0, 1)
    np.testing.assert_array_equal(held_by(federation, "hospital-b", "test"), [expected])


def test_grey_images_beside_arrays(tmp_path: Path) -> None:
    draw(tmp_path / "a" / "no" / "1.jpg", mode="L")
    np.savez(tmp_path / "b.npz", x=np.zeros((5, 3, 4), np.uint8), y=["yes"] * 5)
    federation = from_folder(tmp_path)
    assert federation.input_shape == (1, 3, 4)
    assert federation.classes == ("no", "yes")


def test_bad_images_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(tmp_path / "a" / "cat" / "1.png")
    for write, words in (
        (lambda path: draw(path, size=(5, 3)), ["colour of 5x3 pixels", "colour of 4x3 pixels", "one size and mode"]),
        (lambda path: draw(path, mode="L"), ["grey of 4x3 pixels", "one size and mode"]),
        (lambda path: draw(path, mode="RGBA"), ["mode RGBA", "grey (L) or colour (RGB)"]),
        (lambda path: path.write_text("no image"), ["cannot be read"]),
    ):
        path = tmp_path / "a" / "cat" / "2.png"
        write(path)
        refused(lambda: from_folder(tmp_path), str(path), *words)
        path.unlink()
    for name in ("2.png", "val/cat/2.png"):
        path = tmp_path / "a" / name
        draw(path)
        refused(lambda: from_folder(tmp_path), str(path), "a/CLASS/2.png", "a/train/CLASS/2.png")
        path.unlink()
    draw(tmp_path / "b" / "cat" / "1.png", size=(6, 6))
    refused(lambda: from_folder(tmp_path), "client 'b'", "(3, 6, 6)", "(3, 3, 4)")
    draw(tmp_path / "b" / "cat" / "1.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused(lambda: from_folder(tmp_path), "pip install 'fedclade[images]'")


def test_bad_folders(tmp_path: Path) -> None:
    refused(lambda: from_folder(tmp_path / "nowhere"), "nowhere", "no such folder")
    refused(lambda: from_folder(tmp_path), str(tmp_path), ".npz, .csv, .parquet", "a folder of images for every class")
    frame().to_csv(tmp_path / "a.csv", index=False)
    frame().rename(columns={"f2": "g2"}).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(FedcladeError, match=r"b\.csv.*a\.csv in f2, g2: make them alike$"):
        from_folder(tmp_path)
    frame().to_parquet(tmp_path / "a.parquet")
    refused(lambda: from_folder(tmp_path), "client 'a' has more than one file")
