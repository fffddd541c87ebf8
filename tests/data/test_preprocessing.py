"""Preprocessing: what all clients' rows say together, worked out without anybody seeing them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedclade
from expect import refused
from fedclade.data import DataOptions, Federation, Preprocessing, federation_of
from fedclade.data.own import gather
from fedclade.data.preprocessing import CHUNK, Columns, statistics


def tables(seed: int, missing: float = 0.0, clients: int = 4) -> dict[str, pd.DataFrame]:
    """Clients of unlike sizes and means, some values missing, the last rows for testing."""
    random = np.random.default_rng(seed)
    found = {}
    for number in range(clients):
        rows = 12 + 9 * number
        numbers = random.normal(3 * number, 1 + number, (rows, 3)) * [1, 1e-3, 1e6]
        numbers[random.random(numbers.shape) < missing] = np.nan
        colours = random.choice(["red", "green", "blue"][: 2 + number % 2], rows).astype(object)
        colours[random.random(rows) < missing] = None
        frame = pd.DataFrame(numbers, columns=["a", "b", "c"]).assign(colour=colours, label=np.arange(rows) % 2)
        found[f"c{number}"] = frame.assign(split=np.where(np.arange(rows) < rows - 4, "train", "test"))
    return found


def made(clients: Any, known: Preprocessing | None = None, **options: Any) -> Federation:
    return federation_of(clients, options=DataOptions(**options), preprocessing=known)


def training(clients: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([frame[frame["split"] == "train"] for frame in clients.values()])


def features(federation: Federation, name: str) -> pd.DataFrame:
    """A client's rows in the order of its table."""
    client = federation[name]
    rows = np.sort(np.concatenate([client.train, client.test]))
    return pd.DataFrame(federation.x[rows], columns=list(federation.columns))


@pytest.mark.parametrize("seed", range(5))
def test_scaling_is_that_of_all_training_rows_in_one_place(seed: int) -> None:
    clients = tables(seed)
    together = training(clients)[["a", "b", "c"]]
    federation = made(clients)
    for name, frame in clients.items():
        expected = (frame[["a", "b", "c"]] - together.mean()) / together.std(ddof=0)
        np.testing.assert_allclose(features(federation, name)[["a", "b", "c"]], expected, rtol=1e-5, atol=1e-6)
    assert any("scaled by the mean" in remark for remark in federation.remarks)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("missing", ["mean", "median"])
def test_gaps_are_filled_and_marked(seed: int, missing: Any) -> None:
    clients = tables(seed, missing=0.2)
    federation = made(clients, missing=missing, scaling="none")
    assert federation.columns[:3] == ("a", "b", "c")
    assert set(federation.columns[-4:]) == {f"{name} is missing" for name in ("a", "b", "c", "colour")}
    parts = [frame[frame["split"] == "train"]["a"].dropna() for frame in clients.values()]
    fill = {
        "mean": training(clients)["a"].mean(),
        "median": np.average([part.median() for part in parts], weights=[len(part) for part in parts]),
    }[missing]
    for name, frame in clients.items():
        found = features(federation, name)
        np.testing.assert_allclose(found["a"], frame["a"].fillna(fill), rtol=1e-5)
        for column in ("a", "colour"):
            np.testing.assert_array_equal(found[f"{column} is missing"], frame[column].isna())


def test_missing_values_are_refused_where_nobody_said_what_stands_for_them() -> None:
    clients = tables(0)
    clients["c2"].loc[7, "b"] = None
    refused(lambda: made(clients), "client 'c2': row 7 has no value in column 'b'", "data.missing")
    clients = tables(0)
    clients["c1"].loc[3, "colour"] = None
    refused(lambda: made(clients), "client 'c1': row 3 has no value in column 'colour'", "data.missing")
    clients = {name: frame.assign(b=np.nan) for name, frame in tables(0).items()}
    refused(lambda: made(clients, missing="mean"), "column 'b' has no value in any training row", "data.ignore")
    clients = {name: frame.assign(b=np.inf) for name, frame in tables(0).items()}
    refused(lambda: made(clients), "client 'c0': row 0", "infinite or too large value in column 'b'")
    clients = {"c0": tables(0)["c0"], "c1": tables(0)["c1"].assign(b=np.nan)}  # one client may lack a whole column
    found = features(made(clients, missing="mean", scaling="client"), "c1")
    assert (found["b is missing"] == 1).all()


