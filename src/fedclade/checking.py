"""Whether a method of one's own keeps what every run relies on: tried in seconds, on bundled digits.

`fedclade methods my_module:MyMethod --check`, or `for told, wrong in check("my_module:MyMethod"): ...` in Python.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedclade import api
from fedclade.data import federation_of
from fedclade.data.federation import Federation
from fedclade.errors import FedcladeError
from fedclade.methods import Method
from fedclade.result import Result

CLIENTS, ROUNDS, STOP = 8, 4, 2
OVERFLOW = 1e30  # of rows that nobody can train on


def check(method: str | dict[str, Any] | Method) -> Iterator[tuple[str, str | None]]:
    """What was tried, and what went wrong with it, if anything."""
    data = federation_of("digits", split="label-groups:2", clients=CLIENTS, seed=0)
    names = [client.name for client in data.clients]
    changes = [{"round": 1, "join": names[-2:]}, {"round": 2, "leave": names[:1]}, {"round": 3, "drift": names[1:3]}]
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)

        def run(name: str, rows: Federation = data, **settings: Any) -> Result:
            given = {"method": method, "model": "mlp", "rounds": ROUNDS, "workers": 1, "seed": 1, "serving": "model"}
            return api.run(rows, **{**given, **settings}, out=at / name)

        def resumed() -> None:
            run("half", rounds=STOP)
            own = method if isinstance(method, Method) else None
            same(whole, api.resume(at / "half", rounds=ROUNDS, data=data, method=own))

        whole: Any = None

        def first() -> None:
            nonlocal whole
            whole = run("whole")

        tries: dict[str, Callable[[], object]] = {
            "everybody takes part": first,
            f"stopped after round {STOP} and resumed, the same bits": resumed,
            "two workers, the same bits": lambda: same(whole, run("two", workers=2)),
            "half of the clients a round": lambda: run("some", participation=0.5),
            "one client always fails": lambda: run("failing", failing(data)),
            "clients join, leave and change": lambda: run("changing", events=changes),
        }
        for told, attempt in tries.items():
            wrong = _wrong(attempt)
            yield told, wrong
            if whole is None:
                return


def _wrong(attempt: Callable[[], object]) -> str | None:
    try:
        attempt()
    except FedcladeError as error:
        return str(error)
    except Exception as error:  # a person's own code may raise anything
        return f"{type(error).__name__}: {error}"
    return None


def failing(data: Federation) -> Federation:
    """With a client whose training can only overflow."""
    x = data.x.astype(np.float32)
    x[data.clients[2].train] = OVERFLOW
    return replace(data, x=x)


def same(one: Result, other: Result) -> None:
    """Clusters and models of two runs must be equal."""
    mine, theirs = one.state_of_clusters, other.state_of_clusters
    if dict(mine.members) != dict(theirs.members):
        raise FedcladeError("other clusters come out: what a method remembers must be in Clusters.remembering(...)")
    if any(not np.array_equal(mine.models[k], theirs.models[k]) for k in mine.models):
        raise FedcladeError(
            "other weights come out: draw chances by context.random(...), and keep state in the clusters"
        )


__all__ = ["check"]
