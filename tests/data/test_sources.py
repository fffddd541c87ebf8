"""The official data sets, on small files that the tests write in the official formats."""

import contextlib
import gzip
import io
import json
import pickle
import struct
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expect import refused
from fedclade.data import sources
from fedclade.data.partition import partition
from fedclade.data.sources import catalogue, geotec, heart, locate, sensors
from fedclade.data.sources.images import CIFAR100_NAMES, IDX_FILES
from fedclade.data.sources.mat import load_mat
from fedclade.data.sources.plain_pickle import load_plain_pickle
from fedclade.data.sources.sensors import MOTIONSENSE_SIGNALS, PPG_SIGNALS, USC_HAD_FILES
from synthetic import idx, write_mnist


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("FEDCLADE_DATA", "FEDCLADE_MIRROR"):
        monkeypatch.delenv(variable, raising=False)


# --- files in the official formats ------------------------------------------------------------------------------------


def cifar_records(rows: int, labels: int, seed: int = 0) -> np.ndarray:
    records = np.random.default_rng(seed).integers(0, 256, (rows, labels + 3072)).astype(np.uint8)
    records[:, :labels] = (np.arange(rows) % 10)[:, None]
    return records


def write_cifar10(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(catalogue.source_named("cifar10").files):
        (folder / name).write_bytes(cifar_records(20, 1, i).tobytes())
    return folder


def write_svhn(folder: Path) -> Path:
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train_32x32.mat", 20), ("test_32x32.mat", 10)):
        pixels = np.random.default_rng(rows).integers(0, 256, (32, 32, 3, rows)).astype(np.uint8)
        savemat(folder / name, {"X": pixels, "y": (np.arange(rows) % 10 + 1)[:, None]})
    return folder


def motionsense_csv(rows: int, seed: int) -> str:
    values = np.random.default_rng(seed).normal(seed, 2, (rows, 12)).round(4)
    lines = [",".join(["", *MOTIONSENSE_SIGNALS])]
    return "\n".join(lines + [f"{i}," + ",".join(map(str, row)) for i, row in enumerate(values.tolist())]) + "\n"


def write_motionsense(folder: Path, **changed: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "A_DeviceMotion_data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__MACOSX/A_DeviceMotion_data/dws_1/._sub_1.csv", "rubbish")
        for person in (10, 2):
            for i, trial in enumerate(("dws_1", "dws_11", "jog_9", "jog_16", "sit_5", "sit_13")):
                seed = 99 if trial.startswith("sit") and person == 2 else person + i  # person 2 repeats sit_5 in sit_13
                text = changed.get(trial, motionsense_csv(200 if i % 2 == 0 or seed == 99 else 130, seed))
                archive.writestr(f"A_DeviceMotion_data/{trial}/sub_{person}.csv", text)
    return folder


@pytest.fixture(scope="session")
def usc_had(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All 840 files. Written once: they only differ in three places."""
    from scipy.io import savemat

    folder = tmp_path_factory.mktemp("data") / "usc-had"
    buffer = io.BytesIO()
    savemat(buffer, {"sensor_readings": np.random.default_rng(0).normal(3, 2, (450, 6)), "activity_numbr": "1"})
    for name in USC_HAD_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(buffer.getvalue())
    return folder


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2 and its numpy wrote: strings and array bytes alike as 8-bit strings."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_string(self, value: str | bytes) -> None:
        data = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(value: Any) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def ppg_person(seed: int) -> dict[str, Any]:
    activity = np.repeat([0, 1, 0, 2, 8, 0], [4, 50, 3, 40, 45, 2]).astype(float)
    rng = np.random.default_rng(seed)
    signal: dict[str, dict[str, np.ndarray]] = {"wrist": {}, "chest": {}}
    for device, name, samples, channels in PPG_SIGNALS:
        signal[device][name] = rng.normal(5, 3, (len(activity) * samples + 1, channels))
    return {"signal": signal, "activity": activity[:, None], "label": rng.normal(80, 5, 30), "subject": f"S{seed}"}


def write_ppg(folder: Path) -> Path:
    for person in range(1, 16):
        (folder / f"S{person}").mkdir(parents=True, exist_ok=True)
        (folder / f"S{person}" / f"S{person}.pkl").write_bytes(python2_pickle(ppg_person(person)))
    return folder


REVIEW_HEADER = "\tdrugName\tcondition\treview\trating\tdate\tusefulCount"


def review_lines(drugs: dict[str, int]) -> list[str]:
    names = [drug for drug, count in drugs.items() for _ in range(count)]
    lines = []
    for i, drug in enumerate(names):
        review = f'"""It&#039;s {"good" if i % 2 else "bad"},\nday {i}"""'
        lines.append(f"{i}\t{drug}\tPain\t{review}\t{i % 10 + 1}.0\tMay 1, 2011\t3")
    return lines


def write_reviews(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    parts = {
        "drugsComTrain_raw.tsv": {"Zoloft": 40, "Rare": 30, "NA": 45, "Untested": 60},
        "drugsComTest_raw.tsv": {"NA": 5, "Zoloft": 10, "Rare": 10},
    }
    for name, drugs in parts.items():
        (folder / name).write_text("\n".join([REVIEW_HEADER, *review_lines(drugs)]) + "\n")
    return folder


# --- reading ----------------------------------------------------------------------------------------------------------


def test_every_source_says_what_it_is() -> None:
    assert set(sources.sources()) == {
        *("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn"),
        *("motionsense", "usc-had", "ppg-dalia", "drug-reviews", "synthetic", "geotec", "heart", "femnist"),
    }
    for name, source in sources.sources().items():
        assert source.name == name
        assert source.description
        assert "\n" not in source.description
        assert source.licence
        assert source.page.startswith("http") or source.package == "fedclade"
        assert source.package or source.files
        assert all(address.endswith("/") for address in source.addresses)
        assert set(source.hashes) <= {*source.files, source.archive}


def test_invented_people_are_the_same_every_time() -> None:
    windows, again, rows = sources.load("synthetic"), sources.load("synthetic"), sources.load("synthetic:rows")
    assert (windows.x == again.x).all()
    assert windows.x.shape[1:] == (6, 40)
    assert rows.x.shape[1:] == (6,)
    assert len(windows.owners) == len(rows.owners) == 12
    assert windows.owners[9] == "person-10"
    assert windows.groups == (0, 1) * 6
    assert set(windows.y) == set(range(4))


def test_digits_have_a_fixed_stratified_test_set() -> None:
    data = sources.load("digits")
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.x.dtype == np.uint8
    assert data.x.max() == 255
    shares = np.bincount(data.y[data.n_train :]) / np.bincount(data.y)
    assert np.all((shares > 0.18) & (shares < 0.22))
    np.testing.assert_array_equal(sources.load("digits").x, data.x)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files(tmp_path: Path, name: str, packed: bool) -> None:
    write_mnist(tmp_path / name, packed=packed)
    data = sources.load(name, tmp_path)
    assert data.x.shape == (50, 1, 28, 28)
    assert data.x.dtype == np.uint8
    assert data.y.dtype == np.int64
    assert data.n_train == 30
    assert data.y.tolist() == [i % 10 for i in range(30)] + [i % 10 for i in range(20)]
    np.testing.assert_array_equal(data.x[30:, 0], np.random.default_rng(20).integers(0, 256, (20, 28, 28)))
    assert data.classes[9] == ("9" if name == "mnist" else "Ankle boot")


def test_cifar10_loose_in_its_folder_and_in_its_archive(tmp_path: Path) -> None:
    loose = write_cifar10(tmp_path / "loose" / "cifar10")
    inner = write_cifar10(tmp_path / "inner" / "cifar10" / "cifar-10-batches-bin")
    (tmp_path / "packed").mkdir()
    with tarfile.open(tmp_path / "packed" / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(inner, "cifar-10-batches-bin")
    expected = np.concatenate([cifar_records(20, 1, i) for i in range(6)])
    for place in (loose.parent, tmp_path / "inner", tmp_path / "packed"):
        data = sources.load("cifar10", place)
        np.testing.assert_array_equal(data.x.reshape(-1, 3072), expected[:, 1:])
        np.testing.assert_array_equal(data.y, expected[:, 0])
        assert data.n_train == 100
        assert data.classes[:2] == ("airplane", "automobile")


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    records = cifar_records(30, 2)
    records[:, 1] = np.arange(30) + 70
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(records.tobytes())
    data = sources.load("cifar100", tmp_path)
    assert data.x.shape == (60, 3, 32, 32)
    assert data.n_train == 30
    assert data.y[:30].tolist() == list(range(70, 100))
    assert len(set(CIFAR100_NAMES.split())) == data.n_classes == 100
    assert data.classes == tuple(sorted(data.classes))


def test_svhn_label_10_is_digit_0(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    data = sources.load("svhn", tmp_path)
    assert data.x.shape == (30, 3, 32, 32)
    assert data.y[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    pixels = np.random.default_rng(20).integers(0, 256, (32, 32, 3, 20))
    np.testing.assert_array_equal(data.x[7, 2], pixels[:, :, 2, 7])


def test_motionsense_windows(tmp_path: Path) -> None:
    write_motionsense(tmp_path / "motionsense")
    data = sources.load("motionsense", tmp_path)
    assert data.owners == ("person-2", "person-10")
    assert data.x.shape[1:] == (12, 128)
    assert data.x.dtype == np.float32
    # 200 rows hold two windows, 130 hold one; the sit_13 that repeats sit_5 is no test data
    assert data.n_train == 2 * 3 * 2
    assert len(data.x) == data.n_train + 2 + 3
    assert data.owner is not None
    assert data.owner[data.n_train :].tolist() == [0, 0, 1, 1, 1]
    assert "sitting" not in {data.classes[label] for label in data.y[data.n_train :][:2]}
    np.testing.assert_allclose(data.x[: data.n_train].mean((0, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(data.x[: data.n_train].std((0, 2)), 1, atol=1e-4)
    np.testing.assert_array_equal(data.x[0][:, 64:], data.x[1][:, :64])


def test_motionsense_rows(tmp_path: Path) -> None:
    write_motionsense(tmp_path / "motionsense")
    data = sources.load("motionsense:rows", tmp_path)
    assert data.name == "motionsense:rows"
    assert data.x.shape == (6 * 200 + 5 * 130, 12)
    assert data.n_train == 1200
    assert np.bincount(data.y, minlength=6).tolist() == [660, 0, 530, 0, 0, 660]


def test_motionsense_mixed_rows(tmp_path: Path) -> None:
    """The same rows, each once; about a fifth of every trial's, short or long, is for testing."""
    write_motionsense(tmp_path / "motionsense")
    plain, mixed = (sources.load(f"motionsense:{form}", tmp_path) for form in ("rows", "mixed-rows"))
    assert np.bincount(mixed.y).tolist() == np.bincount(plain.y).tolist()
    for owner in range(len(mixed.owners)):
        mine = mixed.owner == owner
        assert 0.1 < mine[mixed.n_train :].sum() / mine.sum() < 0.3
    assert len(np.unique(mixed.x.round(4), axis=0)) == len(np.unique(plain.x.round(4), axis=0))


def test_usc_had_takes_labels_from_file_names(usc_had: Path) -> None:
    data = sources.load("usc-had", usc_had.parent)
    windows = 3  # of 200 rows, every 100, in 450
    assert data.x.shape == (840 * windows, 6, 200)
    assert data.n_train == 14 * 12 * 4 * windows
    assert data.owners == tuple(f"person-{i}" for i in range(1, 15))
    assert np.bincount(data.y).tolist() == [14 * 5 * windows] * 12
    np.testing.assert_allclose(data.x[: data.n_train].mean((0, 2)), 0, atol=1e-4)


def test_usc_had_from_its_archive(usc_had: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "USC-HAD.zip", "w") as archive:
        for name in reversed(USC_HAD_FILES):
            archive.write(usc_had / name, f"USC-HAD/{name}")
    np.testing.assert_array_equal(
        sources.load("usc-had", tmp_path).owner, sources.load("usc-had", usc_had.parent).owner
    )


def test_ppg_dalia_at_the_rate_of_its_activities(tmp_path: Path) -> None:
    write_ppg(tmp_path / "ppg-dalia")
    data = sources.load("ppg-dalia", tmp_path)
    assert data.x.shape == (15 * (50 + 40 + 45), 20)
    assert data.n_train == 15 * (40 + 32 + 36)
    assert data.owners[14] == "person-15"
    assert np.bincount(data.y[: data.n_train], minlength=8).tolist() == [600, 480, 0, 0, 0, 0, 0, 540]
    first = ppg_person(1)["signal"]["chest"]["ECG"][:, 0]  # its first activity starts at tick 4
    means = [first[tick * 175 : (tick + 1) * 175].mean() for tick in range(4, 44)]
    assert np.corrcoef(means, data.x[:40, 9])[0, 1] > 0.999
    np.testing.assert_array_equal(sources.load("ppg-dalia:acceleration", tmp_path).x, data.x[:, :3])


def test_ppg_dalia_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ppg(tmp_path / "ppg-dalia" / "PPG_FieldStudy")
    refused(lambda: sources.load("ppg-dalia:windows", tmp_path), "no whole window of 32 rows")  # too short stretches
    monkeypatch.setattr(sensors, "PPG_WINDOW", 8)
    data = sources.load("ppg-dalia:windows", tmp_path)
    assert data.x.shape == (15 * (9 + 7 + 8 + 1 + 1 + 1), 20, 8)
    assert data.n_train == 15 * (9 + 7 + 8)


GEOTEC_LABELS = np.repeat(
    ["SEATED", "STANDING_UP", "WALKING", "TURNING", "WALKING", "SITTING_DOWN"], [60, 50, 150, 75, 1, 80]
)


def write_geotec(folder: Path, prefix: str = "sp-sw-har-dataset-main/", **changed: str) -> Path:
    """Person 1 with six executions, the last with the phone turned; person 2 with two."""
    folder.mkdir(parents=True, exist_ok=True)
    info = ["execution_id,orientation,first_turn,second_turn"]
    with zipfile.ZipFile(folder / "sp-sw-har-dataset-main.zip", "w") as archive:
        for person, count in ((1, 6), (2, 2)):
            for number in range(1, count + 1):
                info.append(f"s0{person}_0{number},{'front' if (person, number) == (1, 6) else 'back'},l,r")
                for device in ("sp", "sw"):
                    values = np.random.default_rng(number).normal(3, 2, (len(GEOTEC_LABELS), 6)).round(3)
                    lines = [",".join([*geotec.SIGNALS, "timestamp", "label"])]
                    lines += [",".join(map(str, [*v, 1, a])) for v, a in zip(values, GEOTEC_LABELS, strict=True)]
                    name = f"s0{person}_0{number}_{device}.csv"
                    archive.writestr(f"{prefix}DATA/s0{person}/{name}", changed.get(name[:-4], "\n".join(lines)))
        archive.writestr(f"{prefix}DATA/executions_info.csv", changed.get("info", "\n".join(info)))
    return folder


def test_geotec_clients_are_devices_and_executions_are_held_out(tmp_path: Path) -> None:
    write_geotec(tmp_path / "geotec")
    data = sources.load("geotec", tmp_path)
    assert data.owners == ("s01-phone", "s01-watch", "s02-phone", "s02-watch")
    assert data.groups == (0, 1, 0, 1)
    assert data.x.shape[1:] == (6, 50)
    windows = np.array([1, 1, 5, 2, 2])  # of 50 rows, every 25, in each stretch; that of one row has none
    np.testing.assert_array_equal(np.bincount(data.y), windows * 16)
    np.testing.assert_array_equal(np.bincount(data.owner[: data.n_train]), [55, 55, 11, 11])
    np.testing.assert_array_equal(np.bincount(data.owner[data.n_train :]), [11] * 4)
    np.testing.assert_allclose(data.x[: data.n_train].mean((0, 2)), 0, atol=1e-5)
    turned = sources.load("geotec:orientation", tmp_path)  # its one execution with the phone turned is left out
    assert turned.owners == ("s01-phone-back", "s01-watch", "s02-phone-back", "s02-watch")
    for split, clients in (("natural", None), ("iid", 3)):
        assert partition(turned, split, clients).remarks == ("of one execution only, left out: s01-phone-front",)
        assert partition(data, split, clients).remarks == ()
    assert partition(data, "natural", None).groups == dict(zip(data.owners, data.groups, strict=True))


def test_bad_geotec_files_are_named(tmp_path: Path) -> None:
    header = ",".join([*geotec.SIGNALS, "timestamp", "label"])
    for name, text, word in (
        ("s01_03_sp", f"{header}\n1,2,3,4,5,6,7,FLYING\n", "'FLYING'"),
        ("s01_03_sp", f"{header}\n", "no rows"),
        ("s01_03_sp", f"{header}\n1,2,3,4,5,x,7,SEATED\n", "cannot be read"),
        ("s01_03_sw", f"{header}\n1,2,3,4,5,nan,7,SEATED\n", "NaN"),
        ("info", "execution_id,orientation\ns01_01,back\n", "orientation of s01_02"),
    ):
        write_geotec(tmp_path / "geotec", **{name: text})
        refused(lambda: sources.load("geotec", tmp_path), word, "zenodo")
    refused(lambda: sources.get("geotec", tmp_path / "new"), "cannot be downloaded", "zenodo", str(tmp_path / "new"))
    refused(lambda: sources.load("geotec", tmp_path / "new"), "put it there yourself")


def write_heart(folder: Path, **changed: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for place, hospital in enumerate(heart.HOSPITALS):
        lines = []
        for row in range(20):
            ca = "?" if row % 3 else "0.0"
            chol = "?" if row == 7 else str(200 + row)
            lines.append(f"{40 + row},1.0,{1 + row % 4},130,{chol},0,{row % 3},150,0,{place}.5,2,{ca},?,{row % 5}")
        (folder / f"processed.{hospital}.data").write_text(changed.get(hospital, "\n".join(lines)) + "\n")
    return folder


def test_heart_disease_of_four_hospitals(tmp_path: Path) -> None:
    write_heart(tmp_path / "heart")
    data = sources.load("heart", tmp_path)
    assert data.owners == ("cleveland", "hungarian", "switzerland", "va")
    assert data.x.shape == (4 * 19, 15)  # one patient of each lacks a value that counts
    assert np.bincount(data.y).tolist() == [4 * 4, 4 * 15]
    assert data.classes == ("well", "ill")
    assert np.bincount(data.owner[data.n_train :]).tolist() == [3] * 4  # 15 // 5 of the ill, 4 // 5 of the well
    varied = [0, 3, 7, *range(8, 15)]  # age, cholesterol, oldpeak and the categories
    np.testing.assert_allclose(data.x[: data.n_train].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(data.x[: data.n_train].std(axis=0)[varied], 1, atol=1e-4)
    assert (np.delete(data.x, varied, axis=1) == 0).all()
    for hospital, text, word in (
        ("va", "1,2,3", "3 columns, not 14"),
        ("va", "40,1,9,130,200,0,1,150,0,1,2,0,3,1", "cp holds something other"),
        ("hungarian", "40,1,1,high,200,0,1,150,0,1,2,0,3,1", "cannot be read"),
    ):
        write_heart(tmp_path / "heart", **{hospital: text})
        refused(lambda: sources.load("heart", tmp_path), f"processed.{hospital}.data", word)


def write_femnist(folder: Path, **changed: Any) -> Path:
    random = np.random.default_rng(0)
    for part, rows in (("train", 5), ("test", 2)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(2):
            people = {
                f"f{number}_{k}": {"x": random.random((rows, 784)).round(3).tolist(), "y": [0, 10, 61, 5, 36][:rows]}
                for k in range(2)
            }
            content = changed.get(part, {"users": list(people), "num_samples": [rows] * 2, "user_data": people})
            (folder / part / f"all_data_{number}_niid_0_keep_0_{part}_9.json").write_text(json.dumps(content))
    return folder


def test_femnist_as_leaf_writes_it(tmp_path: Path) -> None:
    write_femnist(tmp_path / "femnist" / "data")
    data = sources.load("femnist", tmp_path)
    assert data.x.shape == (28, 1, 28, 28)
    assert data.x.dtype == np.uint8
    assert data.n_train == 20
    assert data.owners == ("f0_0", "f0_1", "f1_0", "f1_1")
    assert [data.classes[label] for label in data.y[:5]] == ["0", "A", "z", "5", "a"]
    first = np.random.default_rng(0).random((5, 784)).round(3)
    np.testing.assert_array_equal(data.x[:5].reshape(5, 784), np.rint(first * 255))
    assert [len(client.test) for client in partition(data, "natural", None).clients] == [2] * 4
    one: dict[str, Any] = {"x": [[0.5] * 784], "y": [3]}
    for bad, word in (
        ([], "no JSON file of LEAF"),
        ({"user_data": {"a": {"x": [[1]], "y": [3]}}}, "have shape (1, 1)"),
        ({"user_data": {"a": {**one, "y": [62]}}}, "labels run from 62"),
        ({"user_data": {"a": {**one, "x": [[2.0] * 784]}}}, "not 0 to 1"),
        ({"user_data": {"a": {**one, "x": [[1.0], [1.0, 2.0]]}}}, "no JSON file of LEAF"),
    ):
        write_femnist(tmp_path / "femnist" / "data", test=bad)
        refused(lambda: sources.load("femnist", tmp_path), "test_9.json", word, "github.com/TalwalkarLab")
    refused(lambda: sources.load("femnist", tmp_path / "new"), "missing train/*.json, test/*.json")


@pytest.mark.parametrize("form", ["", ":hash-64", ":tfidf-64"])
def test_drug_reviews(tmp_path: Path, form: str) -> None:
    write_reviews(tmp_path / "drug-reviews")
    data = sources.load(f"drug-reviews{form}", tmp_path)
    assert data.owners == ("NA", "Rare", "Zoloft")  # the other is never tested
    assert data.n_train == 115
    assert data.x.shape == (140, 64 if form else 512)
    assert data.x.dtype == np.float32
    assert data.classes == tuple(str(stars) for stars in range(1, 11))
    assert data.y[:40].tolist() == [i % 10 for i in range(40)]
    np.testing.assert_allclose(np.linalg.norm(data.x, axis=1), 1, atol=1e-5)
    assert not np.array_equal(data.x[0], data.x[1])
    for path in (tmp_path / "drug-reviews").iterdir():
        path.write_text(path.read_text().replace("\tPain\t", "\tInsomnia\t"))
    if "tfidf" not in form:  # the condition counts
        assert not np.array_equal(sources.load(f"drug-reviews{form}", tmp_path).x[0], data.x[0])


# --- finding ----------------------------------------------------------------------------------------------------------


def test_search_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, environment, cache = tmp_path / "named", tmp_path / "environment", tmp_path / "cache" / "fedclade"
    monkeypatch.setenv("FEDCLADE_DATA", str(environment))
    assert locate.data_folders(named) == [named, environment, cache]
    write_mnist(cache / "mnist")
    assert sources.find("mnist", named) == cache / "mnist"
    write_mnist(environment)
    assert sources.find("mnist", named) == environment
    write_mnist(environment / "mnist")
    assert sources.find("mnist", str(named)) == environment / "mnist"
    write_mnist(named / "mnist")
    assert sources.find("mnist", named) == named / "mnist"


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / IDX_FILES[1]).unlink()
    line = refused(lambda: sources.load("mnist", tmp_path), IDX_FILES[1], str(tmp_path / "mnist"))
    assert IDX_FILES[0] not in line
    refused(lambda: sources.find("mnist", tmp_path), "`fedclade data get mnist`", "http://yann.lecun.com/exdb/mnist/")
    refused(lambda: sources.load("usc-had", tmp_path), "Subject1/a1t1.mat", "(834 more)", str(tmp_path / "usc-had"))


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_mnist(tmp_path / "mnist")
    refused(lambda: sources.load("fashion-mnist", folder), "missing")
    elsewhere = write_mnist(tmp_path / "elsewhere")
    assert len(sources.load("fashion-mnist", elsewhere).x) == 50
    known(monkeypatch, "mnist", elsewhere)
    refused(lambda: sources.load("fashion-mnist", elsewhere), "missing")
    assert len(sources.load("mnist", elsewhere).x) == 50


def test_unknown_names_and_forms(tmp_path: Path) -> None:
    refused(lambda: sources.load("mnits"), "did you mean 'mnist'?")
    refused(lambda: sources.load("mnist:rows"), "mnist has no forms")
    refused(lambda: sources.load("motionsense:row"), "did you mean 'rows'?")
    refused(lambda: sources.load(str(tmp_path)), f"write folder:{tmp_path}")
    (tmp_path / "people.csv").write_text("x,y\n1,2\n")
    refused(lambda: sources.load(f"{tmp_path}/people.csv"), f"write table:{tmp_path}/people.csv")
    for form in ("tfidf", "hash-0", "hash--1", "hash-N"):
        refused(lambda form=form: sources.load(f"drug-reviews:{form}"), "unknown form of drug-reviews", "tfidf-N")


# --- bad files --------------------------------------------------------------------------------------------------------


def write_array(path: Path, array: np.ndarray) -> None:
    path.write_bytes(gzip.compress(idx(array)))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def one_label_of(value: int) -> Callable[[Path], None]:
    return lambda path: write_array(path, np.full(30, value))


@pytest.mark.parametrize(
    ("file", "spoil", "word"),
    [
        (0, cut_short, "cannot be read"),
        (0, flip_a_byte, "cannot be read"),
        (0, lambda path: path.write_bytes(b""), "magic number"),
        (0, lambda path: path.write_bytes(b"\x00\x00\x08\x03\x00"), "cannot be read"),
        (0, lambda path: path.write_bytes(b"<html>not here</html>"), "magic number"),
        (0, lambda path: write_array(path, np.zeros(30)), "magic number is 2049, not 2051"),
        (0, lambda path: path.write_bytes(idx(np.zeros((30, 28, 28)))[:-1]), "23519 bytes of 23520"),
        (1, lambda path: write_array(path, np.zeros(29)), "29 labels for the 30 images"),
        (1, one_label_of(10), "labels run from 10 to 10"),
        (2, lambda path: write_array(path, np.zeros((20, 8, 8))), "another size"),
    ],
)
def test_bad_idx_files(tmp_path: Path, file: int, spoil: Callable[[Path], object], word: str) -> None:
    path = write_mnist(tmp_path / "mnist") / IDX_FILES[file]
    spoil(path)
    refused(lambda: sources.load("mnist", tmp_path), str(path), word, "delete it and", "`fedclade data get mnist`")


def test_bad_cifar_files(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path / "cifar10")
    bad_label = cifar_records(20, 1)
    bad_label[3, 0] = 10
    for data, word in (
        (b"", "0 bytes"),
        (bytes(3072), "3073-byte records"),
        (bad_label.tobytes(), "labels run from 0 to 10"),
    ):
        (folder / "data_batch_3.bin").write_bytes(data)
        refused(lambda: sources.load("cifar10", tmp_path), "data_batch_3.bin", word)


def test_bad_archives(tmp_path: Path) -> None:
    inner = write_cifar10(tmp_path / "inner")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(inner / "data_batch_1.bin", "cifar-10-batches-bin/data_batch_1.bin")
    refused(lambda: sources.load("cifar10", tmp_path), str(archive), "data_batch_2.bin is not in it")
    for rubbish in (b"", b"no tar at all", archive.read_bytes()[:-2000]):
        archive.write_bytes(rubbish)
        refused(lambda: sources.load("cifar10", tmp_path), str(archive))


def test_bad_svhn_files(tmp_path: Path) -> None:
    from scipy.io import savemat

    path = write_svhn(tmp_path) / "train_32x32.mat"
    good = path.read_bytes()
    for rubbish in (b"", b"MATLAB 5.0 MAT-file", good[:5000]):
        path.write_bytes(rubbish)
        refused(lambda: sources.load("svhn", tmp_path), str(path))
    pixels = np.zeros((32, 32, 3, 4), np.uint8)
    for variables, word in (
        ({"X": pixels}, "no variables X and y"),
        ({"X": pixels.astype(float), "y": [[1], [2], [3], [4]]}, "float64"),
        ({"X": pixels[..., 0, :], "y": [[1], [2], [3], [4]]}, "shape"),
        ({"X": pixels, "y": [[1], [2], [3]]}, "each of the 4 images"),
        ({"X": pixels, "y": [[1], [2], [3], [11]]}, "from 1 to 10"),
    ):
        savemat(path, variables)
        refused(lambda: sources.load("svhn", tmp_path), str(path), word)


@pytest.mark.parametrize("compressed", [True, False])
def test_matlab_arrays_are_those_that_scipy_reads(compressed: bool) -> None:
    from scipy.io import loadmat, savemat

    rng = np.random.default_rng(0)
    arrays = {f"v{i}": rng.normal(50, 20, (5, i + 1, 3)).astype(code) for i, code in enumerate("fdbBhHiIqQ")}
    buffer = io.BytesIO()
    others = {"text": "some words", "cells": np.array([1, "a"], object), "many_words": {"a": 1}, "tiny": np.int8(3)}
    savemat(buffer, {**others, **arrays}, do_compression=compressed)
    loaded = load_mat(buffer.getvalue(), [*arrays, "tiny"])
    expected = loadmat(buffer, variable_names=[*arrays, "tiny"])
    assert set(loaded) == {*arrays, "tiny"}
    for name, array in loaded.items():
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array, expected[name])


def test_no_byte_of_a_matlab_file_takes_the_process_down(tmp_path: Path) -> None:
    good = (write_svhn(tmp_path) / "test_32x32.mat").read_bytes()
    for place in range(128, 200):
        for byte in (0, 1, 77, 255):
            with contextlib.suppress(ValueError, zlib.error):
                load_mat(good[:place] + bytes([byte]) + good[place + 1 :], ("X", "y"))


def test_bad_motionsense_files(tmp_path: Path) -> None:
    path = write_motionsense(tmp_path) / "A_DeviceMotion_data.zip"
    good = path.read_bytes()
    for rubbish in (b"", b"PK rubbish", good[:-100], good[:300] + b"\x00" * 50 + good[350:]):
        path.write_bytes(rubbish)
        refused(lambda: sources.load("motionsense", tmp_path), str(path))
    text = motionsense_csv(200, 1)
    for changed, word in (
        (text[:-40], "cannot be read"),
        ("", "cannot be read"),
        (text.replace("gravity.y", "gravity"), "gravity.y"),
        (text + "200," + ",".join(["1.0"] * 11) + ",nan\n", "NaN"),
        (text + "200," + ",".join(["1.0"] * 11) + ",\n", "NaN"),
        (text + "200," + ",".join(["1.0"] * 11) + ",fast\n", "cannot be read"),
    ):
        write_motionsense(tmp_path, jog_9=changed)
        refused(lambda: sources.load("motionsense", tmp_path), "jog_9/sub_2.csv", word)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(lambda: sources.load("motionsense", tmp_path), "holds no <activity>_<trial>")


def test_bad_usc_had_files(usc_had: Path) -> None:
    from scipy.io import savemat

    path = usc_had / "Subject3" / "a2t4.mat"
    good = path.read_bytes()
    try:
        for values, word in (
            ({"sensor_readings": np.zeros((300, 5))}, "(300, 5), not (rows, 6)"),
            ({"readings": np.zeros((300, 6))}, "not (rows, 6)"),
            ({"sensor_readings": np.full((300, 6), np.nan)}, "NaN"),
        ):
            savemat(path, values)
            refused(lambda: sources.load("usc-had", usc_had.parent), str(path), word)
        path.write_bytes(good[: len(good) // 2])
        refused(lambda: sources.load("usc-had", usc_had.parent), str(path), "cannot be read")
    finally:
        path.write_bytes(good)


def test_bad_ppg_files(tmp_path: Path) -> None:
    path = write_ppg(tmp_path) / "S7" / "S7.pkl"
    person = ppg_person(7)
    without_ecg = {**person, "signal": {**person["signal"], "chest": {}}}
    with_nan = ppg_person(7)
    with_nan["signal"]["wrist"]["BVP"][5] = np.nan
    for contents, word in (
        (python2_pickle(person)[:-2000], "cannot be read"),
        (b"", "cannot be read"),
        (python2_pickle([1, 2]), "has no"),
        (python2_pickle(without_ecg), "'ACC'"),
        (python2_pickle({**person, "activity": person["activity"] + 1.5}), "0 to 8"),
        (python2_pickle(with_nan), "NaN"),
    ):
        path.write_bytes(contents)
        refused(lambda: sources.load("ppg-dalia", tmp_path), str(path), word)


class Bomb:
    """Unpickled without care, it creates the file that it names."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.target), "w")


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    path = write_ppg(tmp_path) / "S1" / "S1.pkl"
    boom = tmp_path / "boom"
    for protocol in range(5):
        path.write_bytes(pickle.dumps({**ppg_person(1), "label": Bomb(boom)}, protocol=protocol))
        refused(lambda: sources.load("ppg-dalia", tmp_path), str(path), "refused", "open")
    assert not boom.exists()
    pickle.loads(pickle.dumps(Bomb(boom)))  # the proof that the bomb is live
    assert boom.exists()


def test_plain_pickles_of_both_pythons() -> None:
    value = {"a": [1, 2.5, None, True], "b": ("x", np.float64(3.5)), "c": np.arange(6, dtype=">i2").reshape(2, 3)}
    for data in (python2_pickle(value), *(pickle.dumps(value, protocol) for protocol in range(5))):
        loaded = load_plain_pickle(io.BytesIO(data))
        assert loaded["a"] == value["a"]
        assert loaded["b"] == value["b"]
        np.testing.assert_array_equal(loaded["c"], value["c"])
    for evil in (np.array([1, "x", None], dtype=object), np.zeros(2, dtype=[("a", "f4")]), np.ma.zeros(3)):
        with pytest.raises(pickle.UnpicklingError, match="refused"):
            load_plain_pickle(io.BytesIO(pickle.dumps(evil, protocol=2)))


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("\t7.0\t", "\t11.0\t", "not 1 to 10"),
        ("\t7.0\t", "\t7.5\t", "not 1 to 10"),
        ("\t7.0\t", "\t\t", "cannot be read"),
        ("\t7.0\t", "\tnan\t", "cannot be read"),
        ("\trating\t", "\tstars\t", "cannot be read"),
        ("day 44", 'day 44"""\t5.0\tx\t3\tfour\tfields\ttoo\tmany', "cannot be read"),
        ("day 44", "day \udcff", "cannot be read"),
        ("day 44", '"\tan open quote', "drugsComTrain_raw.tsv"),
    ],
)
def test_bad_reviews(tmp_path: Path, old: str, new: str, word: str) -> None:
    path = write_reviews(tmp_path) / "drugsComTrain_raw.tsv"
    text = path.read_text()
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode(errors="surrogateescape"))
    refused(lambda: sources.load("drug-reviews", tmp_path), str(path), word)


def test_reviews_of_drugs_that_are_never_tested(tmp_path: Path) -> None:
    folder = write_reviews(tmp_path)
    for name in ("drugsComTrain_raw.tsv", "drugsComTest_raw.tsv"):
        (folder / name).write_text("\n".join([REVIEW_HEADER, *review_lines({f"Only in {name}": 20})]))
    refused(lambda: sources.load("drug-reviews", tmp_path), "no drug has reviews in both")


# --- getting and checking ---------------------------------------------------------------------------------------------


def known(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path, *files: str) -> None:
    """Makes the files in a folder the official ones."""
    from dataclasses import replace

    from fedclade.data.sources.source import fingerprint

    source = catalogue.source_named(name)
    hashes = {file: fingerprint(folder / file, "sha256") for file in files or source.files}
    monkeypatch.setitem(catalogue._CATALOGUE, name, replace(source, hashes=hashes))


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on this machine, and the folder it serves."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path.startswith("/broken/"):
                self.send_response(200)
                self.send_header("Content-Length", "100000")
                self.end_headers()
                self.wfile.write(b"the connection breaks off here")
            else:
                super().do_GET()

    folder = tmp_path / "mirror"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.02), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", folder
    server.shutdown()
    server.server_close()
    thread.join()


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_get_files_one_by_one(mirror: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, served = mirror
    write_mnist(served / "mnist")
    known(monkeypatch, "mnist", served / "mnist")
    here = tmp_path / "here"
    assert sources.get("mnist", here, progress=False, mirror=address) == here / "mnist"
    assert everything_in(here) == sorted(f"mnist/{name}" for name in IDX_FILES)
    assert sources.check("mnist", here).ok
    # a spoilt file is fetched again, the others are left alone, and a complete folder needs no network
    (here / "mnist" / IDX_FILES[0]).write_bytes(b"spoilt")
    before = (here / "mnist" / IDX_FILES[1]).stat().st_mtime_ns
    assert [state.hash for state in sources.check("mnist", here).files] == ["wrong", "right", "right", "right"]
    monkeypatch.setenv("FEDCLADE_MIRROR", address)
    sources.get("mnist", here, progress=True)
    assert sources.check("mnist", here).ok
    assert (here / "mnist" / IDX_FILES[1]).stat().st_mtime_ns == before
    assert sources.get("mnist", here, mirror="http://127.0.0.1:9") == here / "mnist"


def test_get_refuses_what_is_not_the_official_file(mirror: tuple[str, Path], tmp_path: Path) -> None:
    address, served = mirror
    write_mnist(served / "mnist")
    refused(lambda: sources.get("mnist", tmp_path / "here", False, address), IDX_FILES[0], "hash is wrong")
    assert everything_in(tmp_path / "here") == []


def test_get_when_the_network_fails(mirror: tuple[str, Path], tmp_path: Path) -> None:
    address, _ = mirror
    here = tmp_path / "here"
    hint = f"put it into {here / 'mnist'}"
    refused(lambda: sources.get("mnist", here, False, address), "answers 404", hint)
    refused(lambda: sources.get("mnist", here, False, f"{address}/broken"), "broke off", hint)
    refused(lambda: sources.get("mnist", here, False, "http://127.0.0.1:9"), "no connection to 127.0.0.1:9", hint)
    refused(lambda: sources.get("mnist", here, False, "gopher://x"), "cannot download")
    assert everything_in(here) == []
    (tmp_path / "file").write_text("in the way")
    refused(lambda: sources.get("mnist", tmp_path / "file", False, address), "cannot be written")


def test_get_unpacks_only_what_it_needs(mirror: tuple[str, Path], tmp_path: Path) -> None:
    address, served = mirror
    reviews = write_reviews(tmp_path / "reviews")
    (served / "drug-reviews").mkdir()
    archive = served / "drug-reviews" / "drug+review+dataset+drugs+com.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("../../evil.txt", "out of the folder")
        packed.writestr("readme.txt", "not needed")
        packed.write(reviews / "drugsComTrain_raw.tsv", "../../../drugsComTrain_raw.tsv")
        packed.write(reviews / "drugsComTest_raw.tsv", "deep/drugsComTest_raw.tsv")
    here = tmp_path / "a" / "b" / "here"
    sources.get("drug-reviews", here, progress=False, mirror=address)
    assert everything_in(tmp_path / "a") == [
        f"b/here/drug-reviews/drugsCom{part}_raw.tsv" for part in ("Test", "Train")
    ]
    assert not list(tmp_path.glob("**/evil.txt"))
    assert sources.load("drug-reviews", here).n_train == 115


def test_get_unpacks_a_zip_in_a_zip(mirror: tuple[str, Path], tmp_path: Path) -> None:
    address, served = mirror
    people = write_ppg(tmp_path / "people")
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in catalogue.source_named("ppg-dalia").files:
            packed.write(people / name, f"PPG_FieldStudy/{name}")
    (served / "ppg-dalia").mkdir()
    with zipfile.ZipFile(served / "ppg-dalia" / "ppg+dalia.zip", "w") as outer:
        outer.writestr("data.zip", inner.getvalue())
    in_place = sources.load("ppg-dalia", served)
    folder = sources.get("ppg-dalia", tmp_path / "here", progress=False, mirror=address)
    assert everything_in(folder) == sorted(catalogue.source_named("ppg-dalia").files)
    np.testing.assert_array_equal(sources.load("ppg-dalia", tmp_path / "here").x, in_place.x)


def test_get_leaves_no_bad_archive_behind(mirror: tuple[str, Path], tmp_path: Path) -> None:
    address, served = mirror
    (served / "usc-had").mkdir()
    (served / "usc-had" / "USC-HAD.zip").write_bytes(b"no zip")
    refused(lambda: sources.get("usc-had", tmp_path / "here", False, address), "USC-HAD.zip", "cannot be read")
    with zipfile.ZipFile(served / "usc-had" / "USC-HAD.zip", "w") as packed:
        packed.writestr("readme.txt", "empty")
    refused(lambda: sources.get("usc-had", tmp_path / "here", False, address), "Subject1/a1t1.mat is not in it")
    assert everything_in(tmp_path / "here") == []


def test_digits_need_no_download() -> None:
    assert sources.get("digits") == sources.find("digits")
    report = sources.check("digits")
    assert report.ok
    assert report.rows["0"] == (143, 35)


def test_check_tells_files_and_rows(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    report = sources.check("mnist", tmp_path)
    assert not report.ok  # the small files are not the official ones
    assert {state.hash for state in report.files} == {"wrong"}
    assert report.rows == {str(digit): (3, 2) for digit in range(10)}
    (tmp_path / "mnist" / IDX_FILES[2]).unlink()
    report = sources.check("mnist", tmp_path)
    assert IDX_FILES[2] in report.problem
    assert [state.hash for state in report.files].count("missing") == 1
    write_mnist(tmp_path / "mnist", packed=False)
    (tmp_path / "mnist" / IDX_FILES[0]).unlink()
    (tmp_path / "mnist" / IDX_FILES[0].removesuffix(".gz")).write_bytes(b"bad")
    assert "magic number" in sources.check("mnist", tmp_path).problem


def test_the_hash_of_a_zips_contents_survives_repacking(tmp_path: Path) -> None:
    from fedclade.data.sources.source import fingerprint

    contents = {"a/1.csv": "one", "a/2.csv": "two"}
    prints = []
    for i, (names, method) in enumerate((("12", zipfile.ZIP_STORED), ("21", zipfile.ZIP_DEFLATED))):
        with zipfile.ZipFile(tmp_path / f"{i}.zip", "w", method) as archive:
            archive.mkdir("a")
            archive.writestr("__MACOSX/a/._1.csv", str(i))
            for name in names:
                archive.writestr(f"a/{name}.csv", contents[f"a/{name}.csv"])
        prints.append(fingerprint(tmp_path / f"{i}.zip", "contents"))
    assert prints[0] == prints[1]
    with zipfile.ZipFile(tmp_path / "1.zip", "a") as archive:
        archive.writestr("a/3.csv", "three")
    assert fingerprint(tmp_path / "1.zip", "contents") != prints[0]


def test_checking_many_files_is_told_in_a_few_lines(usc_had: Path) -> None:
    from typer.testing import CliRunner

    from fedclade.cli import app

    result = CliRunner().invoke(app, ["data", "check", "usc-had", "--data-dir", str(usc_had.parent)])
    assert result.exit_code == 0
    assert "840" in result.stdout
    assert len(result.stdout.splitlines()) < 30