def test_text_becomes_categories_that_all_clients_share() -> None:
    clients = tables(1)
    federation = made(clients)
    together = pd.concat(clients.values())
    expected = pd.get_dummies(together["colour"]).astype(np.float32)
    wanted = ["colour=blue", "colour=green", "colour=red"]
    assert [column for column in federation.columns if column.startswith("colour")] == wanted
    found = pd.concat([features(federation, name) for name in clients])
    np.testing.assert_array_equal(found[wanted], expected[["blue", "green", "red"]])
    assert "columns of text became categories: colour (3)" in federation.remarks


def test_codes_are_categories_where_a_person_says_so_or_anybody_has_text() -> None:
    base = pd.DataFrame({"code": [1, 2, 1, 2], "f": [0.5, 1, 2, 3], "label": [0, 1, 0, 1]})
    numbers = made({"a": base, "b": base})
    assert numbers.columns == ("code", "f")
    assert made({"a": base, "b": base}, categorical="code").columns == ("f", "code=1", "code=2")
    refused(lambda: made({"a": base}, categorical=["cod"]), "data.categorical names 'cod'", "code, f")
    mixed = made({"a": base, "b": base.assign(code=["1", "x", "x", "1"])})
    assert set(mixed.columns) <= {"f", "code=1", "code=2", "code=x"}
    assert "code" not in mixed.columns


def test_too_many_texts_are_no_categories() -> None:
    frame = pd.DataFrame({"name": [f"n{k}" for k in range(2000)], "label": np.arange(2000) % 2})
    refused(lambda: made({"a": frame}), "column 'name' holds", "different texts", "data.ignore")


def test_large_numbers_close_together_keep_their_differences() -> None:
    """Seconds since 1970: sums of squares would lose them."""
    random = np.random.default_rng(0)
    clients = {
        name: pd.DataFrame({"time": 1.7e9 + random.normal(0, 5, rows), "label": np.arange(rows) % 2})
        for name, rows in (("a", 200), ("b", 50))
    }
    federation = made(clients)
    rows = np.concatenate([client.train for client in federation.clients])
    assert federation.x[rows].std() == pytest.approx(1, abs=1e-4)
    assert made({"a": pd.DataFrame({"f": [0.1] * 9, "label": [0, 1, 0] * 3})}).x.tolist() == [[0.0]] * 9  # constant


def test_test_rows_say_nothing() -> None:
    clients, other = tables(2), tables(2)
    for frame in other.values():
        frame.loc[frame["split"] == "test", ["a", "b", "c"]] += 1000.0
    assert made(clients).preprocessing == made(other).preprocessing


def test_scaling_by_client_and_not_at_all() -> None:
    clients = tables(3)
    by_client, plain = made(clients, scaling="client"), made(clients, scaling="none")
    for client in by_client.clients:
        rows = by_client.x[client.train][:, :3]
        np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(rows.std(axis=0), 1, atol=1e-4)
        expected = clients[client.name][["a", "b", "c"]].to_numpy(np.float32)
        np.testing.assert_array_equal(features(plain, client.name)[["a", "b", "c"]], expected)
    assert not any("scaled" in remark for remark in plain.remarks)


def test_a_client_in_another_unit_is_named() -> None:
    for seed in range(5):
        clients = tables(seed)
        assert not any("another unit" in remark for remark in made(clients, scaling="federated").remarks)
        clients["c0"]["a"] *= 1e4
        (remark,) = (r for r in made(clients, scaling="federated").remarks if "another unit" in r)
        assert "'c0' makes nearly all the variance of column 'a'" in remark
        assert not any("another unit" in remark for remark in made(clients, scaling="client").remarks)


