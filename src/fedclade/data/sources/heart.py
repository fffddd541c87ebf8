"""Heart disease in four hospitals (Fed-Heart-Disease): is a patient's heart ill, by what a first examination shows.

The columns `slope`, `ca` and `thal` are left out, for outside Cleveland hardly any patient has them, and so are
patients with other values missing: 740 of 920 remain. Kinds of pain and of electrocardiogram become categories. The
owner of a row is the hospital; there is no official test set: every fifth patient of each hospital and label is one.
"""

import numpy as np

from fedclade.data.federation import Dataset
from fedclade.data.sources.sensors import standardise
from fedclade.data.sources.source import LocalCopy, Source

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
LEFT_OUT = ("slope", "ca", "thal")
CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}


def heart_disease(copy: LocalCopy, form: str) -> Dataset:
    """15 features: eight numbers, four kinds of chest pain, three kinds of electrocardiogram."""
    import pandas as pd

    tables = []
    for name, path, stream in copy.streams():
        with copy.reading(path):
            table = pd.read_csv(stream, header=None, na_values="?")
            if table.shape[1] != len(COLUMNS):
                raise copy.damaged(path, f"it has {table.shape[1]} columns, not {len(COLUMNS)}")
            table = table.set_axis(COLUMNS, axis=1).drop(columns=list(LEFT_OUT)).dropna().astype(np.float64)
            for column, known in {**CATEGORIES, "num": (0, 1, 2, 3, 4)}.items():
                if not table[column].isin(known).all():
                    raise copy.damaged(path, f"{column} holds something other than {known}")
        tables.append(table.assign(owner=HOSPITALS.index(name.split(".")[1])))
    rows = pd.concat(tables).sort_values("owner", kind="stable", ignore_index=True)
    y = (rows["num"] > 0).to_numpy().astype(np.int64)
    is_test = (rows.groupby(["owner", y]).cumcount() % 5 == 4).to_numpy()
    order = np.argsort(is_test, kind="stable")
    numbers = rows.drop(columns=["num", "owner", *CATEGORIES])
    kinds = [rows[column] == value for column, known in CATEGORIES.items() for value in known]
    x = np.column_stack([numbers, *kinds]).astype(np.float32)[order]
    n_train = int((~is_test).sum())
    standardise(x, n_train)
    owner = rows["owner"].to_numpy(np.int64)[order]
    return Dataset("heart", copy.checked_values(copy.folder, x), y[order], n_train, ("well", "ill"), owner, HOSPITALS)


SOURCES = (
    Source(
        name="heart",
        description="740 patients of 4 hospitals, 15 features: has the heart a disease; a client is a hospital",
        licence="CC BY 4.0",
        page="https://archive.ics.uci.edu/dataset/45/heart+disease",
        read=heart_disease,
        files=tuple(f"processed.{hospital}.data" for hospital in HOSPITALS),
        addresses=("https://archive.ics.uci.edu/static/public/45/",),
        archive="heart+disease.zip",
    ),
)
