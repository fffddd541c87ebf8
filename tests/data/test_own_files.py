"""A person's own files as a federation: tables, arrays and images, and what is wrong with them."""

import gzip
import os
import shutil
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import feather, parquet

from expect import refused
from fedclade.data import DataOptions, federation_of
from fedclade.data.federation import Federation
from fedclade.errors import FedcladeError


def table(rows: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 3)), rng.integers(0, 2, rows)


def held_by(federation: Federation, name: str, part: str) -> np.ndarray:
    return federation.x[getattr(federation[name], part)]


def from_folder(path: Path, classes: Any = None, **options: Any) -> Federation:
    """Numbers as they stand in the files, where nothing else is said."""
    return federation_of(f"folder:{path}", classes=classes, options=DataOptions(**{"scaling": "none", **options}))


def frame(rows: int = 10, seed: int = 0) -> pd.DataFrame:
    x, y = table(rows, seed)
    return pd.DataFrame({"f1": x[:, 0], "f2": x[:, 1], "label": np.where(y, "yes", "no"), "f3": x[:, 2]})


def test_folder_of_tables_and_arrays(tmp_path: Path) -> None:
    frame(10, 1).to_csv(tmp_path / "client-10.csv", index=False)
    frame(10, 2)[["f3", "label", "f1", "f2"]].to_parquet(tmp_path / "client-2.parquet")
    (tmp_path / "README.md").write_text("not a client")
    federation = from_folder(tmp_path)
    assert federation.names == ("client-2", "client-10")
    assert federation.classes == ("no", "yes")
    assert federation.input_shape == (3,)
    assert federation.data == f"folder:{tmp_path}"
    assert federation.columns == ("f3", "f1", "f2")  # the order of the first client holds for all
    expected = table(10, 1)[0][:, [2, 0, 1]].astype(np.float32)
    np.testing.assert_array_equal(federation.x[10:20], expected)
    x, y = table(10, 3)
    np.savez(tmp_path / "client-1.npz", x=x, y=np.where(y, "yes", "no"))
    refused(lambda: from_folder(tmp_path), "client-2.parquet is a table", "client-1.npz holds arrays")


def test_folder_of_arrays(tmp_path: Path) -> None:
    (x, y), (x_test, y_test) = table(10, 3), table(3, 4)
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x_test, y_test=y_test, notes=np.zeros(3))
    np.savez_compressed(tmp_path / "b.npz", x=x, y=y, group="old")
    federation = from_folder(tmp_path)
    np.testing.assert_array_equal(held_by(federation, "a", "test"), x_test.astype(np.float32))
    assert federation["b"].group == 0
    assert federation.held_out.keys() == {"b"}


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
    frame().assign(fold=split, ward="old").to_csv(tmp_path / "c.csv", index=False)
    refused(lambda: from_folder(tmp_path), "c.csv", "differ", "fold, ward")
    frame().assign(group="old").to_csv(tmp_path / "c.csv", index=False)
    federation = from_folder(tmp_path)
    assert federation.groups == {"a": 0, "b": 1, "c": 0}
    assert federation["a"].test.tolist() == [7, 8, 9]
    assert len(federation["b"].test) == 2
    assert federation.input_shape == (3,)
    assert federation.held_out.keys() == {"b", "c"}
    for path in tmp_path.iterdir():
        path.unlink()
    frame().assign(fold=split, ward="old").to_csv(tmp_path / "c.csv", index=False)
    other = from_folder(tmp_path, split="fold", group="ward")
    assert other["c"].test.tolist() == [7, 8, 9]
    assert other["c"].group == 0
    refused(lambda: from_folder(tmp_path, split="part"), "data.split is 'part'", "f1, f2, label")
    frame().assign(group=7).to_csv(tmp_path / "c.csv", index=False)
    assert from_folder(tmp_path)["c"].group == 7