def test_windows_of_sensors_are_scaled_by_channel(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    windows = {name: random.normal([[5], [-80]], [[1], [30]], (rows, 2, 16)) for name, rows in (("a", 20), ("b", 60))}
    for name, x in windows.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(len(x)) % 2)
    federation = made(f"folder:{tmp_path}")
    assert federation.input_shape == (2, 16)
    rows = np.concatenate([federation.x[client.train] for client in federation.clients])
    np.testing.assert_allclose(rows.mean(axis=(0, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(rows.std(axis=(0, 2)), 1, atol=1e-4)
    windows["a"][3, 1, 5] = np.nan
    np.savez(tmp_path / "a.npz", x=windows["a"], y=np.arange(20) % 2)
    refused(lambda: made(f"folder:{tmp_path}"), "a.npz: row 3 has no value in column '1'")
    filled = made(f"folder:{tmp_path}", missing="mean", holdout_rows="last")
    assert filled.input_shape == (3, 16)
    assert np.argwhere(filled.x[:, 2]).tolist() == [[3, 5]]
    assert filled.x[3, 1, 5] == 0


def test_images_and_arrays_from_python_stay_as_they_are() -> None:
    random = np.random.default_rng(0)
    images, y = random.integers(0, 256, (10, 5, 5), dtype=np.uint8), np.arange(10) % 2
    for options in ({}, {"scaling": "federated"}, {"scaling": "client"}):
        assert (made({"a": (images, y)}, **options).x[:, 0] == images).all()
    x = random.normal(7, 3, (10, 4))
    plain = made({"a": (x, y)})
    np.testing.assert_array_equal(plain.x, x.astype(np.float32))
    assert plain.preprocessing is None
    scaled = made({"a": (x, y)}, scaling="federated")
    np.testing.assert_allclose(scaled.x[scaled["a"].train].mean(axis=0), 0, atol=1e-6)
    assert scaled.preprocessing is not None


@pytest.mark.parametrize("scaling", ["federated", "client", "none"])
def test_clients_that_come_later_get_what_the_run_did(scaling: Any) -> None:
    clients = tables(4, missing=0.1)
    run = made(clients, missing="mean", scaling=scaling)
    kept = json.dumps(run.preprocessing.model_dump(mode="json"), allow_nan=False)
    known = Preprocessing.model_validate(json.loads(kept))
    assert known == run.preprocessing
    late = clients["c2"][["colour", "c", "split", "a", "label", "b"]]  # in another order, and nothing said about gaps
    again = made({"c2": late}, known)
    np.testing.assert_array_equal(features(again, "c2"), features(run, "c2"))
    assert again.columns == run.columns
    odd = made({"c2": late.assign(colour="pink")}, known)
    assert (features(odd, "c2").filter(like="colour=") == 0).all(axis=None)
    assert "column 'colour' holds pink in no training row: taken for none of its texts" in odd.remarks
    refused(lambda: made({"c2": late.drop(columns="a")}, known), "client 'c2'", "those of the run in a")
    refused(lambda: made({"c2": late.assign(a="much")}, known), "column 'a' holds text, but numbers in the run")
    strict = made(tables(4), scaling=scaling).preprocessing
    refused(lambda: made({"c2": late}, strict), "has no value in column")


def test_clients_apart_work_it_out_by_their_statistics_only() -> None:
    """As on nodes: each tells its columns, then its statistics, and applies what follows from all of them."""
    clients, options = tables(5, missing=0.1), DataOptions(missing="median")
    together = made(clients, missing="median")
    apart = [gather({name: frame}, options, classes=["0", "1"]) for name, frame in clients.items()]
    numbers, texts = apart[0].columns()
    told = [one.statistics(numbers, texts)[0] for one in apart]
    fitted = Preprocessing.fit(numbers, told, "federated", "median")
    assert fitted == together.preprocessing
    for one, name in zip(apart, clients, strict=True):
        np.testing.assert_array_equal(features(one.federation(fitted), name), features(together, name))


def test_statistics_can_travel() -> None:
    random = np.random.default_rng(0)
    texts = random.choice(["x", "y", None], 30)
    sent = []
    for _ in range(2):
        buffer = io.BytesIO()
        np.savez(buffer, **statistics(Columns(random.normal(size=(30, 2)), {"t": texts}), median=True))
        buffer.seek(0)
        sent.append(dict(np.load(buffer)))
    fitted = Preprocessing.fit(("a", "b"), sent, "federated", "median")
    assert fitted.features == ("a", "b", "t=x", "t=y", "t is missing")


def test_wide_tables_are_worked_on_in_parts() -> None:
    x = np.random.default_rng(0).normal(5, 2, (30, 7))
    whole = statistics(Columns(x, {}), median=True)
    long = np.repeat(x[:, :, None], CHUNK // 60, axis=2)  # two channels at a time
    parts = statistics(Columns(long, {}), median=True)
    for name in ("mean", "median"):
        np.testing.assert_allclose(parts[name], whole[name])
    fitted = Preprocessing.fit([str(k) for k in range(7)], [parts])
    applied = fitted.apply(Columns(long, {}), None, str)
    np.testing.assert_allclose(applied[:, :, 0], (x - x.mean(axis=0)) / x.std(axis=0), rtol=1e-4, atol=1e-5)


def test_a_newcomer_of_a_run_is_seen_as_the_run_sees_its_own(tmp_path: Path) -> None:
    """The copy of a client gets its accuracy; scaled by itself alone it would not."""
    random = np.random.default_rng(0)
    (tmp_path / "run-data").mkdir()
    (tmp_path / "late").mkdir()
    for place in range(3):
        a = random.normal(place, 1, 60)  # what is high depends on the others
        frame = pd.DataFrame(
            {"a": 1e4 * a, "label": np.where(a > 1, "high", "low"), "split": ["train"] * 20 + ["test"] * 40}
        )
        frame.to_csv(tmp_path / "run-data" / f"c{place}.csv", index=False)
    frame.to_csv(tmp_path / "late" / "copy.csv", index=False)
    training = {"learning_rate": 0.5, "local_epochs": 5}
    run = fedclade.run(
        f"folder:{tmp_path / 'run-data'}", method="fedavg", rounds=5, training=training, workers=1, out=tmp_path / "run"
    )
    history = run.history
    accuracy = history.loc[(history["client"] == "c2") & (history["round"] == 5), "accuracy"].item()
    placed = fedclade.place(tmp_path / "run", f"folder:{tmp_path / 'late'}", personalise=0)
    assert accuracy > 0.9
    assert placed["copy"].score == pytest.approx(accuracy)
    alone = federation_of(f"folder:{tmp_path / 'late'}")
    assert fedclade.place(tmp_path / "run", alone, personalise=0, save=False)["copy"].score < accuracy - 0.1


@pytest.mark.parametrize("value", [np.inf, 1e308, 1e160])
def test_the_row_with_an_infinite_value_is_named_and_no_innocent_one(value: float) -> None:
    """A mean or spread that is infinite makes every client's values odd."""
    clients = {f"c{k}": pd.DataFrame({"a": np.arange(10.0), "y": [0, 1] * 5, "split": "train"}) for k in range(3)}
    clients["c2"].loc[7, "a"] = value
    clients["c1"].loc[7, "a"] = np.nan
    for frame in clients.values():
        frame.loc[8:, "split"] = "test"
    for scaling in ("federated", "client"):
        options = DataOptions(label="y", missing="mean", scaling=scaling)
        refused(lambda options=options: federation_of(clients, options=options), "'c2': row 7", "infinite or too large")
