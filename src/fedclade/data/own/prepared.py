"""New rows without labels -> what the networks of a run take: what was done with the rows of the run is done again."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedclade.data.options import DataOptions
from fedclade.data.own.files import read_rows
from fedclade.data.own.given import is_frame, rows_as_numbers
from fedclade.data.own.tables import Table, columns_of, texts_of
from fedclade.data.preprocessing import Columns, Preprocessing
from fedclade.errors import FedcladeError, listed


def prepared(
    data: Any, known: Mapping[str, Any] | None, options: DataOptions, where: str = "the rows", client: str | None = None
) -> np.ndarray:
    """From a file as clients have them, a DataFrame or an array; `known` is the preprocessing that a run recorded.

    `client` is whose rows they are meant to be: a table may name others.
    """
    if isinstance(data, str | Path):
        where, data = f"{data}", read_rows(Path(data).expanduser(), options)
    elif is_frame(data):
        data = Table.of_frame(data).read_as(options)
    preprocessing = None if known is None else Preprocessing.model_validate(known)
    if preprocessing is not None and preprocessing.scaling == "client":
        raise FedcladeError("each client of this run scales by its own rows: only it can prepare rows for its model")
    if isinstance(data, Table):
        columns = _columns(data, preprocessing, where)
        if client is not None and options.client in data.names:
            strange = [name for name in texts_of(data[options.client]).tolist() if name not in (client, None)]
            if strange:
                told = f"{len(strange):,} of {len(data):,} rows are of other clients by column {options.client!r}"
                warnings.warn(f"{where}: {told}, as {strange[0]!r}: the model of {client!r} is asked all", stacklevel=3)
    else:
        x = rows_as_numbers(data, where, options)
        if preprocessing is None:
            return x
        if x.shape[1] != len(preprocessing.columns):
            raise FedcladeError(f"{where}: {x.shape[1]} features, but the run has {listed(preprocessing.columns)}")
        columns = Columns(x, {})
    assert preprocessing is not None
    features = preprocessing.apply(columns, None, lambda row: f"{where}: row {row}")
    for remark in (*preprocessing.unknown(columns.texts), *preprocessing.apart(columns)):
        warnings.warn(f"{where}: {remark}", stacklevel=3)
    return features


def _columns(table: Table, preprocessing: Preprocessing | None, where: str) -> Columns:
    if preprocessing is None:
        raise FedcladeError(f"{where}: it is a table, but the clients of the run have arrays: give an .npz with x")
    missing = [name for name in preprocessing.columns if name not in table.names]
    if missing:
        raise FedcladeError(
            f"{where}: it lacks the column {missing[0]!r}: the run needs {listed(preprocessing.columns)}"
        )
    numbers, texts = ([each.name for each in kind] for kind in (preprocessing.numbers, preprocessing.texts))
    return columns_of(table, numbers, texts, where)
