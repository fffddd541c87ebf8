"""Mistakes of people that once were tracebacks: one sentence each."""

import time
from pathlib import Path

import numpy as np
import pytest

import fedclade
from fedclade import Clusters, Method, Train
from fedclade.checking import check
from fedclade.errors import FedcladeError
from fedclade.settings import read_toml
from synthetic import planted

SMALL = {"model": "mlp", "rounds": 1, "workers": 1}


class Loses(Method):
    def start(self, context, ask):  # type: ignore[no-untyped-def]
        return Clusters.single(context.clients[1:], context.initial)


class Twice(Method):
    def start(self, context, ask):  # type: ignore[no-untyped-def]
        return Clusters({0: context.clients, 1: context.clients[:1]}, {0: context.initial, 1: context.initial})


class Assigns(Method):
    def round(self, clusters, context, ask):  # type: ignore[no-untyped-def]
        self.seen = ask(Train(clusters.models[0]), to=context.clients)
        return clusters


class Forgets(Method):
    def round(self, clusters, context, ask):  # type: ignore[no-untyped-def]
        return clusters.remembering({"seen": context.round})


class Doubles(Method):
    def round(self, clusters, context, ask):  # type: ignore[no-untyped-def]
        return Clusters(clusters.members, {0: clusters.models[0].astype(np.float64)})


class AsksNobody(Method):
    def round(self, clusters, context, ask):  # type: ignore[no-untyped-def]
        return clusters.averaged(ask(Train(clusters.models[0])))


class AveragesParts(Method):
    def round(self, clusters, context, ask):  # type: ignore[no-untyped-def]
        return clusters.averaged(ask(Train(clusters.models[0], upload="head"), to=context.clients))


class DrawsHalf(Method):
    def round(self, clusters, context, ask):  # type: ignore[no-untyped-def]
        ask.record("proximity", matrix=np.eye(len(context.clients)))
        return clusters


class Roundless(Method):
    pass


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Forgets(), "which would be lost on resume: declare State"),
        (Doubles(), "cluster 0 is float64 .* return a vector of float32"),
        (AsksNobody(), "without saying whom"),
        (AveragesParts(), "use ask.combined"),
        (DrawsHalf(), "'proximity' without clients, measure"),
        (Roundless(), "Roundless has no `round`"),
        (Loses(), "leave out c0: they must be a partition"),
        (Twice(), "hold a client twice"),
        (Assigns(), "assigns to self.seen"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_own_methods_are_told_what_is_wrong(method: Method, words: str) -> None:
    with pytest.raises(FedcladeError, match=words):
        fedclade.run(planted(), method=method, **SMALL)


class Careless(Method):
    """It draws by numpy's own chances, and stumbles over whoever fails."""

    def round(self, clusters, context, ask):  # type: ignore[no-untyped-def]
        trained = ask(Train(clusters.models[0]), to=context.clients)
        for client in context.clients:
            _ = trained[client]
        noise = np.random.default_rng().normal(size=clusters.models[0].shape).astype(np.float32)
        return Clusters.single(context.clients, clusters.averaged(trained).models[0] + noise / 1000)


def test_methods_can_be_checked() -> None:
    """Each thing that runs rely on is tried, and what is wrong is one line."""
    for method in ("fedavg", "ifca", "fedclust"):
        assert [wrong for _, wrong in check(method)] == [None] * 6
    told = dict(check(Careless()))
    assert told["everybody takes part"] is None
    assert "other weights" in str(told["stopped after round 2 and resumed, the same bits"])
    assert "KeyError" in str(told["one client always fails"]) or "raised" in str(told["one client always fails"])
    ((first, wrong),) = check(Roundless())
    assert first == "everybody takes part"
    assert "has no `round`" in str(wrong)


def test_a_file_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py:Mine", "./mine.py:Mine"):
        with pytest.raises(FedcladeError, match=r"write mine:Mine in the folder that holds mine\.py"):
            fedclade.run(planted(), method=name, **SMALL)


def test_merged_clusters_are_one() -> None:
    models = {k: np.full(3, k, np.float32) for k in range(3)}
    clusters = Clusters({0: ("a",), 1: ("b", "c"), 2: ("d",)}, models)
    merged = clusters.merged(1, 0)
    assert dict(merged.members) == {1: ("b", "c", "a"), 2: ("d",)}
    assert merged.models[1].tolist() == [1, 1, 1]
    assert set(merged.models) == {1, 2}
    assert clusters.merged(1, 0, models[2]).models[1].tolist() == [2, 2, 2]
    merged.check("abcd")


@pytest.mark.parametrize("name", ["fedclust", "ifca", "fesem", "fedsccs", "kcenter", "pacfl", "fedstack", "random"])
def test_more_clusters_than_clients_are_refused_at_once(name: str) -> None:
    began = time.monotonic()
    with pytest.raises(FedcladeError, match="n_clusters is 100000, but there are 6 clients"):
        fedclade.run(planted(), method={"name": name, "n_clusters": 100_000}, rounds=1, workers=1)
    assert time.monotonic() - began < 10  # it took 20 seconds or gigabytes


@pytest.mark.parametrize("name", ["fedclust", "fl-hc", "pacfl", "flis", "wc", "fedsccs", "fedstack"])
def test_threshold_and_number_exclude_each_other(name: str) -> None:
    with pytest.raises(FedcladeError, match="exclude each other"):
        fedclade.run(planted(), method={"name": name, "n_clusters": 2, "threshold": "auto"}, rounds=1, workers=1)


def test_files_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("a = " + "[" * 20_000 + "]" * 20_000)
    with pytest.raises(FedcladeError, match="no proper TOML"):
        read_toml(tmp_path / "deep.toml")


def test_newcomers_of_ditto_are_served_by_the_cluster_model(tmp_path: Path) -> None:
    """They have no model of their own yet: what was measured once was the untrained one."""
    everyone = planted(n_clients=8, n_groups=1, rows=60)
    early = fedclade.data.Federation(**{**vars(everyone), "clients": everyone.clients[:6]})
    late = fedclade.data.Federation(**{**vars(everyone), "clients": everyone.clients[6:]})
    result = fedclade.run(early, method="ditto", model="mlp", rounds=8, workers=1, out=tmp_path / "run")
    placed = fedclade.place(result.path, late, personalise=0)
    for one in placed.values():
        assert one.score is not None
        assert one.score > 0.9
        np.testing.assert_array_equal(one.weights, result.state_of_clusters.models[0])