def test_bad_files_are_named(tmp_path: Path) -> None:
    good = frame()
    with_date = good.assign(f1=pd.Timestamp(2024, 1, 1))
    with_gap = good.assign(f1=[np.nan, *range(9)])
    bad: dict[str, tuple[Callable[[Path], object], str]] = {
        "empty.csv": (lambda path: path.write_text(""), "it is empty"),
        "empty.parquet": (lambda path: path.write_text(""), "cannot be read"),
        "empty.npz": (lambda path: path.write_text(""), "cannot be read"),
        "ragged.csv": (lambda path: path.write_text("a,b\n1,2\n1,2,3\n"), "cannot be read"),
        "cut.parquet": (
            lambda path: (good.to_parquet(path), path.write_bytes(path.read_bytes()[:-9])),
            "cannot be read",
        ),
        "pickled.npz": (lambda path: np.savez(path, x=np.array([{}, 1]), y=[0, 1]), "cannot be read"),
        "nameless.npz": (lambda path: np.savez(path, np.zeros(3)), "no arrays x and y, only arr_0"),
        "half.npz": (lambda path: np.savez(path, x=[[1]], y=[1], x_test=[[1]]), "both or none of"),
        "groups.npz": (lambda path: np.savez(path, x=[[1]], y=[1], group=[1, 2]), "not a single value"),
        "dates.parquet": (lambda path: with_date.to_parquet(path), "column 'f1' holds neither numbers nor text"),
        "rowless.csv": (lambda path: good[:0].to_csv(path, index=False), "no rows"),
        "narrow.csv": (lambda path: good[["label"]].to_csv(path, index=False), "at least one feature"),
        "twice.csv": (lambda path: path.write_text("a,a,label\n1,2,3\n"), "two columns are named 'a'"),
        "splits.csv": (lambda path: good.assign(split="val").to_csv(path, index=False), "only these two"),
        "latin.csv": (lambda path: path.write_bytes("a,label\n1,\xe9\n".encode("latin-1")), "save it as UTF-8"),
        "mixed.csv": (lambda path: good.assign(group=range(10)).to_csv(path, index=False), "one group"),
    }
    for name, (write, word) in bad.items():
        path = tmp_path / name
        write(path)
        refused(lambda: from_folder(tmp_path), str(path), word)
        path.unlink()
    for name, data, word in (
        ("gap.csv", with_gap, "gap.csv: row 0 has no value in column 'f1'"),
        ("unlabelled.csv", good.assign(label=[None] * 10), "row 0 has no label"),
        ("blank.csv", good.assign(label=["x"] * 4 + [""] * 6), "row 4 has no label"),
        ("untrained.csv", good.assign(split="test"), "client 'untrained' has no training rows"),
        ("empty.csv", good.assign(f1=None), "row 0 has no value in column 'f1'"),
    ):
        data.to_csv(tmp_path / name, index=False)
        refused(lambda: from_folder(tmp_path), word)
        (tmp_path / name).unlink()


def test_labels_of_tables_are_text_where_anybodys_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("f,label,split\n1,007,train\n2,3,train\n4,007,test\n")
    (tmp_path / "b.csv").write_text("label,f,split\nx,5,train\n3,6,test\n")
    federation = from_folder(tmp_path)
    assert federation.classes == ("007", "3", "x")
    assert federation.y.tolist() == [0, 1, 0, 2, 1]
    (tmp_path / "b.csv").unlink()
    assert from_folder(tmp_path, classes=("x", "3", "007")).y.tolist() == [2, 1, 2]  # a newcomer of such a run
    (tmp_path / "b.csv").write_text("label,f,split\n7.0,5,train\n3,6,test\n")
    assert from_folder(tmp_path).classes == ("3", "7")
    (tmp_path / "b.csv").write_text("label,f\nx,5\n3,6\n")
    (tmp_path / "a.csv").write_text("f,label\n1,7\n2,\n")
    refused(lambda: from_folder(tmp_path), "a.csv: column 'label': row 1 has no label")
    pd.DataFrame({"f": [1.0, 2.0], "label": [7, 3]}).to_parquet(tmp_path / "a.parquet")  # here the owner has said it
    (tmp_path / "a.csv").unlink()
    refused(lambda: from_folder(tmp_path), "b.csv: its labels are strings", "numbers")


