"""The example of typed code that users write (`make check` has mypy look at it as strictly as it can) also runs."""

from pathlib import Path

import numpy as np

import typed_example


def test_the_example_runs(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    data = {name: (random.random((20, 4), np.float32), np.arange(20) % 2) for name in ("anna", "ben", "carl")}
    accuracy = typed_example.main(data, tmp_path / "run")
    assert accuracy is not None
    assert 0 <= accuracy <= 1
