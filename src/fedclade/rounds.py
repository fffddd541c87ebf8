"""The loop: start, round, measure, record, checkpoint; and the result that it leaves."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.ask import Ask, Engine
from fedclade.clients.tasks import LOCAL, Evaluate, Evaluated, Training
from fedclade.clustering.scores import adjusted_rand, normalized_mutual_information
from fedclade.errors import FedcladeError
from fedclade.events import Calendar, Event, groups_of
from fedclade.methods import Clusters, Method, RoundContext
from fedclade.runs.folder import UNCOUNTED, RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Progress:
    """What a display shows after a round."""

    round: int
    rounds: int
    accuracy: float | None  # mean over clients, where it was measured
    clusters: int
    bytes_up: int
    bytes_down: int
    failures: int
    worst: float | None = None  # of the clients, where it was measured
    own: float | None = None  # the same two of clients' own last models
    local_worst: float | None = None
    seconds: float = 0.0  # since the run began


@dataclass
class Loop:
    """One run of a method on an engine."""

    method: Method
    engine: Engine
    run: RunFolder
    clients: tuple[str, ...]
    training: Training
    seed: int
    rounds: int
    evaluate_every: int = 1
    evaluate_local_every: int = 0
    groups: Mapping[str, int] | None = None
    events: tuple[Event, ...] = ()
    quorum: float = 0.0
    on_round: Callable[[Progress], None] = lambda progress: None

    def go(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Run to the last round, from the last checkpoint if there is one. Returns `result` with the outcome added."""
        self.ask = Ask(self.engine, self.quorum)
        self.calendar = Calendar.of(self.clients, self.events)
        engine = self.engine
        context = RoundContext(
            self.clients,
            engine.initial,
            engine.layout,
            self.training,
            self.seed,
            input_shape=engine.input_shape,
            n_classes=engine.n_classes,
            network_of=engine.network_of,
        )
        saved = self.run.last_checkpoint()
        self.last_seen: dict[str, dict[str, float]] = {}
        self.has_trained: set[str] = set()  # only they have a last model of their own
        self.seconds, self.cpu_seconds, self.bytes = 0.0, 0.0, {"up": 0, "down": 0}
        self.arrivals: dict[int, list[str]] = {}
        first, clusters = 0, None
        if saved is not None:
            first, clusters = saved[0] + 1, self._restored(saved[1])
        self.present = self.calendar.present(max(first - 1, 0))
        self.run.rewind(first - 1)
        self.engine.rewind(first - 1)
        for number in range(first, self.rounds + 1):
            began = time.perf_counter(), time.process_time()
            self.ask.clear()
            self.ask.round = number
            self._admit(number)
            self.present = self.calendar.present(number)
            self.engine.drift(self.calendar.rows_of(number))
            now = replace(context, round=number, clients=self.present)
            if clusters is None:
                clusters = self._returned("start", self.method.start(now, self.ask))
            else:
                welcomed = self._welcomed(clusters, now)
                clusters = self._returned("round", self.method.round(welcomed, now, self.ask))
            clusters.check(self.present)
            self._close_round(number, clusters, began)
        assert clusters is not None
        return self._finish(clusters, result)

    def _returned(self, step: str, value: Any) -> Clusters:
        """What a step of the method returned, which may be a person's own."""
        if isinstance(value, Clusters):
            return value
        name = type(self.method).__name__
        raise FedcladeError(f"method {name}: its `{step}` returned {type(value).__name__}: it must return Clusters")

    def _admit(self, number: int) -> None:
        """Clients that have come by themselves, as they do on a real grid, take part from this round on."""
        came = self.engine.arrivals() if number > 0 and hasattr(self.engine, "arrivals") else ()
        if came:
            self.arrivals[number] = list(came)
            self.calendar = self.calendar.joined_by(came, number)

    def _welcomed(self, clusters: Clusters, context: RoundContext) -> Clusters:
        """After the events of this round: who left is gone, who came or changed has a place."""
        newcomers = self.calendar.newcomers(context.round)
        gone = {client for client in clusters.cluster_of if client not in context.clients}
        return self.method.admit(clusters.without({*gone, *newcomers}), newcomers, context, self.ask)

    def _restored(self, state: Mapping[str, Any]) -> Clusters:
        self.last_seen, self.has_trained = dict(state["last_seen"]), set(state["has_trained"])
        self.seconds, self.cpu_seconds, self.bytes = state["seconds"], state["cpu_seconds"], dict(state["bytes"])
        self.arrivals = {int(number): list(names) for number, names in state.get("arrivals", {}).items()}
        for number, names in self.arrivals.items():
            self.calendar = self.calendar.joined_by(names, number)
        members = {cluster: tuple(clients) for cluster, clients in state["members"].items()}
        return Clusters(members, state["models"], tuple(state["tree"]), state["notes"])

    def _close_round(self, number: int, clusters: Clusters, began: tuple[float, float]) -> None:
        last = number == self.rounds
        self.has_trained |= set(self.ask.trained)
        measured = last or (self.evaluate_every > 0 and number % self.evaluate_every == 0)
        own = self.engine.keeps_models and (last or self._is_own_due(number))
        if measured:
            served = self.ask({c: self.method.serve(clusters, c) for c in self.present}, phase="measure")
            self._see(served, "accuracy", "loss")
        if own:
            trainers = [client for client in self.present if client in self.has_trained]
            self._see(self.ask(Evaluate(start=LOCAL), to=trainers, phase="measure"), "accuracy_local", "loss_local")
        for entry in self.ask.ledger:
            if entry["phase"] not in UNCOUNTED:
                self.bytes[entry["direction"]] += entry["bytes"]
        self.seconds += time.perf_counter() - began[0]
        self.cpu_seconds += time.process_time() - began[1]
        state = {
            "members": dict(clusters.members),
            "models": dict(clusters.models),
            "tree": list(clusters.tree),
            "notes": dict(clusters.notes),
            "last_seen": self.last_seen,
            "has_trained": sorted(self.has_trained),
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "bytes": self.bytes,
        }
        if self.arrivals:
            state["arrivals"] = self.arrivals
        tables = {"history": self._history(number, clusters, measured, own), "ledger": self.ask.ledger}
        self.run.write_round(number, state, tables, self.ask.records)
        self.on_round(self._progress(number, len(clusters), measured, own))

    def _progress(self, number: int, n_clusters: int, measured: bool, own: bool) -> Progress:
        served, kept = spread(self._last("accuracy")), spread(self._last("accuracy_local"))
        return Progress(
            number,
            self.rounds,
            served["mean"] if measured else None,
            n_clusters,
            self.bytes["up"],
            self.bytes["down"],
            len(self.ask.failures),
            worst=served["worst"] if measured else None,
            own=kept["mean"] if own else None,
            local_worst=kept["worst"] if own else None,
            seconds=self.seconds,
        )

    def _is_own_due(self, number: int) -> bool:
        return self.evaluate_local_every > 0 and number > 0 and number % self.evaluate_local_every == 0

    def _see(self, answers: Mapping[str, Evaluated], accuracy: str, loss: str) -> None:
        for client, answer in answers.items():
            self.last_seen.setdefault(client, {}).update({accuracy: answer.accuracy, loss: answer.loss})

    def _last(self, what: str) -> list[float]:
        """The last value measured of every client that is there."""
        return [self.last_seen[c][what] for c in self.present if what in self.last_seen.get(c, {})]

    def _history(self, number: int, clusters: Clusters, measured: bool, own: bool) -> list[dict[str, Any]]:
        """A row for each client: where it is, how well it is served, and what went wrong."""
        failed: dict[str, str] = {}
        for failure in self.ask.failures:
            earlier = f"{failed[failure['client']]}; " if failure["client"] in failed else ""
            failed[failure["client"]] = f"{earlier}{failure['phase']}: {failure['failure']}"
        cluster_of = clusters.cluster_of
        nothing: dict[str, float] = {}
        rows = []
        for client in self.present:
            seen = self.last_seen.get(client, nothing)
            trained = self.ask.trained.get(client)
            row = {
                "round": number,
                "client": client,
                "cluster": cluster_of[client],
                "accuracy": seen.get("accuracy", np.nan) if measured else np.nan,
                "loss": seen.get("loss", np.nan) if measured else np.nan,
                "accuracy_local": seen.get("accuracy_local", np.nan) if own else np.nan,
                "loss_local": seen.get("loss_local", np.nan) if own else np.nan,
                "trained": trained is not None,
                "train_loss": trained.loss if trained is not None else np.nan,
                "n_samples": trained.n_samples if trained is not None else 0,
                "failure": failed.get(client, ""),
            }
            rows.append(row)
        return rows

    def _finish(self, clusters: Clusters, result: Mapping[str, Any]) -> dict[str, Any]:
        agreement: dict[str, float | None] = {"ari": None, "nmi": None}
        if self.groups is not None and set(self.present) <= set(self.groups):
            groups = groups_of(self.groups, self.calendar.rows_of(self.rounds))
            members = clusters.cluster_of
            found = np.array([members[client] for client in self.present])
            truth = np.array([groups[client] for client in self.present])
            ari, nmi = adjusted_rand(truth, found), normalized_mutual_information(truth, found)
            agreement = {"ari": float(ari), "nmi": float(nmi)}
        outcome = {
            **result,
            "rounds": self.rounds,
            "accuracy": spread(self._last("accuracy")),
            "accuracy_local": spread(self._last("accuracy_local")),
            "clusters": {"found": len(clusters), **agreement},
            "bytes": dict(self.bytes),
            "failures": self._failures(),
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),  # of this process: with one worker, of everything
        }
        parts = {str(cluster): list(clients) for cluster, clients in clusters.members.items()}
        layout = self.engine.layout
        models = {cluster: layout.tensors(clusters.models[cluster]) for cluster in clusters.members}
        self.run.finish(outcome, {"members": parts, "tree": [dict(branch) for branch in clusters.tree]}, models)
        return outcome

    def _failures(self) -> int:
        """In how many rounds some client failed, over all clients."""
        history = self.run.table("history")
        return int((history["failure"] != "").sum()) if len(history) else 0


def spread(values: "Sequence[float]") -> dict[str, float | int | None]:
    """Mean, standard deviation and worst over the clients that have a value, and how many those are."""
    if not len(values):
        return {"mean": None, "std": None, "worst": None, "clients": 0}
    return {
        "mean": float(np.mean(values)),
        "std": float(np.std(values)),
        "worst": float(np.min(values)),
        "clients": len(values),
    }
