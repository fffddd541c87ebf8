"""The sensor data sets: people who wear sensors while they do things.

A recording is what one person did without a break. Recordings are cut into windows (channels, length) or taken row by
row; every channel is then standardised by the mean and standard deviation of the training rows, so that no test value
leaks into them. The owner of a row is the person.
"""

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np

from fedclade.data.federation import Dataset, natural_order
from fedclade.data.sources.mat import load_mat
from fedclade.data.sources.plain_pickle import load_plain_pickle
from fedclade.data.sources.source import LocalCopy, Source
from fedclade.errors import FedcladeError


@dataclass(frozen=True)
class Recording:
    values: np.ndarray  # (time, channels) float32
    label: int
    owner: str
    test: bool
    group: int | None = None  # the owner's hidden group, where that is known


def dataset_of(name: str, recordings: list[Recording], classes: tuple[str, ...], window: int = 0) -> Dataset:
    """Windows of the given length with half of it as overlap, or single rows (window 0); training recordings first."""
    recordings = sorted(recordings, key=lambda recording: recording.test)  # stable: keeps the order inside each part
    cut = [windows(recording.values, window) if window else recording.values for recording in recordings]
    counts = [len(rows) for rows in cut]
    n_train = sum(count for count, recording in zip(counts, recordings, strict=True) if not recording.test)
    if n_train == 0 or n_train == sum(counts):
        raise FedcladeError(f"{name}: the files hold no whole window of {window} rows to train on or to test on")
    owners = sorted({recording.owner for recording in recordings}, key=natural_order)
    number = {owner: place for place, owner in enumerate(owners)}
    groups = {recording.owner: recording.group for recording in recordings if recording.group is not None}
    x = np.concatenate(cut, out=np.empty((sum(counts), *cut[0].shape[1:]), np.float32))
    standardise(x, n_train)
    return Dataset(
        name,
        x,
        np.repeat([recording.label for recording in recordings], counts).astype(np.int64),
        n_train,
        classes,
        owner=np.repeat([number[recording.owner] for recording in recordings], counts).astype(np.int64),
        owners=tuple(owners),
        groups=tuple(groups[owner] for owner in owners) if len(groups) == len(owners) else (),
    )