def test_a_missing_header_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0.5,-1e3,0\n1.5,2,1\n2.5,3,0\n")
    (tmp_path / "b.csv").write_text("f1,f2,label\n0.5,1,0\n0.5,1,1\n")
    refused(lambda: from_folder(tmp_path), "b.csv", "columns differ", "the first line must name the columns")
    (tmp_path / "a.csv").write_text("0,0,1\n1.5,2,1\n")
    refused(lambda: from_folder(tmp_path), "a.csv", "two columns are named '0'", "the first line must name the columns")


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
    refused(lambda: from_folder(tmp_path), "notes (a folder without images), st.mary/cat/labels.txt")
    federation = from_folder(tmp_path, skip_unread=True)
    assert federation.names == ("hospital-b", "st.mary")
    assert federation.classes == ("cat", "dog", "eel")
    assert federation.input_shape == (3, 3, 4)
    assert federation.x.dtype == np.uint8
    assert federation.y.tolist() == [2, 0, 0, 0, 0, 0, 0, 1]
    assert [len(client.test) for client in federation.clients] == [1, 1]
    expected = np.arange(7, 43, dtype=np.uint8).reshape(3, 4, 3).transpose(2, 0, 1)
    np.testing.assert_array_equal(held_by(federation, "hospital-b", "test"), [expected])


def test_grey_images_beside_arrays(tmp_path: Path) -> None:
    for number in (1, 2):
        draw(tmp_path / "a" / "no" / f"{number}.jpg", mode="L")
    np.savez(tmp_path / "b.npz", x=np.zeros((5, 3, 4), np.uint8), y=["yes"] * 5)
    federation = from_folder(tmp_path)
    assert federation.input_shape == (1, 3, 4)
    assert federation.classes == ("no", "yes")


def test_bad_images_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("0.png", "1.png"):
        draw(tmp_path / "a" / "cat" / name)
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
    draw(tmp_path / "a" / "2024" / "05" / "01" / "morning" / "new" / "cat" / "2.png")
    refused(lambda: from_folder(tmp_path), "not read: a/2024/05/01/morning/new")
    shutil.rmtree(tmp_path / "a" / "2024")
    for name in ("0.png", "1.png"):
        draw(tmp_path / "b" / "cat" / name, size=(6, 6))
    refused(lambda: from_folder(tmp_path), str(tmp_path / "b"), "(3, 6, 6)", "(3, 3, 4)")
    draw(tmp_path / "b" / "cat" / "1.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused(lambda: from_folder(tmp_path), "pip install 'fedclade[images]'")


def test_bad_folders(tmp_path: Path) -> None:
    refused(lambda: from_folder(tmp_path / "nowhere"), "nowhere", "no such folder")
    refused(lambda: federation_of("folder:"), "names no folder")
    refused(lambda: from_folder(tmp_path), str(tmp_path), ".npz, .csv, ", "a folder of images for every class")
    frame().to_csv(tmp_path / "a.csv", index=False)
    frame().rename(columns={"f2": "g2"}).to_csv(tmp_path / "b.csv", index=False)
    line = refused(lambda: from_folder(tmp_path), "b.csv", "a.csv in f2, g2: make them alike")
    assert line.endswith("data.ignore)")
    frame().to_parquet(tmp_path / "a.parquet")
    refused(lambda: from_folder(tmp_path), "client 'a' has more than one file")


# --- what is in a folder and cannot be read ---------------------------------------------------------------------------


def test_nobody_vanishes_without_a_word(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "b.xls").touch()
    (tmp_path / "c").mkdir()
    (tmp_path / "d.csv").mkdir()
    (tmp_path / "e.csv").symlink_to(tmp_path / "e.csv")
    (tmp_path / "f").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "g.csv")
    for name in (".hidden", "~$a.xlsx", "README.md", "LICENSE"):
        (tmp_path / name).touch()
    words = ("b.xls, c (a folder without images), d.csv (a folder without images)", "e.csv (no regular file)")
    refused(lambda: from_folder(tmp_path), *words, "f, g.csv (no regular file)", "data.skip_unread=true")
    federation = from_folder(tmp_path, skip_unread=True)
    assert federation.names == ("a",)
    assert federation.remarks[0].startswith("not read: b.xls, c ")


