"""Probe rows: what methods need that compare models by their answers on the same rows (FedSCCS, FLIS, ClusterFL)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from fedclade.ask import Ask
from fedclade.clients.tasks import Describe, Predict
from fedclade.errors import FedcladeError, listed
from fedclade.methods.base import Method, RoundContext

MOST_PROBE_ROWS = 5000  # of all clients together: CKA is settled by then
MOST_OUTPUTS = 1_000_000  # of all models on all probe rows: these are in memory at once
KEPT_ROWS = 1000  # on which models will be compared later: these stay in every checkpoint


class Probing(Method):
    """A method whose server has some rows to try models on."""

    probe: Literal["rows", "public", "synthetic"] = "rows"  # rows that clients give away, rows of a file, or noise
    probe_rows: Annotated[int, Field(ge=1)] = 100  # from each client
    probe_file: str | None = None  # public rows: .npy, or .npz with an array `x`
    synthetic: Literal["normal", "uniform"] = "normal"  # noise N(0, 1), or between 0 and 1

    @field_validator("probe_file")
    @classmethod
    def _public_rows_have_a_file(cls, path: str | None, info: ValidationInfo) -> str | None:
        if (path is not None) != (info.data.get("probe") == "public"):
            raise ValueError("it goes together with probe = 'public': give both or none")
        return path

    def probe_set(self, context: RoundContext, ask: Ask) -> np.ndarray:
        """The rows on which all models answer."""
        random = context.random("probe")
        most = min(MOST_PROBE_ROWS, max(MOST_OUTPUTS // len(context.clients), KEPT_ROWS))
        each = max(1, min(self.probe_rows, most // len(context.clients)))
        if self.probe == "rows":
            told = ask(Describe("rows", {"n": each, "labels": False}), to=context.clients, phase="probe")
            if not len(told):
                raise FedcladeError("no client gave probe rows: use probe = 'synthetic' or 'public'")
            return np.concatenate([answer.values["rows"] for answer in told.values()])
        if self.probe_file is not None:
            rows = public_rows(self.probe_file, context.input_shape)
            return rows[np.sort(random.permutation(len(rows))[:most])]
        shape = (each * len(context.clients), *context.input_shape)
        noise = random.normal(size=shape) if self.synthetic == "normal" else random.uniform(size=shape)
        return noise.astype(np.float32)


def answers_on(probe: np.ndarray, models: Mapping[str, np.ndarray], output: str, ask: Ask) -> dict[str, np.ndarray]:
    """What each model answers. The server has the models and the rows: no client is asked."""
    tasks = {client: Predict(weights, rows=probe, output=output) for client, weights in models.items()}
    return {client: answer.values for client, answer in ask.server(tasks).items()}


def some_of(probe: np.ndarray) -> slice:
    """Which of the probe rows are kept: every so many, at most `KEPT_ROWS`."""
    return slice(None, None, -(-len(probe) // KEPT_ROWS))


def public_rows(path: str, input_shape: tuple[int, ...]) -> np.ndarray:
    """Rows from a file, which must be like those that clients hold."""
    try:
        held = np.load(Path(path), allow_pickle=False)
        rows = np.asarray(held if isinstance(held, np.ndarray) else held["x"])
    except (OSError, ValueError, KeyError) as error:
        raise FedcladeError(f"cannot read probe rows from {path}: {error}; give a .npy, or an .npz with `x`") from None
    if len(rows) == 0 or rows.shape[1:] != input_shape:
        raise FedcladeError(f"the probe rows in {path} have shape {rows.shape}: give (rows, {listed(input_shape)})")
    return rows if rows.dtype == np.uint8 else rows.astype(np.float32)
