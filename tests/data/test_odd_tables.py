"""Tables as people leave them: what is read right, and what is said of the rest."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from expect import refused
from fedclade.data import DataOptions, federation_of
from fedclade.data.federation import Federation, natural_order

ROWS = 40


def frame(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"age": rng.normal(50, 10, ROWS), "dose": rng.normal(size=ROWS), "label": np.arange(ROWS) % 2})


def from_folder(path: Path, **options: object) -> Federation:
    return federation_of(f"folder:{path}", options=DataOptions(**{"scaling": "none", **options}))  # type: ignore[arg-type]


def said(federation: Federation, *words: str) -> bool:
    return any(all(word in remark for word in words) for remark in federation.remarks)


@pytest.mark.parametrize("lines", [1, 2, 3, 30])
@pytest.mark.parametrize("separator", [",", ";"])
def test_texts_with_line_breaks(tmp_path: Path, separator: str, lines: int) -> None:
    noted = frame()[["age", "label"]]
    noted.insert(0, "note", ["a, b; c" + "\nmore" * lines] * ROWS)
    noted.to_csv(tmp_path / "a.csv", index=False, sep=separator)
    federation = from_folder(tmp_path)
    np.testing.assert_allclose(federation.x[:, 0], noted["age"].to_numpy(np.float32))
    assert federation.columns == ("age", "note=" + noted["note"][0])


def test_whole_numbers_that_float64_cannot_tell_apart(tmp_path: Path) -> None:
    large = 2**53 + np.arange(ROWS) % 3
    frame().assign(label=large).to_parquet(tmp_path / "a.parquet")
    assert from_folder(tmp_path).classes == tuple(str(2**53 + k) for k in range(3))
    table = frame().assign(hospital=large)
    assert federation_of(table, options=DataOptions(client="hospital")).names == tuple(str(2**53 + k) for k in range(3))
    y = np.array([2**53, 2**53 + 1] * 5)
    assert federation_of({"a": (np.zeros((10, 2)), y)}).classes == (str(2**53), str(2**53 + 1))
    refused(lambda: federation_of({"a": (np.zeros((2, 2)), np.array([1, 2**63], np.uint64))}), "write such labels")


def test_truths_are_the_same_in_every_kind_of_file(tmp_path: Path) -> None:
    true = np.arange(ROWS) % 3 == 0
    table = frame().assign(sick=true)
    table.to_parquet(tmp_path / "a.parquet")
    table.to_csv(tmp_path / "b.csv", index=False)
    table.assign(sick=np.where(true, "TRUE", "FALSE")).to_csv(tmp_path / "c.csv", index=False)
    table.to_excel(tmp_path / "d.xlsx", index=False)
    federation = from_folder(tmp_path)
    assert federation.columns == ("age", "dose", "sick")
    assert federation.x[:, 2].tolist() == [*true] * 4
    sets = from_folder(tmp_path, label=["sick", "label"], labels="sets")
    assert sets.y[:, 0].tolist() == [*true] * 4


def test_what_means_a_missing_value_can_be_said(tmp_path: Path) -> None:
    gone = frame(1).assign(age=[-999.0, *frame(1)["age"][1:]], dose=["unknown", *frame(1)["dose"][1:]])
    gone.to_csv(tmp_path / "a.csv", index=False)
    frame(2).to_parquet(tmp_path / "b.parquet")
    loud = from_folder(tmp_path)
    assert said(loud, "a: column 'age' holds -999", "data.gaps")
    assert said(loud, "a: column 'dose' is taken for text because of 'unknown'", "data.gaps")
    refused(lambda: from_folder(tmp_path, gaps=[-999, "unknown"]), "row 0 has no value in column 'age'", "data.missing")
    federation = from_folder(tmp_path, gaps=[-999, "unknown"], missing="mean", holdout_rows="last")
    assert federation.columns == ("age", "dose", "age is missing", "dose is missing")
    first = federation["a"].train.min()
    assert federation.x[first, 2:].tolist() == [1, 1]
    assert 40 < federation.x[first, 0] < 60
    assert not said(federation, "data.gaps")
    frame(1).assign(age=np.where(np.arange(ROWS), 50, -999)).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.csv").unlink()
    assert from_folder(tmp_path, gaps="-999", missing="mean").x[:, 0].min() > 0


def test_columns_that_are_probably_no_features_are_said(tmp_path: Path) -> None:
    days = pd.date_range("2024-01-01", periods=ROWS).astype(str)
    table = frame().assign(patient=range(100, 100 + ROWS), case_id=np.arange(ROWS) ** 2, day=days)
    for name in ("a.csv", "b.csv"):
        table.to_csv(tmp_path / name, index=False)
    federation = from_folder(tmp_path)
    for name in ("patient", "case_id"):
        assert federation.remarks.count(
            f"column '{name}' holds another whole number in every row: if it is an id, leave it out (data.ignore)"
        )
    assert said(federation, "column 'day' holds another text in most rows")
    assert not from_folder(tmp_path, ignore=["patient", "case_id", "day"]).remarks


@pytest.mark.parametrize(
    "write", ["{:,.2f}".format, lambda n: f"{n:.2f}".replace(".", ","), lambda n: f"{n:,.0f}".replace(",", " ")]
)
def test_numbers_with_separators_are_said(tmp_path: Path, write: Callable[[float], str]) -> None:
    amounts = np.random.default_rng(0).uniform(10, 1e6, ROWS)
    for name in ("a.csv", "b.csv"):
        frame().assign(amount=[write(each) for each in amounts]).to_csv(tmp_path / name, index=False)
    assert said(from_folder(tmp_path), "column 'amount' looks like numbers with separators, as")


def test_columns_without_a_name_are_left_out_with_a_word(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "a.csv")
    frame().to_csv(tmp_path / "b.csv", index=False)
    again = pd.read_csv(tmp_path / "a.csv")
    again.to_csv(tmp_path / "c.csv", index=False)
    (tmp_path / "d.csv").write_text("\n".join(f"{line},," for line in frame().to_csv(index=False).split()))
    federation = from_folder(tmp_path)
    assert federation.columns == ("age", "dose")
    assert federation.remarks == ("a, c, d: a column without a name is left out",)


def test_files_without_rows(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        frame().to_csv(tmp_path / name, index=False)
    frame()[:0].to_csv(tmp_path / "c.csv", index=False)
    refused(lambda: from_folder(tmp_path), "c.csv: it has no rows", "data.skip_small=true")
    federation = from_folder(tmp_path, skip_small=True)
    assert federation.names == ("a", "b")
    assert said(federation, "too few rows, left out: c")
    pd.DataFrame().to_excel(tmp_path / "c.xlsx", index=False)
    (tmp_path / "c.csv").unlink()
    refused(lambda: from_folder(tmp_path), "c.xlsx: its first sheet is empty")


def test_arrays_that_hold_nothing() -> None:
    x, y = np.zeros((10, 2)), np.arange(10) % 2
    refused(lambda: federation_of({"a": (x[:0], y[:0], x, y)}), "client 'a' has no training rows")
    refused(lambda: federation_of({"a": (x[:, :0], y)}), "client 'a'", "at least one feature")


def test_odd_labels_are_said(tmp_path: Path) -> None:
    parts = ["test", "train"] * (ROWS // 2)
    frame().assign(split=parts, label=["rare", *["common"] * (ROWS - 1)]).to_csv(tmp_path / "a.csv", index=False)
    federation = from_folder(tmp_path)
    assert said(federation, "no training row has the label rare")
    assert said(federation, "all training rows have the same label")
    for seed, name in enumerate(("a", "b", "c")):
        prices = 3e5 + 1e5 * frame(seed)["dose"]
        frame(seed).assign(label=prices if seed else prices * 1e6).to_csv(tmp_path / f"{name}.csv", index=False)
    remarks = " ".join(from_folder(tmp_path, labels="numbers").remarks)
    assert "'a' makes nearly all the variance of column 'label'" in remarks
    assert "data.scaling" not in remarks


def test_what_looks_alike_but_is_written_differently(tmp_path: Path) -> None:
    sick = np.arange(ROWS) % 2 == 0
    zones = np.arange(ROWS) % 3
    frame(0).assign(label=np.where(sick, "Yes", "no"), sex=np.where(sick, "M", "F"), zone=zones).to_csv(
        tmp_path / "a.csv", index=False
    )
    other = frame(1).assign(label=np.where(sick, "yes", "no"), sex=np.where(sick, "m", "F"), zone=zones)
    other.astype({"zone": float}).assign(zone=lambda table: table["zone"].where(table.index > 0)).to_csv(
        tmp_path / "b.csv", index=False
    )
    federation = from_folder(tmp_path, categorical="zone", missing="mean", label="label", holdout_rows="last")
    assert federation.columns[-4:] == ("zone=0", "zone=1", "zone=2", "zone is missing")  # not zone=1.0
    assert said(federation, "'Yes', 'yes' are different labels", "write them alike")
    assert said(federation, "column 'sex': 'M', 'm' are different texts")
    frame(1).assign(label=sick, sex="M", zone=zones).to_csv(tmp_path / "b.csv", index=False)
    frame(0).assign(sex="M", zone=zones).to_csv(tmp_path / "a.csv", index=False)
    assert said(from_folder(tmp_path, label="label"), "'0', 'False' are different labels")


def test_cells_of_a_sheet_are_read_without_the_spaces_around_them(tmp_path: Path) -> None:
    table = frame().astype({"age": object}).assign(sex=["M", "M "] * (ROWS // 2))
    table.loc[3, "age"] = "NA "
    table.to_excel(tmp_path / "a.xlsx", index=False)
    federation = from_folder(tmp_path, missing="mean", label="label", holdout=0.01)
    assert federation.columns == ("age", "dose", "sex=M", "age is missing")


def test_a_column_y_that_may_be_no_label_is_named(tmp_path: Path) -> None:
    frame().rename(columns={"age": "x", "dose": "y"}).to_csv(tmp_path / "a.csv", index=False)
    assert said(from_folder(tmp_path), "the label is", "'label'", "data.label")
    frame().rename(columns={"age": "y", "label": "activity"}).to_csv(tmp_path / "a.csv", index=False)
    assert said(from_folder(tmp_path, labels="numbers"), "the label is column 'y'", "data.label")
    frame()[["dose", "label"]].rename(columns={"label": "y"}).to_csv(tmp_path / "a.csv", index=False)
    assert not from_folder(tmp_path).remarks


def test_points_that_may_mean_thousands(tmp_path: Path) -> None:
    lines = [f"{999 if k < 20 else '1.' + str(100 + k)};{k},5;{k % 2}" for k in range(ROWS)]
    (tmp_path / "a.csv").write_text("\n".join(["price;age;label", *lines]))
    assert said(from_folder(tmp_path), "column 'price' holds 1.120, read with a decimal point")
    (tmp_path / "a.csv").write_text("\n".join(["price;age;label", *lines, "1.5;2,5;0"]))
    assert not said(from_folder(tmp_path), "thousand")


def test_amounts_that_single_precision_rounds_away_are_said(tmp_path: Path) -> None:
    frame().assign(label=1.7e9 + 10 * frame()["dose"]).to_csv(tmp_path / "a.csv", index=False)
    frame().assign(label=1e6 + 10 * frame()["dose"]).to_csv(tmp_path / "b.csv", index=False)
    assert said(from_folder(tmp_path, labels="numbers"), "a: amounts differ by so little", "subtract")


def test_groups_and_names_of_many_digits() -> None:
    groups = [10**17 + 1, 10**17 + 2]
    clients = {f"c{'9' * 5000}{k}": frame(k).assign(group=group) for k, group in enumerate(groups)}
    federation = federation_of(clients)
    assert [client.group for client in federation.clients] == groups
    assert natural_order("c02") < natural_order("c10") < natural_order("c0" + "9" * 5000)


def test_numbers_in_the_shape_of_images_are_not_scaled_and_that_is_said() -> None:
    x, y = np.arange(640).reshape(10, 1, 8, 8) % 256, np.arange(10) % 2
    assert said(federation_of({"a": (x, y)}), "not scaled", "up to 255", "uint8")
    assert not federation_of({"a": (x / 255, y), "b": (x.astype(np.float32) / 255, y)}).remarks