def damaged(data: bytes, seed: int) -> bytes:
    """Cut off, bytes changed, a hole of zeros, or a huge number where a size may stand."""
    random = np.random.default_rng(seed)
    start = int(random.integers(len(data)))
    stop = start + int(random.choice([1, 4, 100]))
    huge = bytes([255, 255, 255, 127])
    fillings = (
        data[:start],
        *(data[:start] + f + data[stop:] for f in (b"", random.bytes(stop - start), bytes(8), huge)),
    )
    return fillings[seed % len(fillings)]


@pytest.mark.parametrize(
    "name", ["a.npz", "a.csv", "a.csv.gz", "a.tsv", "a.parquet", "a.feather", "a.xlsx", "0.png", "0.jpg"]
)
def test_damaged_files_give_one_line_or_rows(tmp_path: Path, name: str) -> None:
    path = tmp_path / (f"a/cat/{name}" if name.startswith("0") else name)
    if name == "a.npz":
        np.savez_compressed(path, x=table()[0], y=table()[1])
    elif name.startswith("0"):
        draw(path)
        draw(path.with_stem("1"))
    else:
        FORMS[name](path)
    whole = path.read_bytes()
    for seed in range(60):
        path.write_bytes(damaged(whole, seed))
        said = ""
        try:
            assert np.isfinite(from_folder(tmp_path, missing="mean").x).all()
        except FedcladeError as error:
            said = str(error)
        assert "\n" not in said


def test_links_that_lead_in_circles(tmp_path: Path) -> None:
    for number in (1, 2):
        draw(tmp_path / "a" / "cat" / f"{number}.png")
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    refused(lambda: from_folder(tmp_path), "not read: a/again/again")
    refused(lambda: from_folder(tmp_path, skip_unread=True), "an image lies in the folder of its class")


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "a.csv", index=False)
    try:
        os.rename(tmp_path / "a.csv", os.fsencode(tmp_path) + b"/\xe9.csv")
    except OSError:
        pytest.skip("the file system has none")
    refused(lambda: from_folder(tmp_path), r"\udce9.csv", "not UTF-8").encode()
    refused(lambda: federation_of({"\udce9": table()}), r"\udce9", "not UTF-8").encode()


