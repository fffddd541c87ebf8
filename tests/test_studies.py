"""The studies behind pages of the documentation still run: on digits, which need no download."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fedclade
from fedclade.compare import Study, compare
from fedclade.reproduce.papers import adacfl, hicfl
from fedclade.tables import to_markdown
from synthetic import planted


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "studies"))
    return importlib.import_module


@pytest.fixture
def automatic(study: Callable[[str], ModuleType]) -> ModuleType:
    return study("automatic")


def test_the_automatic_number_is_judged_in_every_way(automatic: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [("digits", "label-groups:2"), ("digits", "iid")]
    monkeypatch.setattr(automatic, "SETTINGS", cases)
    rows = [automatic.one((*case, 0, way, None)) for case in cases for way in automatic.WAYS]
    assert [row["found"] for row in rows] == [2] * len(automatic.WAYS) + [1] * len(automatic.WAYS)
    assert all(row["ari"] == 1 for row in rows)
    text = automatic.document(rows)
    assert "| digits | label-groups:2 | 2 | 2 | 1/1 | 1.00 | 1.00 | 1.00 | 1.00 |" in text
    assert text.count("| digits |") == 4


FEDCLUST = """row,column,seed,run,"cluster model, %","locally trained model, %"
FedAvg,FMNIST,0,a,70,95
FedAvg,FMNIST,1,a,74,95
"FedClust, the paper's K",FMNIST,0,b,80,94
"FedClust, the paper's K",FMNIST,1,b,90,96.5
IFCA,FMNIST,0,c,80,90
"PACFL, automatic",FMNIST,1,d,80,96
"""

FEDCLUST_ROUNDS = """row,column,seed,run,"rounds, cluster models","rounds, locally trained models"
"FedClust, the paper's K",FMNIST,0,a,21,14
"PACFL, its authors' angles and threshold",FMNIST,0,b,5,14
"""


def test_claims_are_judged_by_seeds_that_both_have(study: Callable[[str], ModuleType], tmp_path: Path) -> None:
    papers = study("papers")
    assert papers.section(tmp_path) == ""
    assert "| `hicfl/table3` | HiCFL needs 27 to 81 % fewer rounds than MTCFL | not run |" in papers.not_made(tmp_path)
    assert "| `fedstack/fig4` | lowest with three clusters | ppg-dalia not at hand |" in papers.not_made(tmp_path)
    (tmp_path / "fedclust-table1.csv").write_text(FEDCLUST)
    rows = [line.split(" | ")[2:] for line in papers.section(tmp_path).splitlines() if "| FMNIST |" in line]
    mine, own, served = "FedClust, the paper's K above", "locally trained models", "cluster models"
    unlike = ", if unlike models are compared"
    assert [[word.rstrip(" |") for word in row] for row in rows] == [
        [f"{mine} FedAvg", f"{own} against {served}", "+20.82", "+23.25 ± 0.75", "2", f"holds here{unlike}"],
        [f"{mine} FedAvg", own, "+20.82", "+0.25 ± 1.25", "2", "open, by less than the paper's"],  # p = .04
        [f"{mine} FedAvg", served, "+20.82", "+13.00 ± 3.00", "2", "open"],  # p = .14, and .23 against the paper's
        [f"{mine} IFCA", own, "+1.09", "+4.00", "1", "open, one seed"],
        [f"{mine} IFCA", served, "+1.09", "+0.00", "1", "the same result"],
        # of a PACFL by this package's rule the paper has no number
        [f"{mine} PACFL, automatic", own, "+0.50", "1", "open, one seed"],
        [f"{mine} PACFL, automatic", served, "+10.00", "1", "holds here, one seed"],
    ]


def test_the_main_claims_stand_by_their_answers(study: Callable[[str], ModuleType], tmp_path: Path) -> None:
    papers, results = study("papers"), study("results")
    assert papers.in_short(tmp_path) == []
    (tmp_path / "fedclust-table1.csv").write_text(FEDCLUST + '"FedAvg",CIFAR-10,0,e,30,\n"IFCA",CIFAR-10,0,f,50,\n')
    (tmp_path / "fedclust-table4.csv").write_text(FEDCLUST_ROUNDS)
    (tmp_path / "fedsccs-fig5.csv").write_text(FEDSCCS)
    page, mine = f"[FedClust, Table 1]({tmp_path.name}/fedclust-table1.md)", "FedClust, the paper's K above"
    own, served = "locally trained models", "cluster models"
    assert papers.in_short(tmp_path) == [
        [page, f"{mine} FedAvg", f"{own} against {served}", "FMNIST +23.25 ± 0.75 (+20.82)", "", ""],
        [page, f"{mine} FedAvg", own, "", "FMNIST +0.25 ± 1.25‡ (+20.82)", ""],
        [page, f"{mine} FedAvg", served, "", "FMNIST +13.00 ± 3.00 (+20.82)", ""],
        [page, f"{mine} IFCA", own, "", "FMNIST +4.00* (+1.09)", ""],
        [page, f"{mine} IFCA", served, "", "FMNIST +0.00* (+1.09)", ""],
        [  # on other trials the paper has no number, so that this is no claim of it
            f"[FedSCCS, Figure 5]({tmp_path.name}/fedsccs-fig5.md)",
            "FedSCCS above FedAvg",
            served,
            "random rows +20.00* (+10.57)",
            "",
            "",
        ],
    ]
    about = "Clustered FedStack: windows of people, other trials; 4 rounds"
    told = [
        (about, results.Claim("one above another", "-9.0 points", results.judged(False), paper="4 to 8 points")),
        (about, results.Claim("a question of ours", "+9.0 points", results.judged(True), ours=True)),
        ("HiCFL: small; 2 rounds", results.Claim("at full scale above", "+9.0 points", results.judged(True))),
    ]
    last = results.in_short(tmp_path, told).splitlines()[-1]
    assert last.endswith(
        "| one above another | cluster models |  |  | windows of people, other trials -9.0 points (4 to 8 points) |"
    )
    assert "question" not in results.in_short(tmp_path, told)


def test_fewer_rounds_are_better(study: Callable[[str], ModuleType], tmp_path: Path) -> None:
    papers = study("papers")
    (tmp_path / "fedclust-table4.csv").write_text(FEDCLUST_ROUNDS)
    text = papers.section(tmp_path)
    words = "FedClust, the paper's K before PACFL, its authors' angles and threshold | rounds"
    assert f"| {words}, locally trained models | +6 rounds | +0 rounds | 1 | the same result |" in text
    assert f"| {words}, cluster models | +6 rounds | -16 rounds | 1 | open, one seed, far below the paper's |" in text
    assert "of seed 0), by" in text


FEDSCCS_FEW = """row,column,seed,run,"models sent, %","cluster model, %"
"K = 10, one at random",random rows,0,e,47.5,84
"K = 10, power of choice",random rows,0,f,58.75,89
"K = 10, power of choice",random rows,1,f,60,89
"""


def test_a_figure_may_be_of_runs_of_two_others(study: Callable[[str], ModuleType], tmp_path: Path) -> None:
    papers = study("papers")
    (tmp_path / "fedsccs-fig5.csv").write_text(FEDSCCS)
    (tmp_path / "fedsccs-fig8.csv").write_text(FEDSCCS_FEW)
    text = papers.section(tmp_path)
    assert (
        "| FedSCCS, one at random above FedAvg | cluster models | +6.30 | +14.00 | 1 | holds here, one seed, "
        "far above the paper's |" in text
    )
    close = "FedSCCS, one at random within 3 points of FedSCCS, power of choice"
    assert f"| {close} | cluster models | close | -5.00 | 1 | open, one seed |" in text
    assert "59.4 % on random rows (of 2 seeds): **holds here**" in text


ADACFL = """row,column,seed,run,"cluster model, %",clusters,rounds until within a point of the end
FedAvg,"MNIST, alpha 0.5",0,a,96,1,12
FedAvg,"MNIST, alpha 0.5",1,a,97,1,14
IFCA,"MNIST, alpha 0.5",0,b,95,5,6
IFCA,"MNIST, alpha 0.5",1,b,95.5,5,6
"AdaCFL, threshold 1.4","MNIST, alpha 0.5",0,c,96,1,12
"AdaCFL, threshold 1.4","MNIST, alpha 0.5",1,c,97,1,14
"AdaCFL, automatic threshold","MNIST, alpha 0.5",0,d,93,5,3
"AdaCFL, automatic threshold","MNIST, alpha 0.5",1,d,94,5,4
"""


def test_a_claim_is_what_the_papers_own_numbers_say(study: Callable[[str], ModuleType], tmp_path: Path) -> None:
    papers = study("papers")
    (tmp_path / "adacfl-table2.csv").write_text(ADACFL)
    text = papers.section(tmp_path)
    rows = [line.strip("| ").split(" | ")[2:] for line in text.splitlines() if "| MNIST, alpha 0.5 |" in line]
    whole, found, served = "AdaCFL, threshold 1.4", "AdaCFL, automatic threshold", "cluster models"
    level = "rounds until within a point of the end, cluster models"
    of_all, unsplit = f", where {whole} made one cluster of all", "nothing was split, which is FedAvg"
    assert rows == [  # there AdaCFL has 96.53, FedAvg 97.03 and IFCA 96.12
        [f"FedAvg above {whole}", served, "+0.50", "+0.00 ± 0.00", "2", f"does not hold here: {unsplit}"],
        [f"{whole} above IFCA", served, "+0.41", "+1.25 ± 0.25", "2", f"open{of_all}"],
        [f"FedAvg above {found}", served, "+0.50", "+3.00 ± 0.00", "2", "holds here, by more than the paper's"],
        [f"{found} above IFCA", served, "+0.41", "-1.75 ± 0.25", "2", "open"],
        # rounds until within a point of the end: there 15, 8 and 4
        [
            f"{whole} before FedAvg",
            level,
            "+11 rounds",
            "+0 rounds ± 0",
            "2",
            f"does not hold here: {unsplit}",
        ],
        [f"{whole} before IFCA", level, "+4 rounds", "-7 rounds ± 1", "2", f"open{of_all}"],
        [f"{found} before FedAvg", level, "+11 rounds", "+10 rounds ± 0", "2", "holds here"],
        [f"{found} before IFCA", level, "+4 rounds", "+2 rounds ± 0", "2", "open"],
    ]


FEDSCCS = """row,column,seed,run,"cluster model, %",clusters
FedSCCS,random rows,0,a,90,10
FedAvg,random rows,0,b,70,1
FedSCCS,other trials,0,c,60,10
FedAvg,other trials,0,d,70,1
"""


def test_what_a_paper_has_no_number_of_is_no_claim_of_it(study: Callable[[str], ModuleType], tmp_path: Path) -> None:
    papers = study("papers")
    (tmp_path / "fedsccs-fig5.csv").write_text(FEDSCCS)
    claims, besides = papers.section(tmp_path).split("no answer is about what a paper says")
    words = "FedSCCS above FedAvg | cluster models"
    assert f"| random rows | {words} | +10.57 | +20.00 | 1 | holds here, one seed, far above the paper's |" in claims
    assert f"| other trials | {words} | -10.00 | 1 | does not hold here, one seed |" in besides
    assert "other trials" not in claims
    assert "random rows" not in besides


def test_a_table_of_other_settings_is_not_judged(study: Callable[[str], ModuleType]) -> None:
    results = study("results")
    study_now = results.study_of("small/adacfl", None)
    document = (Path(__file__).parents[1] / "docs/results.md").read_text()
    table, mark = results.tables_of(document)[study_now.title]
    assert mark == results.mark_of("small/adacfl")
    text, claims = results.section(study_now, "small/adacfl", table, mark)
    assert claims
    assert results.tables_of(text)[study_now.title] == (table, mark)
    text, claims = results.section(study_now, "small/adacfl", table, "0" * 12)
    assert not claims
    assert "have changed since" in text
    assert results.tables_of(text)[study_now.title] == (table, "0" * 12)


def test_a_run_that_was_never_stopped_leaves_its_claim_open(study: Callable[[str], ModuleType]) -> None:
    results = study("results")
    claim = results.Claim("A above B", "+2.0 points", results.judged(True))
    assert results._if_stopped(claim, ({"ran": "71"}, {"ran": "64"})).verdict == results.judged(True)
    left = results._if_stopped(claim, ({"ran": "71"}, {"ran": "221, 1 of 3 not stopped"}))
    assert left.verdict == results.OPEN
    assert left.more == " (rounds run: 71; 221, 1 of 3 not stopped; means over seeds)"


def test_a_paper_is_not_held_to_what_it_does_not_compare(study: Callable[[str], ModuleType]) -> None:
    results = study("results")
    document = (Path(__file__).parents[1] / "docs/results.md").read_text()
    claimed: dict[str, set[str]] = {}
    for name in ("small/fedsccs", "small/fedsccs-holdout", "small/fedstack", "small/fedstack-holdout"):
        table, _ = results.tables_of(document)[results.study_of(name, None).title]
        told = results.CLAIMS[name](results.rows_of(table, 3))
        claimed[name] = {claim.words for claim in told if isinstance(claim, results.Claim) and not claim.ours}
    assert "FedSCCS above random clusters" in claimed["small/fedsccs-holdout"]
    assert all(words.startswith("Uplink") for words in claimed["small/fedsccs"])  # on other trials: a question of ours
    assert claimed["small/fedstack"] == claimed["small/fedstack-holdout"]
    assert claimed["small/fedstack"] == {
        f"Clustered FedStack (1-D CNN) above {rival} (1-D CNN)" for rival in ("HypCluster, K = 3", "FL+HC")
    }


def test_thresholds_in_the_papers_tables_are_the_best_that_were_tried() -> None:
    tried = pd.read_csv(Path(__file__).parents[1] / "docs/results/mtcfl.csv")
    best = tried.loc[tried.groupby("column")["accuracy"].idxmax()].set_index("column")
    assert len(best) >= 6
    for column, row in best.iterrows():
        assert {**hicfl.TUNED, **adacfl.TUNED}[column] == (row["eps1"], row["eps2"])
    assert {*hicfl.TUNED, *adacfl.TUNED} == set(best.index)


def test_two_rows_of_a_table_are_told_apart_as_their_seeds_would_be(study: Callable[[str], ModuleType]) -> None:
    claims, results = study("claims"), study("results")
    rng = np.random.default_rng(0)
    for gap in (0.0, 0.02, 0.2):
        one, two = rng.normal(0.8 + gap, 0.02, 3), rng.normal(0.8, 0.01, 3)
        table = to_markdown(
            [
                ["method", "cluster model", "locally trained model", "clusters", "ARI", "final", "up MB", "down MB"],
                *(
                    [name, f"{100 * seeds.mean():.6f} ± {100 * seeds.std():.6f}", "- ± -", "2", "-", "1", "5", "5"]
                    for name, seeds in (("one", one), ("two", two))
                ),
            ]
        )
        rows = results.rows_of(table, 3)
        pairs = [(rows[name]["accuracy_mean"], rows[name]["seeds_std"]) for name in ("one", "two")]
        assert claims.apart(*pairs, 3) == pytest.approx(stats.ttest_ind(one, two, equal_var=False).pvalue, rel=1e-3)
        told = claims.above("one above two", rows["one"], rows["two"])
        assert told.verdict == (claims.HOLDS if gap == 0.2 else claims.OPEN)
        assert np.isnan(rows["one"]["ari"])
        assert np.isnan(rows["one"]["accuracy_local_mean"])


def test_when_a_curve_is_level(study: Callable[[str], ModuleType]) -> None:
    papers = study("papers")
    rounds = range(1, 51)
    falls = pd.Series([max(1.0 - 0.1 * (k - 1), 0.0) for k in rounds], index=rounds)  # 0 from round 11 on
    assert papers.level_from(falls) == 13  # the means of five rounds: 0.8 at first, 0.12 in round 12, 0.06 in 13
    assert papers.level_from(7 * falls + 3) == 13
    slowly = pd.Series([1.0 - 0.01 * k for k in rounds], index=rounds)
    assert papers.level_from(slowly) > 40
    rises_first = pd.Series([0.0] * 10 + [1.0] * 10 + [0.2] * 30, index=rounds)
    assert 20 < papers.level_from(rises_first) <= 25


def test_layers_that_show_groups_and_sides_of_splits(study: Callable[[str], ModuleType], tmp_path: Path) -> None:
    papers = study("papers")
    assert papers.groups_in_layers(tmp_path) == papers.right_sides(tmp_path) == papers.levels(tmp_path) == ""
    inside = {"conv1": (0.5, 0.5), "conv2": (0.4, 0.9), "fc1": (0.9, 0.9)}
    lines = ["data,map,measure,ours"]
    for layer, values in inside.items():
        for round, value in zip((1, 10), values, strict=True):
            lines += [f'd,"{layer}, round {round}",mean inside groups,{value}']
            lines += [f'd,"{layer}, round {round}",mean between groups,0.3']
    for number in (1, 2):
        (tmp_path / f"hicfl-fig{number}.csv").write_text("\n".join(lines))
    first, second = papers.groups_in_layers(tmp_path).split("; where")
    assert "conv2 0.10 and 0.60" in first
    assert first.endswith("**holds here**")
    assert second.endswith("**does not hold here**.")  # the dense layer shows them no less than the convolutions
    (tmp_path / "hicfl-table4.csv").write_text(
        'row,column,seed,"before, %","after, %"\nNon-IID-1,CIFAR10,0,80,99\nNon-IID-3,CIFAR10,0,60,\n'
    )
    said = papers.right_sides(tmp_path)
    assert "Non-IID-1 80 (87) and then 99 (100): **holds here, one seed**" in said
    assert "Non-IID-3 60 (57) and then never stable (100): **open**" in said


def test_sizes_and_closeness_are_judged_by_seeds(study: Callable[[str], ModuleType]) -> None:
    """Against confidence intervals: 95 % for a size, 90 % (two one-sided tests of 5 %) for closeness."""
    claims = study("claims")
    rng = np.random.default_rng(1)
    for middle in (0.0, 2.0, 2.9, 3.1, 5.0, -9.0):
        for spread in (0.1, 1.0, 4.0):
            gains = rng.normal(middle, spread, 4)
            mean, error = gains.mean(), gains.std(ddof=1) / 2
            low, high = stats.t.interval(0.95, 3, mean, error)
            size = claims.of_what_size(gains, 3.0)
            assert size == ("" if low < 3 < high else f", by {'less' if mean < 3 else 'more'} than the paper's")
            low, high = stats.t.interval(0.90, 3, mean, error)
            outside = low > claims.CLOSE or high < -claims.CLOSE
            inside = low > -claims.CLOSE and high < claims.CLOSE
            expected = claims.HOLDS if inside else claims.FAILS if outside else claims.OPEN
            assert claims.alike_by_seeds(gains) == expected
    assert claims.alike_by_seeds([9.5]) == "does not hold here, one seed"
    assert claims.alike_by_seeds([1.0]) == claims.alike_by_seeds([-8.5]) == "open, one seed"
    assert claims.of_what_size([9.5], 3.0) == ", far above the paper's"
    assert claims.of_what_size([8.5], 3.0) == claims.of_what_size([np.inf, 1.0], 3.0) == ""


HICFL_FINAL = """row,column,seed,run,rounds until clusters are final,clusters
MTCFL,"FashionMNIST, Non-IID-3",0,a,30,2
MTCFL,"FashionMNIST, Non-IID-3",1,a,,1
MTCFL,"FashionMNIST, Non-IID-3",2,a,30,2
"HiCFL, the paper's rule","FashionMNIST, Non-IID-3",0,b,,1
"HiCFL, the paper's rule","FashionMNIST, Non-IID-3",1,b,,1
"HiCFL, the paper's rule","FashionMNIST, Non-IID-3",2,b,20,2
"""


def test_who_never_gets_there_is_counted(study: Callable[[str], ModuleType], tmp_path: Path) -> None:
    papers = study("papers")
    (tmp_path / "hicfl-table3.csv").write_text(HICFL_FINAL)
    text = papers.section(tmp_path)
    mine, late = "HiCFL, the paper's rule", "where MTCFL may not split before round 21"
    assert f"| {mine} never on 1 of 3 seeds | 3 | open, {late} |" in text  # late, level, 10 rounds before
    assert "FashionMNIST, Non-IID-3 never, never, 20 (15)." in text


def test_one_cluster_of_all_is_said_of_the_seeds_on_which_it_is(study: Callable[[str], ModuleType]) -> None:
    papers = study("papers")
    rows = ["A"] * 3 + ["B"] * 3 + ["FedAvg"] * 3
    table = pd.DataFrame({"row": rows, "seed": [0, 1, 2] * 3, "clusters": [1, 2, 1, 1, 1, 1, 1, 1, 1]})
    pair = papers.Pair("A", "B", papers.CLUSTER)
    both = "A made one cluster of all on 2 of 3 seeds and B made one cluster of all"
    assert papers.but(pair, table) == f", where {both}"
    assert papers.but(papers.Pair("A", "FedAvg", papers.CLUSTER), table).endswith("on 2 of 3 seeds")
    assert papers.but(papers.Pair("A", "B", papers.LOCAL), table) == ""


def test_between_two_limits_it_is_open_whether_a_layer_shows_groups(study: Callable[[str], ModuleType]) -> None:
    papers = study("papers")
    assert papers.shown({"conv": 0.1, "fc": 0.7}, {"fc"}) == papers.HOLDS
    assert papers.shown({"conv": 0.5, "fc": 0.7}, {"fc"}) == papers.OPEN
    assert papers.shown({"conv": 0.5, "fc": 0.3}, {"fc"}) == papers.FAILS
    assert papers.shown({"conv": 0.7, "fc": 0.5}, {"fc"}) == papers.FAILS


def test_groups_as_named_are_federations_of_their_own(study: Callable[[str], ModuleType], tmp_path: Path) -> None:
    study("given")
    whole = planted(n_clients=6, n_groups=2)
    names = {f"c{k}": f"s{k}-{('watch', 'phone-front')[k % 2]}" for k in range(6)}
    whole = replace(whole, clients=tuple(replace(client, name=names[client.name]) for client in whole.clients))
    settings = {"model": "mlp", "rounds": 2, "workers": 1, "training": {"batch_size": 8}}
    grouped = fedclade.run(whole, method="given:GroupsAsNamed", out=tmp_path / "grouped", **settings)
    for group in range(2):
        members = tuple(client for client in whole.clients if client.group == group)
        alone = fedclade.run(replace(whole, clients=members), method="fedavg", out=tmp_path / str(group), **settings)
        for client in members:
            np.testing.assert_array_equal(grouped.weights_for(client.name), alone.weights_for(client.name))


def test_studies_bring_methods_of_their_own_into_worker_processes(
    study: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    study("given")
    cell = {"label": "named", "method": "given:GroupsAsNamed", "data": "digits", "clients": 4, "rounds": 1}
    assert not compare(Study.of({"seeds": [0], "cells": [cell]}), tmp_path, workers=1).failures


def test_natural_groups_are_told_by_the_groups_as_they_are(study: Callable[[str], ModuleType]) -> None:
    results = study("results")
    numbers = {  # accuracy and ARI: picked clusters and stacked models are not what a group's own model gives
        "Local": (0.9, 0.0),
        "FedAvg": (0.7, 0.0),
        results.GIVEN: (0.8, 1.0),
        "clade": (0.95, 0.98),
        "Clustered FedStack": (0.93, 0.97),
        "FedClust": (0.78, 0.6),
        "IFCA, K = 2": (0.79, 0.5),
    }
    rows = {
        name: {"label": name, "seeds": 3, "accuracy_mean": accuracy, "seeds_std": 0.01, "ari": ari}
        for name, (accuracy, ari) in numbers.items()
    }
    told = results.geotec("device", rows)
    claims = {claim.words: (claim.here, claim.verdict) for claim in told if isinstance(claim, results.Claim)}
    own = "A model for each group by device, told who is in it, above"
    assert claims == {
        f"{own} FedAvg": ("+10.0 points", results.HOLDS),
        f"{own} training alone": ("-10.0 points", results.FAILS),
        "The clusters of FedClust above FedAvg": ("+8.0 points", results.HOLDS),
    }
    assert any("(ARI): clade 0.98, Clustered FedStack 0.97, FedClust 0.60" in str(words) for words in told)
    assert any("Ahead: clade with 95.0%; FedAvg 70.0%, training alone 90.0%" in str(words) for words in told)


def test_where_both_find_all_groups_neither_is_above(study: Callable[[str], ModuleType]) -> None:
    results = study("results")
    claim = results.Claim("partial above complete", "+0.1 points", results.OPEN)
    assert results._the_same_clusters(claim, ({"ari": 1.0}, {"ari": 1.0})).verdict == results.SAME
    assert results._the_same_clusters(claim, ({"ari": 1.0}, {"ari": 0.9})) == claim
