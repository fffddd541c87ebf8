"""GeoTec: people who carry a phone in the pocket and a watch on the wrist, and do the same things with both.

They sit, stand up, walk, turn round, walk back and sit down: that is an execution. A client is one person's device, so
the devices are hidden groups: 23 phones and 23 watches. In the form `orientation` a person's phone is a client for each
way it was in the pocket, and these ways are hidden groups too: 6 phones back, 11 back_inv, 6 front and 1 front_inv
beside the 23 watches. Two phones lay another way for one execution only, which is left out.

A client's last executions test it. Both devices record an execution. By device the same ones test both; by orientation
a phone's last of one way need not be the watch's last, and 3 of the 42 executions that test somebody (by device none of
41) are among the training rows of the person's other device.

M. Matey-Sanz, S. Casteleyn, C. Granell: Dataset of inertial measurements of smartphones and smartwatches for human
activity recognition. Data in Brief, 2023, doi 10.1016/j.dib.2023.109809.
"""

import csv
import io
import re
import zipfile
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedclade.data.federation import Dataset
from fedclade.data.sources.sensors import Recording, csv_columns, dataset_of
from fedclade.data.sources.source import LocalCopy, Source
from fedclade.errors import listed

ACTIVITIES = {
    "SEATED": "seated",
    "STANDING_UP": "standing up",
    "WALKING": "walking",
    "TURNING": "turning",
    "SITTING_DOWN": "sitting down",
}
SIGNALS = [f"{axis}_{sensor}" for sensor in ("acc", "gyro") for axis in "xyz"]
DEVICES = {"sp": "phone", "sw": "watch"}
ORIENTATIONS = ("back", "back_inv", "front", "front_inv")
EXECUTION = re.compile(r"(?:^|/)(s\d+)_(\d+)_(sp|sw)\.csv$")
WINDOW = 50  # half a second at 100 Hz: to stand up takes one second
HELD_OUT = 5  # one execution in five, at least one


def geotec(copy: LocalCopy, form: str) -> Dataset:
    """Windows of 50 rows of 6 signals; the last fifth of a client's executions is for testing."""
    executions: dict[str, list[list[tuple[np.ndarray, int]]]] = defaultdict(list)
    for _, path, stream in copy.streams():
        with copy.reading(path), zipfile.ZipFile(stream) as archive:
            orientation = _orientations(copy, path, archive)
            for person, number, device, member in sorted(_members(archive)):
                way = orientation.get(f"{person}_{number}", "")
                if device == "sp" and way not in ORIENTATIONS:
                    raise copy.damaged(path, f"executions_info.csv does not tell the orientation of {person}_{number}")
                kind = f"phone-{way}" if device == "sp" and form else DEVICES[device]
                where = path / member
                with copy.reading(where):
                    executions[f"{person}-{kind}"].append(_stretches(copy, where, archive.read(member)))
        if not executions:
            raise copy.damaged(path, "it holds no sXX_YY_sp.csv")
    alone = [owner for owner, own in executions.items() if len(own) == 1]  # one execution cannot train and test
    kinds = sorted({owner.partition("-")[2] for owner in executions})
    recordings = [
        Recording(values, label, owner, test, kinds.index(owner.partition("-")[2]))
        for owner, own in executions.items()
        if owner not in alone
        for place, execution in enumerate(own)
        for test in [place >= len(own) - max(1, len(own) // HELD_OUT)]
        for values, label in execution
    ]
    name = f"{copy.source.name}:{form}" if form else copy.source.name
    remarks = (f"of one execution only, left out: {listed(alone, 6)}",) if alone else ()
    return replace(dataset_of(name, recordings, tuple(ACTIVITIES.values()), WINDOW), remarks=remarks)


def _members(archive: zipfile.ZipFile) -> list[tuple[str, str, str, str]]:
    """(person, execution, device, file) of every execution."""
    found = [(EXECUTION.search(name), name) for name in archive.namelist() if "__MACOSX" not in name]
    return [(match[1], match[2], match[3], name) for match, name in found if match]


def _orientations(copy: LocalCopy, path: Path, archive: zipfile.ZipFile) -> dict[str, str]:
    name = next((name for name in archive.namelist() if name.endswith("executions_info.csv")), None)
    if name is None:
        raise copy.damaged(path, "executions_info.csv is not in it")
    rows = csv.DictReader(io.StringIO(archive.read(name).decode("utf-8-sig")))
    return {row["execution_id"]: row["orientation"] for row in rows}


def _stretches(copy: LocalCopy, where: Path, data: bytes) -> list[tuple[np.ndarray, int]]:
    """(signals, activity) of every stretch of one activity."""
    values, activity = csv_columns(data, SIGNALS, "label")
    values = copy.checked_values(where, values)
    names = list(ACTIVITIES)
    strange = set(activity) - set(names)
    if strange or not len(activity):
        raise copy.damaged(where, f"it holds the activity {min(strange)!r}" if strange else "it holds no rows")
    edges = [0, *(np.flatnonzero(activity[1:] != activity[:-1]) + 1), len(activity)]
    return [(values[start:stop], names.index(activity[start])) for start, stop in pairwise(edges)]


SOURCES = (
    Source(
        name="geotec",
        description="23 people with phone and watch: 6 signals at 100 Hz, 5 activities; a client is a person's device",
        licence="CC BY 4.0",
        page="https://doi.org/10.5281/zenodo.8398688",
        read=geotec,
        files=("sp-sw-har-dataset*.zip",),
        forms=("orientation",),
    ),
)
