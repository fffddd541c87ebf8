"""What a command need not wait for."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedclade.data import federation_of

HEAVY = ("torch", "sklearn", "pandas", "scipy", "pyarrow", "flwr", "ray")
LOOK = "import sys; print([name for name in {names} if name in sys.modules], file=sys.stderr)"


def imported_by(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{LOOK.format(names=HEAVY)}"], capture_output=True, text=True, check=True
    )
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("words", [["methods"], ["--help"], ["run", "--help"], ["splits"]])
def test_lists_and_help_import_nothing_heavy(words: list[str]) -> None:
    call = f"from fedclade.cli import app\ntry:\n    app({words!r})\nexcept SystemExit:\n    pass"
    assert imported_by(call) == "[]"


def test_settings_are_read_without_torch() -> None:
    assert imported_by("from fedclade.settings import Settings; Settings(method='fedclust')") == "[]"


def test_a_run_does_not_wait_for_pandas() -> None:
    found = imported_by("import fedclade; fedclade.run(method='fedavg', rounds=0, workers=1)")
    assert found == "['torch', 'pyarrow']"


def test_the_digits_are_those_of_scikit_learn() -> None:
    ours, theirs = federation_of("digits", "iid", 5), load_digits()
    assert ours.x.shape == (1797, 1, 8, 8)
    assert np.array_equal(np.bincount(ours.y), np.bincount(theirs.target))
    assert ours.x.sum() == np.rint(theirs.data * (255 / 16)).sum()
