"""What holds for every method that makes clusters of what clients train, whatever they send and whoever is absent."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedclade.errors import FedcladeError
from fedclade.methods import METHODS, Clusters, Method
from fedclade.methods.adacfl import AdaCFL
from fedclade.methods.agreement import Agreement
from fedclade.methods.cfl import CFL, StabilityCFL
from fedclade.methods.hicfl import HiCFL
from harness import Play, Script

PAPER = {"xi": 0.0, "epsilon": 2.5, "tests": "block"}
BY_DIRECTION: dict[str, Method] = {  # the length of updates must not matter to these
    "agreement": Agreement(),
    "agreement personalised": Agreement(variant="personalised", attempts=1),
    "hicfl": HiCFL(**PAPER),
    "hicfl centred": HiCFL(xi=0.0, epsilon=2.5, split="centered-sign"),
    "hicfl fine-grained": HiCFL(**PAPER, variant="fine-grained", attempts=1),
    "hicfl personalised": HiCFL(**PAPER, variant="personalised", attempts=1),
    "hicfl re-organised": HiCFL(**PAPER, variant="re-organised", attempts=1),
    "cfl": CFL(eps1=1e9, eps2=0.0, min_round=0),
    "cfl by stability": StabilityCFL(epsilon=2.5, xi=0.0, tests="block"),
    "adacfl": AdaCFL(precluster=False),
    "fedclust": METHODS["fedclust"](),
    "fl-hc": METHODS["fl-hc"](),
    "wc": METHODS["wc"](warmup=1, threshold="auto"),
}
ALL = BY_DIRECTION | {
    "hicfl misplaced": HiCFL(**PAPER, misplace=0.4, misplace_round=4),
    "hicfl random": HiCFL(**PAPER, reference="random", order="split-first"),
    "adacfl strict": AdaCFL(precluster=False, threshold=1.0, epsilon=1.0),
    "kcenter": METHODS["kcenter"](warmup=1, n_clusters=2),
}
few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def sending(seed: int, n_groups: int, scale: float = 1.0, faults: float = 0.0) -> Script:
    """Clients of some groups: each sends its group's direction and noise, or now and then what it should not."""

    def script(client: str, round: int) -> np.ndarray | None:
        number = int(client.rpartition("-")[2])
        random = np.random.default_rng([seed, number, round])
        centre = np.random.default_rng([seed, number % n_groups]).normal(size=6)
        update = centre + 0.2 * random.normal(size=6)
        fault = random.choice(["none", "absent", "zero", "nan"], p=[1 - faults, *[faults / 3] * 3])
        if round == 0 or fault == "none":  # a method that clusters before the first round cannot do without answers
            return scale * update
        return {"absent": None, "zero": np.zeros(6), "nan": np.full(6, np.nan)}[fault]

    return script


def grouped(method: Method, names: list[str], script: Script, rounds: int = 9) -> set[frozenset[int]]:
    """Who is with whom in the end, by number; after every round the clusters must be a partition."""
    play = Play(method, names, script)
    clusters = play.go(rounds)
    assert all(np.isfinite(model).all() for model in clusters.models.values())
    return {frozenset(int(name.rpartition("-")[2]) for name in part) for part in play.parts}


@pytest.mark.parametrize("members", [("ab", "bc"), ("aa", "bc"), ("abc", ""), ("ab",), ("ab", "cd")])
def test_what_is_not_a_partition_is_never_let_through(members: tuple[str, ...]) -> None:
    model = np.zeros(1, np.float32)
    right = Clusters({0: ("b",), 3: ("c", "a")}, {0: model, 1: model, 3: model})  # 1 is closed, its model is kept
    assert right.check("abc") is right
    with pytest.raises(FedcladeError, match="partition"):
        Clusters({k: tuple(part) for k, part in enumerate(members)}, {0: model, 1: model}).check("abc")
    with pytest.raises(FedcladeError, match="no model"):
        Clusters({0: tuple("abc")}, {1: model}).check("abc")


@few
@given(st.sampled_from(list(ALL)), st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 3), st.floats(0, 0.7))
def test_clusters_are_a_partition_after_every_step(
    name: str, seed: int, n_clients: int, n_groups: int, faults: float
) -> None:
    names = [f"c-{number}" for number in range(n_clients)]
    parts = grouped(ALL[name], names, sending(seed, n_groups, faults=faults), rounds=12)
    assert sorted(number for part in parts for number in part) == list(range(n_clients))


@few
@given(st.sampled_from(list(BY_DIRECTION)), st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 3))
def test_other_names_in_another_order_change_nothing_else(name: str, seed: int, n_clients: int, n_groups: int) -> None:
    method, script = BY_DIRECTION[name], sending(seed, n_groups)
    order = np.random.default_rng(seed).permutation(n_clients)
    expected = grouped(method, [f"c-{number}" for number in range(n_clients)], script)
    assert grouped(method, [f"{place}th-{number}" for place, number in enumerate(order)], script) == expected


@few
@given(
    st.sampled_from(list(BY_DIRECTION)),
    st.integers(0, 10**6),
    st.integers(1, 9),
    st.integers(1, 3),
    st.floats(1e-2, 1e3),
)
def test_the_length_of_updates_does_not_matter(
    name: str, seed: int, n_clients: int, n_groups: int, scale: float
) -> None:
    method, names = BY_DIRECTION[name], [f"c-{number}" for number in range(n_clients)]
    assert grouped(method, names, sending(seed, n_groups, scale)) == grouped(method, names, sending(seed, n_groups))


@pytest.mark.parametrize("name", ["agreement", "hicfl", "cfl", "adacfl"])
def test_a_thousand_clients(name: str) -> None:
    names = [f"c-{number}" for number in range(1000)]
    parts = grouped(BY_DIRECTION[name], names, sending(5, 3), rounds=3)
    hidden = {frozenset(range(group, 1000, 3)) for group in range(3)}
    if name == "cfl":  # without a gate it goes on splitting, but mixes nobody
        assert all(any(part <= group for group in hidden) for part in parts)
    elif name == "hicfl":  # the sign of one cosine is a coarse knife
        assert len(parts) > 1
    else:
        assert parts == hidden
