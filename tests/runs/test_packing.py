"""Tables without pandas are those that pandas makes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from fedclade.runs import packing

ROWS = [
    {
        **{"round": k, "client": f"c{k} é", "loss": k / 3 if k % 2 else None, "trained": k % 3 == 0, "failure": ""},
        **{"never": None, "small": np.float32(k), "count": np.int64(k), **({"late": 3} if k > 7 else {})},
    }
    for k in range(20)
]


def test_a_table_is_the_one_that_pandas_makes() -> None:
    expected = pd.DataFrame(ROWS)
    found = packing.table_of(ROWS).to_pandas()
    pd.testing.assert_frame_equal(found, expected)


def test_values_are_those_of_arrow_in_pieces_too(tmp_path: Path) -> None:
    packing.save_table(tmp_path / "table.parquet", packing.table_of(ROWS))
    table = packing.load_table(tmp_path / "table.parquet")
    in_pieces = pa.concat_tables([table.slice(3, 5), table, table.slice(0, 0)])
    for some in (table, in_pieces):
        for name in some.column_names:
            found, expected = packing.values_of(some[name]), some[name].to_numpy()
            assert found.dtype == expected.dtype
            assert found.tolist() == expected.tolist() or np.array_equal(found, expected, equal_nan=True)


def test_a_table_without_rows(tmp_path: Path) -> None:
    packing.save_table(tmp_path / "table.parquet", packing.table_of([]))
    assert len(packing.load_table(tmp_path / "table.parquet")) == 0