def windows(values: np.ndarray, length: int) -> np.ndarray:
    """(time, channels) -> (windows, channels, length), each window half a length after the one before."""
    if len(values) < length:
        return np.empty((0, values.shape[1], length), values.dtype)
    return np.lib.stride_tricks.sliding_window_view(values, length, axis=0)[:: length // 2]


def csv_columns(data: bytes, signals: list[str], label: str = "") -> tuple[np.ndarray, np.ndarray]:
    """(time, channels) of a recording's signals, and its column of labels."""
    import pyarrow
    from pyarrow import csv

    types = {**dict.fromkeys(signals, pyarrow.float32()), **({label: pyarrow.string()} if label else {})}
    table = csv.read_csv(
        pyarrow.BufferReader(data),
        csv.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
        convert_options=csv.ConvertOptions(include_columns=list(types), column_types=types),
    )
    values = np.column_stack([table[signal].to_numpy() for signal in signals])
    return values, np.array(table[label].to_pylist() if label else [], dtype=object)


def standardise(x: np.ndarray, n_train: int) -> None:
    """In place, channel by channel: the first n_train rows get mean 0 and standard deviation 1."""
    for channel in range(x.shape[1]):
        training = x[:n_train, channel]
        mean, spread = training.mean(dtype=np.float64), training.std(dtype=np.float64)
        x[:, channel] = (x[:, channel] - np.float32(mean)) / np.float32(spread or 1.0)


# --- MotionSense ------------------------------------------------------------------------------------------------------

MOTIONSENSE_ACTIVITIES = {
    "dws": "downstairs",
    "ups": "upstairs",
    "sit": "sitting",
    "std": "standing",
    "wlk": "walking",
    "jog": "jogging",
}
MOTIONSENSE_SIGNALS = [
    *(f"attitude.{angle}" for angle in ("roll", "pitch", "yaw")),
    *(f"{kind}.{axis}" for kind in ("gravity", "rotationRate", "userAcceleration") for axis in "xyz"),
]
MOTIONSENSE_TRIAL = re.compile(r"(?:^|/)(dws|ups|sit|std|wlk|jog)_(\d+)/sub_(\d+)\.csv$")
MOTIONSENSE_WINDOW = 128  # 2.56 s at 50 Hz
FIRST_SHORT_TRIAL = 11  # trials 1-9 are long, 11-16 short; the authors test on the short ones
MIXED_TEST_FRACTION = 0.2


def motionsense(copy: LocalCopy, form: str) -> Dataset:
    """MotionSense, straight from its zip: windows of 128 rows, or (form `rows`) every row by itself.

    Each activity has one or two long trials, to train on, and short ones, to test on. Under the test view `holdout` the
    short ones are left out, and the last fifth of an activity's rows is for testing: the end of its last long trial.

    The form `mixed-rows` tests on a random fifth of the rows of every trial, whose neighbours are trained on: FedSCCS's
    authors do so.
    """
    recordings = []
    for _, path, stream in copy.streams():
        with copy.reading(path), zipfile.ZipFile(stream) as archive:
            for activity, trial, person, member in _motionsense_trials(archive):
                where = path / member.filename
                with copy.reading(where):
                    values = copy.checked_values(where, csv_columns(archive.read(member), MOTIONSENSE_SIGNALS)[0])
                label = list(MOTIONSENSE_ACTIVITIES).index(activity)
                recordings.append(Recording(values, label, f"person-{person}", test=trial >= FIRST_SHORT_TRIAL))
        if not recordings:
            raise copy.damaged(path, "it holds no <activity>_<trial>/sub_<person>.csv")
    name = f"{copy.source.name}:{form}" if form else copy.source.name
    window = 0 if form else MOTIONSENSE_WINDOW
    if form == "mixed-rows":
        recordings = _mixed(recordings)
    return dataset_of(name, recordings, tuple(MOTIONSENSE_ACTIVITIES.values()), window)


def _mixed(recordings: list[Recording]) -> list[Recording]:
    """Every recording twice, with four fifths of its rows to train on and a fifth to test on."""
    rng = np.random.default_rng(0)
    parts = []
    for recording in recordings:
        held = rng.random(len(recording.values)) < MIXED_TEST_FRACTION
        parts += [replace(recording, values=recording.values[held == test], test=test) for test in (False, True)]
    return parts


def _motionsense_trials(archive: zipfile.ZipFile) -> list[tuple[str, int, int, zipfile.ZipInfo]]:
    """(activity, trial, person, member) of every trial, without test files that repeat a training file.

    Upstream `sit_13/sub_1.csv` is `sit_5/sub_1.csv` byte for byte: to test on it would be to test on training rows.
    """
    trials = []
    for member in archive.infolist():
        match = MOTIONSENSE_TRIAL.search(member.filename)
        if match and "__MACOSX" not in member.filename:
            trials.append((match[1], int(match[2]), int(match[3]), member))
    trials.sort(key=lambda trial: (trial[2], trial[0], trial[1]))
    trained_on = {(member.CRC, member.file_size) for _, trial, _, member in trials if trial < FIRST_SHORT_TRIAL}
    return [
        (activity, trial, person, member)
        for activity, trial, person, member in trials
        if trial < FIRST_SHORT_TRIAL or (member.CRC, member.file_size) not in trained_on
    ]


# --- USC-HAD ----------------------------------------------------------------------------------------------------------

USC_HAD_ACTIVITIES = (
    *("walking forward", "walking left", "walking right", "walking upstairs", "walking downstairs"),
    *("running forward", "jumping up", "sitting", "standing", "sleeping", "elevator up", "elevator down"),
)
USC_HAD_FILES = tuple(
    f"Subject{person}/a{activity}t{trial}.mat"
    for person in range(1, 15)
    for activity in range(1, 13)
    for trial in range(1, 6)
)
USC_HAD_WINDOW = 200  # 2 s at 100 Hz
USC_HAD_TEST_TRIAL = 5  # there is no official test set: the last of five trials is one


def usc_had(copy: LocalCopy, form: str) -> Dataset:
    """USC-HAD: windows of 200 rows of 6 axes; the fifth trial of every activity is for testing.

    The label comes from the file's name, because the fields inside are not spelled alike in all 840 files.
    """
    recordings = {}
    for name, path, stream in copy.streams():
        with copy.reading(path):
            contents = load_mat(stream.read(), ("sensor_readings",))
            values = np.asarray(contents.get("sensor_readings", ()))
            if values.ndim != 2 or values.shape[1] != 6:
                raise copy.damaged(path, f"sensor_readings has shape {values.shape}, not (rows, 6)")
            values = copy.checked_values(path, values)
        person, activity, trial = (int(number) for number in re.findall(r"\d+", name))
        recordings[name] = Recording(values, activity - 1, f"person-{person}", test=trial == USC_HAD_TEST_TRIAL)
    in_order = [recordings[name] for name in USC_HAD_FILES]
    return dataset_of("usc-had", in_order, USC_HAD_ACTIVITIES, USC_HAD_WINDOW)


# --- PPG-DaLiA --------------------------------------------------------------------------------------------------------

PPG_ACTIVITIES = ("sitting", "stairs", "table soccer", "cycling", "driving", "lunch", "walking", "working")  # 1 to 8
PPG_SIGNALS = (  # device, signal, samples in one tick of the 4 Hz activity track, channels
    ("wrist", "ACC", 8, 3),
    ("wrist", "BVP", 16, 1),
    ("wrist", "EDA", 1, 1),
    ("wrist", "TEMP", 1, 1),
    ("chest", "ACC", 175, 3),
    ("chest", "ECG", 175, 1),
    ("chest", "Resp", 175, 1),
)
PPG_FILES = tuple(f"S{person}/S{person}.pkl" for person in range(1, 16))
PPG_WINDOW = 32  # 8 s, the window of the data set's authors
PPG_TEST_FRACTION = 0.2


def ppg_dalia(copy: LocalCopy, form: str) -> Dataset:
    """PPG-DaLiA at the 4 Hz of its activity track: every tick is a row, or (form `windows`) 32 ticks are a window.

    A tick's 20 features are the mean of each of the 11 channels over its quarter of a second, then the standard
    deviation of the 9 channels that are sampled faster; form `acceleration` has the three axes of the wrist only
    (Clustered FedStack takes acceleration in three dimensions, and does not say of which device). Ticks between
    activities (activity 0) are left out. There is no official test set: the last fifth of every stretch of one activity
    is one.
    """
    recordings = {}
    for name, path, stream in copy.streams():
        with copy.reading(path):
            recordings[name] = list(_ppg_recordings(copy, path, stream, f"person-{name[1 : name.index('/')]}"))
    in_order = [recording for name in PPG_FILES for recording in recordings[name]]
    if form == "acceleration":
        in_order = [replace(recording, values=recording.values[:, :3]) for recording in in_order]
    name = f"{copy.source.name}:{form}" if form else copy.source.name
    return dataset_of(name, in_order, PPG_ACTIVITIES, PPG_WINDOW if form == "windows" else 0)


def _ppg_recordings(copy: LocalCopy, path: Path, stream: IO[bytes], person: str) -> Iterator[Recording]:
    contents = load_plain_pickle(stream)
    try:
        activity = np.ravel(contents["activity"])
        signals = [
            np.asarray(contents["signal"][device][signal]).reshape(-1, channels)
            for device, signal, _, channels in PPG_SIGNALS
        ]
    except (KeyError, TypeError, IndexError) as error:
        raise copy.damaged(path, f"it has no {error}") from error
    if not np.isin(activity, np.arange(9)).all():
        raise copy.damaged(path, "its activities are not numbers from 0 to 8")
    ticks = min(len(activity), *(len(s) // rate for s, (_, _, rate, _) in zip(signals, PPG_SIGNALS, strict=True)))
    activity = activity[:ticks].astype(np.int64)
    features = copy.checked_values(path, _tick_features(signals, ticks))
    edges = [0, *(np.flatnonzero(np.diff(activity)) + 1), ticks]
    for start, stop in pairwise(edges):
        if stop > start and activity[start] > 0:
            cut = stop - round((stop - start) * PPG_TEST_FRACTION)
            label = int(activity[start]) - 1
            yield Recording(features[start:cut], label, person, test=False)
            yield Recording(features[cut:stop], label, person, test=True)


def _tick_features(signals: list[np.ndarray], ticks: int) -> np.ndarray:
    means, spreads = [], []
    for values, (_, _, samples, channels) in zip(signals, PPG_SIGNALS, strict=True):
        by_tick = values[: ticks * samples].reshape(ticks, samples, channels)
        means.append(by_tick.mean(axis=1))
        if samples > 1:
            spreads.append(by_tick.std(axis=1))
    return np.concatenate([*means, *spreads], axis=1)


SOURCES = (
    Source(
        name="motionsense",
        description="24 people with a phone in the pocket: 12 signals at 50 Hz, 6 activities",
        licence="MIT",
        page="https://github.com/mmalekzadeh/motion-sense",
        read=motionsense,
        files=("A_DeviceMotion_data.zip",),
        addresses=("https://github.com/mmalekzadeh/motion-sense/raw/master/data/",),
        forms=("rows", "mixed-rows"),
        hashes={"A_DeviceMotion_data.zip": "contents:f6313dad53ee094449f1fe4a3995451e4c4c71c2bee7321af32879311e8becb2"},
    ),
    Source(
        name="usc-had",
        description="14 people with a sensor on the hip: 6 axes at 100 Hz, 12 activities",
        licence="not stated",
        page="https://sipi.usc.edu/had/",
        read=usc_had,
        files=USC_HAD_FILES,
        addresses=("https://sipi.usc.edu/had/",),
        archive="USC-HAD.zip",
        unpacks_to=("USC-HAD",),
    ),
    Source(
        name="ppg-dalia",
        description="15 people with a wrist and a chest sensor: 20 features at 4 Hz, 8 activities",
        licence="CC BY 4.0",
        page="https://archive.ics.uci.edu/dataset/495/ppg+dalia",
        read=ppg_dalia,
        files=PPG_FILES,
        addresses=("https://archive.ics.uci.edu/static/public/495/",),
        archive="ppg+dalia.zip",
        unpacks_to=("PPG_FieldStudy", "data/PPG_FieldStudy"),
        forms=("windows", "acceleration"),
    ),
)
