"""Synthetic data: people with a sensor, for trying things out where nothing can be downloaded.

Twelve people do four activities. Each activity is a motion of its own pace; half of the people wear the sensor turned
round, which makes two hidden groups; and everyone moves a little differently. All of it follows from a fixed seed.
"""

import numpy as np

from fedclade.data.federation import Dataset
from fedclade.data.sources.sensors import Recording, dataset_of
from fedclade.data.sources.source import LocalCopy, Source

ACTIVITIES = ("resting", "walking", "running", "jumping")
PEOPLE, CHANNELS = 12, 6
WINDOW = 40
TRAINING, TEST = 10, 4  # windows (before overlap) of each activity and person
NOISE = 0.6


def synthetic_people(copy: LocalCopy, form: str) -> Dataset:
    """Windows of 40 moments, or (form `rows`) every moment by itself."""
    random = np.random.default_rng(2024)
    shape = random.normal(size=(len(ACTIVITIES), 2, CHANNELS))  # how far each channel swings, and where it rests
    turned = random.permutation(CHANNELS)
    recordings = []
    for person in range(PEOPLE):
        pace, strength = random.uniform(0.9, 1.1), random.uniform(0.8, 1.2)
        for label, (swing, rest) in enumerate(shape):
            for windows, test in ((TRAINING, False), (TEST, True)):
                moment = np.arange(windows * WINDOW)[:, None]
                phase = random.uniform(0, 2 * np.pi, CHANNELS)
                values = rest + strength * swing * np.sin(0.3 * label * pace * moment + phase)
                values = values + NOISE * random.normal(size=values.shape)
                values = values[:, turned] * -1 if person % 2 else values
                recordings.append(Recording(values.astype(np.float32), label, f"person-{person + 1}", test, person % 2))
    name = f"synthetic:{form}" if form else "synthetic"
    return dataset_of(name, recordings, ACTIVITIES, 0 if form == "rows" else WINDOW)


SOURCES = (
    Source(
        name="synthetic",
        description="12 invented people with a sensor: 6 signals, 4 activities, 2 hidden groups; nothing to download",
        licence="MIT",
        page="",
        read=synthetic_people,
        forms=("rows",),
        package="fedclade",
    ),
)
