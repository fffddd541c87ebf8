"""A study runs its cells, names the one that fails, does not run again what is done, and makes a table."""

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import fedclade
from expect import refused
from fedclade.cli import app
from fedclade.compare import Comparison, Study, compare
from fedclade.errors import FedcladeError
from fedclade.runs.folder import RunFolder
from fedclade.tables import to_latex, to_markdown

NAMES = {"FedAvg": "FedAvg", "FedClust 50 %": "FedClust-50"}  # labels, and the folders of their runs
SETTINGS = {"data": "digits", "split": "label-groups:2", "clients": 4, "rounds": 2, "model": "mlp", "rows": 40}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    out = tmp_path_factory.mktemp("study")
    cells = [
        {"label": "FedAvg", "method": "fedavg"},
        {"label": "FedClust 50 %", "participation": 0.5, "method": {"name": "fedclust", "n_clusters": 2}},
        {"label": "too many clusters", "method": {"name": "fedclust", "n_clusters": 99}},
    ]
    plan = {"title": "A study", "seeds": (0, 1), "target": 0.01, "settings": SETTINGS, "cells": cells}
    comparison = compare(Study.of(plan), out, workers=1)
    assert set(comparison.failures) == {("too many clusters", 0), ("too many clusters", 1)}
    assert "99" in comparison.failures["too many clusters", 0]
    return out, plan


def test_the_table_has_a_row_for_each_cell_that_ended(finished: tuple[Path, dict[str, object]]) -> None:
    out, plan = finished
    study = Study.of(plan)
    again: list[str] = []
    comparison = compare(study, out, workers=1, on_run=lambda run, failure: again.append(run.label))
    assert again == ["too many clusters"] * 2  # the others are done
    table = comparison.table()
    assert list(table["label"]) == ["FedAvg", "FedClust 50 %"]
    results = [RunFolder.open(out / "FedAvg" / f"seed-{seed}").read_json("result.json") for seed in (0, 1)]
    assert table["accuracy_mean"][0] == pytest.approx(sum(result["accuracy"]["mean"] for result in results) / 2)
    assert table["rounds_to"][0] is not None
    assert table["p_best"].notna().sum() == 1  # one of the two is the best
    comparison.write()
    assert {"table.md", "table.tex", "table.csv", "table.html", "runs.csv"} <= {path.name for path in out.iterdir()}


def test_local_models_are_compared_on_the_clients_that_all_have_trained(
    finished: tuple[Path, dict[str, object]],
) -> None:
    """FedClust's training before its clusters serves nobody: whom it never drew again has no model that counts."""
    out, plan = finished
    results = Comparison(Study.of(plan), out).results().set_index(["label", "seed"])
    for seed in (0, 1):
        histories = {label: RunFolder.open(out / label / f"seed-{seed}").table("history") for label in NAMES.values()}
        drawn = histories["FedClust-50"].query("round > 0 and trained")["client"].unique()
        assert 0 < len(drawn) < 4
        measured = histories["FedClust-50"].dropna(subset=["accuracy_local"])["client"].unique()
        assert set(measured) == set(drawn)
        for name, label in NAMES.items():
            last = histories[label].dropna(subset=["accuracy_local"]).groupby("client")["accuracy_local"].last()
            assert results.loc[(name, seed), "local_clients"] == len(drawn)
            assert results.loc[(name, seed), "accuracy_local_mean"] == pytest.approx(last[list(drawn)].mean())


def test_tables_are_written_in_words_that_can_be_pasted(finished: tuple[Path, dict[str, object]]) -> None:
    out, plan = finished
    study = Study.of(plan)
    rows = Comparison(study, out).words()
    assert {"cluster model", "locally trained model", "rounds to target"} <= set(rows[0])
    assert all(len(row) == len(rows[0]) for row in rows)
    assert to_markdown(rows).splitlines()[3].startswith("| FedClust 50 % |")
    assert r"FedClust 50 \%" in to_latex(rows)


def test_runs_made_with_other_settings_are_not_taken_for_these(finished: tuple[Path, dict[str, object]]) -> None:
    out, plan = finished
    with pytest.raises(FedcladeError, match=r"FedAvg.seed-0 was made with rows = 40, not 30"):
        compare(Study.of({**plan, "settings": {**SETTINGS, "rows": 30}}), out, workers=1)


