"""The examples run, and find what they say they find."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES / name)
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / name / "example.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "example", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["hospitals", "wearables", "pictures", "characters", "own_method", "flower_app"])
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "pictures":
        pytest.importorskip("PIL")
    if name == "flower_app":
        pytest.importorskip("ray")
    result = example(name, monkeypatch).main(tmp_path)
    assert not len(result.failures)
    assert len(result.clusters) == 2
    assert (EXAMPLES / name / "README.md").is_file()
    if name == "hospitals":
        assert "fedclust paid" in result.verdict
    if name == "own_method":
        assert result.agreement["ari"] == 1
    if name == "pictures":
        assert result.accuracy["mean"] > 0.9


def test_the_notebook_runs() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "notebook" / "first_steps.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("accuracy" in str(output.get("data", "")) for output in outputs)