def test_sizes_are_known_before_anything_is_read(tmp_path: Path) -> None:
    """Small files that unpack to 80 MB where 40 MB are allowed."""
    rows = 10_000_000
    flat = pa.table({"a": np.zeros(rows, np.float32), "label": np.zeros(rows, np.int8)})

    def npz(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as parts:
            for name, shape in (("x", (rows, 2)), ("y", (rows,))):
                with parts.open(f"{name}.npy", "w") as part:
                    np.lib.format.write_array_header_1_0(part, {"descr": "<f4", "fortran_order": False, "shape": shape})

    def excel(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as parts:
            parts.writestr("xl/worksheets/sheet1.xml", b" " * rows * 5)

    bombs: dict[str, Callable[[Path], object]] = {
        "a.npz": npz,
        "a.csv.gz": lambda path: path.write_bytes(gzip.compress(b"a,label\n" + b"1,0\n" * 1_000_000) * 20),
        "a.parquet": lambda path: parquet.write_table(flat, path),
        "a.feather": lambda path: feather.write_feather(flat, path, "zstd"),
        "a.xlsx": excel,
    }
    for name, write in bombs.items():
        write(tmp_path / name)
        assert (tmp_path / name).stat().st_size < 1_000_000
        refused(lambda: from_folder(tmp_path, max_gigabytes=0.04), name, "the 0.04 GB that they may", "max_gigabytes")
        (tmp_path / name).unlink()
    for number in range(3):
        draw(tmp_path / "a" / "cat" / f"{number}.png", size=(200, 200))
    refused(lambda: from_folder(tmp_path, max_gigabytes=3e-4), "data.max_gigabytes")
    for number in range(3):  # each is small enough
        np.savez(tmp_path / f"b{number}.npz", x=np.zeros((100, 100)), y=np.arange(100) % 2)
    shutil.rmtree(tmp_path / "a")
    refused(lambda: from_folder(tmp_path, max_gigabytes=2e-4), "b2.npz", "0.0 GB of memory, more than the 0.0002 GB")
    assert len(from_folder(tmp_path, max_gigabytes=3e-4)) == 3


def test_a_picture_too_large_to_unpack(tmp_path: Path) -> None:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    chunks = [b"IHDR" + header, b"IDAT" + zlib.compress(b"")]
    parts = [struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    (tmp_path / "a" / "cat").mkdir(parents=True)
    (tmp_path / "a" / "cat" / "1.png").write_bytes(data)
    refused(lambda: from_folder(tmp_path), "1.png: cannot be read", "exceeds limit")


# --- tables as they are found -----------------------------------------------------------------------------------------

PATIENTS = pd.DataFrame(
    {
        "id": [f"p{k}" for k in range(8)],
        "age": [54.5, 33.25, 47.0, 51.125, 62.0, 29.5, 44.0, 38.75],
        "sex": ["m", "f", "f", "m", "m", "f", "m", "f"],
        "visits": [1, 2, 3, 4, 5, 6, 7, 8],
        "diagnosis": ["ill", "well"] * 4,
        "note": "-",
    }
)
CHOICES: dict[str, Any] = {"label": "diagnosis", "ignore": ["id", "note"]}

FORMS: dict[str, Callable[[Path], object]] = {
    "a.csv": lambda path: PATIENTS.to_csv(path, index=False),
    "a.csv.gz": lambda path: PATIENTS.to_csv(path, index=False),
    "a.tsv": lambda path: PATIENTS.to_csv(path, index=False, sep="\t"),
    "a.tsv.gz": lambda path: PATIENTS.to_csv(path, index=False, sep="\t"),
    "a.CSV": lambda path: PATIENTS.to_csv(path, index=False, sep=";", decimal=","),
    "b.csv": lambda path: PATIENTS.to_csv(path, index=False, sep="|", encoding="utf-8-sig"),
    "c.csv": lambda path: path.write_text(PATIENTS.to_csv(index=False).replace(",", " , ").replace("\n", "\r\n")),
    "a.parquet": lambda path: PATIENTS.astype({"sex": "category"}).to_parquet(path),
    "a.feather": lambda path: PATIENTS.to_feather(path),
    "a.xlsx": lambda path: PATIENTS.to_excel(path, index=False),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_table_is_the_same_in_every_form(tmp_path: Path, name: str) -> None:
    FORMS[name](tmp_path / name)
    federation = from_folder(tmp_path, **CHOICES)
    assert federation.columns == ("age", "visits", "sex=f", "sex=m")
    assert federation.classes == ("ill", "well")
    expected = PATIENTS[["age", "visits"]].assign(f=PATIENTS["sex"] == "f", m=PATIENTS["sex"] == "m")
    np.testing.assert_array_equal(federation.x, expected.to_numpy(np.float32))
    assert federation.y.tolist() == [0, 1] * 4
    said = " ".join(federation.remarks)
    assert ("separated by" in said) == (name in ("a.CSV", "b.csv"))
    assert ("the comma is the decimal point" in said) == (name == "a.CSV")


def test_one_table_of_all_clients(tmp_path: Path) -> None:
    wards = np.array([3, 10, 3, 3, 10, 10, 3, 10])
    whole = PATIENTS.assign(ward=wards, group=np.where(wards == 3, "old", "new"))
    whole.to_parquet(tmp_path / "patients.parquet")
    whole.to_csv(tmp_path / "patients.csv", index=False)
    options = DataOptions(**CHOICES, client="ward", scaling="none")
    in_python = federation_of(whole, options=options)
    for data in (f"table:{tmp_path / 'patients.parquet'}", f"table:{tmp_path / 'patients.csv'}"):
        federation = federation_of(data, options=options)
        assert federation.data == data
        assert federation.names == ("3", "10")
        assert federation.groups == {"3": 1, "10": 0}
        np.testing.assert_array_equal(federation.x, in_python.x)
    for client in in_python.clients:
        held = whole.iloc[in_python.held_out[client.name]]  # row numbers are those of the whole table
        assert (held["ward"].astype(str) == client.name).all()
        np.testing.assert_array_equal(in_python.x[client.test][:, 0], held["age"].to_numpy(np.float32))
    refused(lambda: federation_of(whole, options=DataOptions(**CHOICES)), "data.client", "id, age, sex")
    refused(lambda: federation_of(whole, options=DataOptions(client="hospital")), "data.client is 'hospital'")
    gap = whole.assign(ward=["a"] * 7 + [None])
    refused(lambda: federation_of(gap, options=options), "row 7 names no client in column 'ward'")
    gap = whole.assign(age=[*whole["age"][:6], None, 1.0])
    refused(lambda: federation_of(gap, options=options), "client '3': row 6 has no value in column 'age'")
    refused(lambda: federation_of(f"table:{tmp_path / 'nothing.csv'}", options=options), "nothing.csv", "no such file")
    refused(lambda: federation_of(whole, "iid", options=options), "divided among clients already")
    assert federation_of(whole, clients=1, options=options).names == ("3",)
    refused(lambda: federation_of(whole, clients=3, options=options), "3 clients asked for, but the data have 2")


def test_what_was_chosen_for_a_person_is_said(tmp_path: Path) -> None:
    PATIENTS[["age", "visits", "diagnosis"]].to_csv(tmp_path / "a.csv", index=False)
    said = from_folder(tmp_path).remarks
    assert said == ("the label is the last column, 'diagnosis' (data.label names another)",)
    assert from_folder(tmp_path, label="diagnosis").remarks == ()
    with_roles = PATIENTS[["age", "diagnosis"]].assign(group="old", split=["train", "test"] * 4)
    assert federation_of({"b": with_roles}).classes == ("ill", "well")  # neither group nor split is the label
    refused(lambda: from_folder(tmp_path, label="diagnose"), "data.label is 'diagnose'", "age, visits, diagnosis")
    refused(lambda: from_folder(tmp_path, ignore=["sex"]), "data.ignore names 'sex'", "age, visits, diagnosis")
    refused(lambda: from_folder(tmp_path, label="age"), "column 'age'", "fractions")


def test_excel_sheets_as_people_leave_them(tmp_path: Path) -> None:
    from openpyxl import Workbook

    book = Workbook()
    for row in ([], ["age", None, " label "], [50, "x", "ill"], ["?", None, "well"], [], [30.5, None, "well"]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    federation = from_folder(tmp_path, missing="mean", holdout_rows="last")
    assert federation.columns == ("age", "age is missing")
    assert federation.classes == ("ill", "well")
    assert federation.x[:, 1].tolist() == [0, 1, 0]
    book.active.cell(1_000_000, 16_000, "far out")
    book.save(tmp_path / "a.xlsx")
    refused(lambda: from_folder(tmp_path), "a.xlsx", "data.max_gigabytes")


def test_what_cannot_be_opened_is_said() -> None:
    refused(lambda: federation_of(f"folder:/{'x' * 300}"), "it cannot be opened")


def test_excel_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pd.ExcelWriter(tmp_path / "a.xlsx") as book:
        PATIENTS.to_excel(book, sheet_name="first", index=False)
        PATIENTS[:2].to_excel(book, sheet_name="second", index=False)
    assert "only the first sheet, 'first', is read" in from_folder(tmp_path, **CHOICES).remarks
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    refused(lambda: from_folder(tmp_path, **CHOICES), "pip install 'fedclade[excel]'")