def test_cells_change_single_settings_inside_shared_tables(tmp_path: Path) -> None:
    shared = {"participation": 0.5, "training": {"learning_rate": 0.2}}
    cells = [{"label": "a", "method": "ifca"}, {"label": "b", "training": {"momentum": 0.1}}]
    ifca, fedavg = Study.of({"settings": shared, "cells": cells, "seeds": [0]}).runs(tmp_path)
    assert ifca.settings == {**shared, "method": "ifca", "seed": 0}
    assert fedavg.settings == {**shared, "training": {"learning_rate": 0.2, "momentum": 0.1}, "seed": 0}


def test_wrong_studies_are_one_line() -> None:
    with pytest.raises(FedcladeError, match="cells"):
        Study.of({"cells": []})
    with pytest.raises(FedcladeError, match="same label"):
        Study.of({"cells": [{"label": "a"}, {"label": "a"}]})
    with pytest.raises(FedcladeError, match="did you mean 'fedavg'"):
        Study.of({"cells": [{"label": "a", "method": "fedavgg"}]})
    with pytest.raises(FedcladeError, match="did you mean 'cells'"):
        Study.of({"cels": [{"label": "a"}]})
    with pytest.raises(FedcladeError, match=r"cells.0.label is missing"):
        Study.of({"cells": [{"method": "fedavg"}]})
    with pytest.raises(FedcladeError, match="settings = 3 is wrong"):
        Study.of({"settings": 3, "cells": [{"label": "a"}]})
    result = CliRunner().invoke(app, ["compare"])
    assert result.exit_code == 2


def test_rows_of_other_experiments_are_named(tmp_path: Path) -> None:
    cells = [{"label": "a", "method": "local"}, {"label": "b", "method": "fedavg", "rounds": 1}]
    comparison = compare(Study.of({"settings": SETTINGS, "cells": cells, "seeds": (0,)}), tmp_path, workers=1)
    assert comparison.warning() == "Not all rows are of one experiment (rounds 2: a; rounds 1: b)."
    comparison.write()
    assert comparison.warning() in (tmp_path / "table.md").read_text()


def test_cells_of_one_experiment_need_no_warning(finished: tuple[Path, dict[str, object]]) -> None:
    out, plan = finished
    assert Comparison(Study.of(plan), out).warning() == ""


def test_a_study_of_which_no_run_ends_says_why(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    pd.DataFrame({"age": [1, 2, 3], "label": [0, 1, 0]}).to_csv(rows / "a.csv", index=False)
    settings = {"data": f"folder:{rows}", "rounds": 0, "data_options": {"label": "nope"}}
    cells = [{"label": name, "method": name} for name in ("fedavg", "local")]
    study = Study.of({"cells": cells, "seeds": (0,), "settings": settings})
    refused(compare(study, tmp_path / "out", workers=1).write, "no run of the study", "data.label is 'nope'")


def test_what_was_run_with_another_text_or_other_rows_is_not_taken_for_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An author changes the method, or the table, and runs the same comparison again."""

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    method, table = tmp_path / "mine_changed.py", tmp_path / "own.csv"
    method.write_text("from fedclade.methods import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    rows = pd.DataFrame({"a": range(40), "site": list("ab") * 20, "y": [0, 0, 1, 1] * 10})
    rows.to_csv(table, index=False)
    own = {"data": "table:own.csv", "data_options": {"client": "site", "label": "y"}, "rounds": 1}
    study = Study.of({"seeds": (0,), "settings": own, "cells": [{"label": "mine", "method": "mine_changed:Mine"}]})
    assert not compare(study, tmp_path / "out", workers=1).failures
    compare(study, tmp_path / "out", workers=1)
    rows.assign(a=rows["a"] % 7).to_csv(table, index=False)
    refused(lambda: compare(study, tmp_path / "out", workers=1), "mine", "other rows than table:own.csv")
    rows.to_csv(table, index=False)
    method.write_text(f"{method.read_text()}\n\nMORE = 1\n")
    refused(lambda: compare(study, tmp_path / "out", workers=1), "mine", "another text of mine_changed")
    with pytest.warns(UserWarning, match="mine_changed changed"):
        fedclade.resume(tmp_path / "out" / "mine" / "seed-0", rounds=2)


def test_runs_that_predict_other_columns_are_other_experiments(tmp_path: Path) -> None:
    from fedclade.experiments import how_they_differ

    rows = pd.DataFrame({"a": range(40), "site": list("ab") * 20, "y": [0, 0, 1, 1] * 10, "z": [0, 1, 1, 0] * 10})
    rows.to_csv(tmp_path / "own.csv", index=False)
    runs = [
        fedclade.run(
            f"table:{tmp_path / 'own.csv'}",
            method="fedavg",
            rounds=1,
            workers=1,
            data_options={"client": "site", "label": label},
        )
        for label in "yz"
    ]
    assert how_they_differ(runs) == "label (y, z)"
