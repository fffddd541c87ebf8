"""The loop: start, round, evaluate, record, checkpoint; and the result that it leaves."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from fedclade.ask import Ask, Engine
from fedclade.clients.objective import ACCURACY, Metric, record_of
from fedclade.clients.tasks import LOCAL, NO_MODELS, Answer, Evaluate, Evaluated, Failure, Task
from fedclade.clustering.scores import adjusted_rand, normalized_mutual_information
from fedclade.errors import FedcladeError, listed
from fedclade.events import Calendar, groups_of
from fedclade.methods import Clusters, RoundContext, name_of
from fedclade.models.weights import file_facts
from fedclade.randomness import stream
from fedclade.runs.folder import UNCOUNTED, RunFolder
from fedclade.settings import Settings
from fedclade.stopping import Watched

LOCAL_MODEL = "_local"  # how columns end that are about locally trained models
MODELS = ("", LOCAL_MODEL)
BAD_ROUNDS = 3  # in a row in which most clients failed: then the run ends


@dataclass(frozen=True)
class Progress:
    """What a display shows after a round."""

    round: int
    rounds: int
    score: float | None  # the main metric, mean over clients, where it was measured
    clusters: int
    bytes_up: int
    bytes_down: int
    failures: int
    worst: float | None = None  # of the clients, where it was measured
    local: float | None = None  # the same two of clients' locally trained models
    local_worst: float | None = None
    seconds: float = 0.0  # since the run began
    metric: Metric = ACCURACY  # what the score is


@dataclass
class Loop:
    """One run of a method on an engine."""

    settings: Settings
    engine: Engine
    run: RunFolder
    clients: tuple[str, ...]
    groups: Mapping[str, int] | None = None
    about: Mapping[str, Any] | None = None  # what else the result tells
    on_round: Callable[[Progress], None] = lambda progress: None
    forget_memory: bool = False  # go on although clients have lost what they remembered

    def go(self) -> dict[str, Any]:
        """Run to the last round, from the last checkpoint if there is one. Returns the outcome."""
        settings, engine = self.settings, self.engine
        self.method, self.serving, self.rounds = settings.method, settings.serves, settings.rounds
        self.ask = Ask(
            engine,
            aggregation=settings.aggregation,
            optimizer=settings.server,
            updates=settings.updates,
            quorum=settings.quorum,
            max_samples=settings.max_samples,
        )
        self.calendar = Calendar.of(self.clients, settings.events)
        context = RoundContext(
            self.clients,
            engine.initial,
            engine.layout,
            settings.pace,
            settings.seed,
            rounds=settings.rounds,
            participation=settings.participation,
            input_shape=engine.input_shape,
            n_classes=engine.n_classes,
            metric=engine.metrics[0],
            network_of=engine.network_of,
        )
        saved = self.run.last_checkpoint()
        self.last_seen: dict[str, dict[str, float]] = {}
        self.has_trained: set[str] = set()  # only their locally trained models count: others were for comparison
        self.has_answered: set[str] = set()
        self.unmeasured: set[str] = set()  # whose locally trained model or rows may differ from those last measured
        self.seconds, self.cpu_seconds, self.bytes = 0.0, 0.0, {"up": 0, "down": 0}
        self.bad_rounds = 0
        self.watched = Watched()
        self.arrivals: dict[int, list[str]] = {}
        self.records: Counter[str] = Counter()  # how many the method has kept, by name
        self.remarks: list[str] = []  # what a person should know of how the run went
        first, clusters = 0, None
        if saved is not None:
            first, clusters = saved[0] + 1, self._restored(saved[1])
            for damage in self.run.damaged:
                self._remark(f"{damage}: went on from the checkpoint of round {saved[0]}")
        self.present = self.calendar.present(max(first - 1, 0))
        # Look at everything before anything is changed.
        state = saved[1] if saved is not None else {"memory": {}, "records": {}}
        self.run.records(first - 1, state["records"])
        damaged = self.engine.check_memory(first - 1, self.forget_memory)
        self.engine.rewind(first - 1)
        lost = self._lost_memory(state["memory"], damaged)
        self.run.rewind(first - 1)
        if lost and clusters is not None:
            self._begin_from_clusters(lost, clusters, first - 1)
            changed = {
                "memory": self.engine.remembered(),
                "remarks": self.remarks,
                "unmeasured": sorted(self.unmeasured),
            }
            self.run.write_checkpoint(first - 1, {**state, **changed})
        for number in count(first):
            if number > self.rounds:
                break
            began = time.perf_counter(), time.process_time()
            self._let_join(number)
            self.present = self.calendar.present(number)
            self.engine.drift(self.calendar.rows_of(number))
            measured, local = self._is_measured(number), self._is_local_measured(number)
            now = replace(
                context,
                round=number,
                rounds=self.rounds,
                clients=self.present,
                is_evaluated=measured,
                network_of=engine.network_of,
            )
            clusters = self._stepped(clusters, now).check(self.present)
            self._end_if_level(clusters, now)
            self._close_round(number, clusters, measured, local, began)
            self._end_if_hopeless(number)
        assert clusters is not None
        return self._finish(clusters)

    def _lost_memory(self, slots: Mapping[str, Mapping[str, int]], damaged: set[str]) -> list[tuple[str, str]]:
        """Clients that have lost what they remembered, and the slots: they would begin anew without a word."""
        known = self.engine.remembered()
        lost = [
            (client, slot)
            for slot, checksums in slots.items()
            for client, checksum in checksums.items()
            if client in damaged or known.get(slot, {}).get(client) != checksum
        ]
        if lost and not self.forget_memory:
            names = listed(dict.fromkeys(client for client, _ in lost), 5)
            raise FedcladeError(
                f"what {names} remembered is lost or damaged: put {self.run.path / 'clients'} back from a copy, "
                "or go on from the cluster models with --forget-memory"
            )
        return lost

    def _begin_from_clusters(self, lost: Sequence[tuple[str, str]], clusters: Clusters, round: int) -> None:
        names = listed(dict.fromkeys(client for client, _ in lost), 5)
        self.unmeasured |= {client for client, _ in lost}
        self._remark(f"what {names} remembered was lost: they went on after round {round} from the cluster models")
        for client, slot in lost:
            model = clusters.models[clusters.cluster_of.get(client, next(iter(clusters.models)))]
            if (
                slot not in NO_MODELS and len(model) == self.engine.layout_of(client).size
            ):  # else it begins with the initial model
                self.engine.remember(client, slot, model, round)
        self.engine.flush()

    def _remark(self, words: str) -> None:
        """Say it now, on stderr unless the program logs elsewhere, and keep it with the result."""
        logging.getLogger("fedclade").warning(words)
        self.remarks.append(words)

    # One step of the method

    def _stepped(self, clusters: Clusters | None, context: RoundContext) -> Clusters:
        """The method's next step. A client whose answer breaks it is left out of the round, where clients may lie."""
        recorded = Recorded(self.engine) if self.engine.has_strangers else None
        self.ask.engine = recorded or self.engine
        try:
            return self._step(clusters, context)
        except FedcladeError:
            raise
        except Exception as error:
            if recorded is None:
                raise
            for culprit in recorded.answered:
                self.ask.engine = recorded.without(culprit, error)
                try:
                    return self._step(clusters, context)
                except Exception:
                    continue
            raise
        finally:
            self.ask.engine = self.engine

    def _step(self, clusters: Clusters | None, context: RoundContext) -> Clusters:
        self.ask.clear()
        self.ask.round = context.round
        watched = self.settings.stop.held if self.settings.stop is not None and self.watched.ends is None else 0.0
        self.ask.spare = max(self.serving.spare(context), watched)
        try:
            if clusters is None:
                return self._returned("start", self.method.start(context, self.ask))
            welcomed = self._welcomed(clusters, context)
            seen = self.serving.before(self.method, welcomed, context, self.ask)
            stepped = self._returned("round", self.method.round(welcomed, context, self.ask))
        finally:
            self.ask.spare = 0.0
        stepped = replace(stepped, choices=clusters.choices, made=clusters.made)
        return self.serving.after(self.method, stepped, context, self.ask, seen)

    def _returned(self, step: str, value: Any) -> Clusters:
        """What a step of the method returned, which may be a person's own."""
        name = type(self.method).__name__
        if not isinstance(value, Clusters):
            raise FedcladeError(f"method {name}: its `{step}` returned {type(value).__name__}: it must return Clusters")
        kind = self.method.State
        if value.state is not None and not (kind is not None and isinstance(value.state, kind)):
            raise FedcladeError(
                f"method {name}: its clusters remember a {type(value.state).__name__}, which would be lost on resume: "
                f"declare State = {type(value.state).__name__}, a class made with @remembered"
            )
        return value

    def _let_join(self, number: int) -> None:
        """Clients that have come by themselves, as they do on a real grid, take part from this round on."""
        came = self.engine.arrivals() if number > 0 else ()
        if came:
            self.arrivals[number] = list(came)
            self.calendar = self.calendar.joined_by(came, number)

    def _welcomed(self, clusters: Clusters, context: RoundContext) -> Clusters:
        """After the events of this round: who left is gone, who came or changed is assigned."""
        newcomers, here = self.calendar.newcomers(context.round), set(context.clients)
        gone = {client for client in clusters.cluster_of if client not in here}
        if not gone and not newcomers:
            return clusters
        return self.method.admit(clusters.without({*gone, *newcomers}), newcomers, context, self.ask)

    def _restored(self, state: Mapping[str, Any]) -> Clusters:
        self.last_seen, self.has_trained = dict(state["last_seen"]), set(state["has_trained"])
        self.has_answered, self.bad_rounds = set(state["has_answered"]), state["bad_rounds"]
        self.unmeasured = set(state.get("unmeasured", self.has_trained))
        self.seconds, self.cpu_seconds, self.bytes = state["seconds"], state["cpu_seconds"], dict(state["bytes"])
        self.arrivals = {int(number): list(names) for number, names in state["arrivals"].items()}
        self.records, self.remarks = Counter(state["records"]), list(state["remarks"])
        self.watched = Watched(**state["watched"])
        if self.watched.ends is not None and self.watched.of == self.rounds:
            self.rounds = self.watched.ends
        elif self.watched.ends is not None:  # a person wants other rounds now: watch anew
            self.watched = Watched()
        self.ask.stepping.restore(state.get("server", {}))
        for number, names in self.arrivals.items():
            self.calendar = self.calendar.joined_by(names, number)
        return Clusters.from_plain(state["clusters"], self.method.State)

    # What a round leaves

    def _is_measured(self, number: int) -> bool:
        every = self.settings.evaluate_every
        return number == self.rounds or (every > 0 and number % every == 0)

    def _evaluating(self, number: int) -> Sequence[str]:
        """Who tells how well it is served."""
        share = self.settings.evaluate_participation
        count = int(np.ceil(share * len(self.present) - 1e-9))
        if count == len(self.present):
            return self.present
        order = stream(self.settings.seed, "evaluate", "", number).permutation(len(self.present))[:count]
        return [self.present[place] for place in np.sort(order)]

    def _is_local_measured(self, number: int) -> bool:
        every = self.settings.evaluate_local_every
        due = number == self.rounds or (every > 0 and number > 0 and number % every == 0)
        return self.engine.keeps_models and due

    def _close_round(
        self, number: int, clusters: Clusters, measured: bool, local: bool, began: tuple[float, float]
    ) -> None:
        self.has_trained |= self.ask.trained_to_serve
        self.has_answered |= self.ask.answered
        self.unmeasured.update(self.ask.asked, self.calendar.newcomers(number))
        asked, answered = len(self.ask.asked), len(self.ask.answered)
        self.failed_most = asked > 0 and 2 * answered < asked
        self.bad_rounds = self.bad_rounds + 1 if self.failed_most else 0
        if measured:
            serving, method = self.serving, self.method
            tasks = {client: serving.served(method, clusters, client) for client in self._evaluating(number)}
            self._see(self.ask(tasks, phase="measure"), "")
        if local:
            changed = self.has_trained & self.unmeasured  # the others would say the same again
            trainers = [client for client in self.present if client in changed]
            answers = self.ask(Evaluate(start=LOCAL), to=trainers, phase="measure")
            self._see(answers, LOCAL_MODEL)
            failed = {failure["client"] for failure in self.ask.failures}  # may be at work still: ask once more
            self.unmeasured -= set(answers) - failed
        for entry in self.ask.ledger:
            if entry["phase"] not in UNCOUNTED:
                self.bytes[entry["direction"]] += entry["bytes"]
        self.records.update(self.ask.records.keys())
        self.seconds += time.perf_counter() - began[0]
        self.cpu_seconds += time.process_time() - began[1]
        state = {
            "clusters": clusters.to_plain(),
            "last_seen": self.last_seen,
            "has_trained": sorted(self.has_trained),
            "has_answered": sorted(self.has_answered),
            "unmeasured": sorted(self.unmeasured),
            "bad_rounds": self.bad_rounds,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "bytes": self.bytes,
            "arrivals": self.arrivals,
            "server": dict(self.ask.stepping.keep(clusters.models.values())),
            "memory": self.engine.remembered(),
            "records": dict(self.records),
            "remarks": self.remarks,
            "watched": asdict(self.watched),
        }
        self.engine.flush()
        tables = {"history": self._history(number, clusters, measured, local), "ledger": self.ask.ledger}
        self.run.write_round(number, state, tables, self.ask.records)
        self.on_round(self._progress(number, len(clusters), measured, local))

    def _end_if_level(self, clusters: Clusters, context: RoundContext) -> None:
        """A run whose models no longer improve is brought to its end, where it was asked to watch out for that."""
        if self.settings.stop is None or self.watched.ends is not None:
            return
        watch = self.settings.stop.watched
        self.watched = watch(self.watched, self.method, self.serving, clusters, context, self.ask)
        if self.watched.ends is not None:
            since = f"no better on held-out rows since round {self.watched.best_round}"
            self._remark(f"stopped early: {since}; the last round is {self.watched.ends}, not {self.rounds}")
            self.rounds = self.watched.ends

    def _end_if_hopeless(self, number: int) -> None:
        """A run in which most clients fail, round after round, does not go on as if it trained."""
        is_last = number == self.rounds
        nobody = is_last and number > 0 and bool(self.ask.failures) and not self.has_trained
        if self.bad_rounds < BAD_ROUNDS and not nobody:
            return
        reasons = Counter(failure["failure"] for failure in self.ask.failures)
        why = reasons.most_common(1)[0][0] if reasons else "they did not answer"
        what = "no client has trained" if nobody else f"most clients failed in {self.bad_rounds} rounds in a row"
        cure = "lower training.learning_rate" if "not finite" in why else "mend that"
        raise FedcladeError(f"{what} ({why}): {cure}, and run again or go on with `fedclade resume {self.run.path}`")

    def _progress(self, number: int, n_clusters: int, measured: bool, local: bool) -> Progress:
        metric = self.engine.metrics[0]
        served, kept = (metric.over_clients(self._last(f"{metric.name}{of}")) for of in MODELS)
        return Progress(
            number,
            self.rounds,
            served["mean"] if measured else None,
            n_clusters,
            self.bytes["up"],
            self.bytes["down"],
            len(self.ask.failures),
            worst=served["worst"] if measured else None,
            local=kept["mean"] if local else None,
            local_worst=kept["worst"] if local else None,
            seconds=self.seconds,
            metric=metric,
        )

    def _see(self, answers: Mapping[str, Evaluated], model: str) -> None:
        for client, answer in answers.items():
            found = {f"{name}{model}": value for name, value in answer.metrics.items()}
            self.last_seen.setdefault(client, {}).update(found | {f"loss{model}": answer.loss})

    def _last(self, what: str) -> list[float]:
        """The last value measured of every client that is there."""
        return [self.last_seen[c][what] for c in self.present if what in self.last_seen.get(c, {})]

    def _history(self, number: int, clusters: Clusters, measured: bool, local: bool) -> list[dict[str, Any]]:
        """A row for each client: where it is, how well it is served, and what went wrong."""
        failed: dict[str, str] = {}
        for failure in self.ask.failures:
            earlier = f"{failed[failure['client']]}; " if failure["client"] in failed else ""
            failed[failure["client"]] = f"{earlier}{failure['phase']}: {failure['failure']}"
        cluster_of = clusters.cluster_of
        nothing: dict[str, float] = {}
        names = [metric.name for metric in self.engine.metrics]
        columns = {f"{name}{of}": there for of, there in zip(MODELS, (measured, local), strict=True) for name in names}
        rows = []
        for client in self.present:
            seen = self.last_seen.get(client, nothing)
            trained = self.ask.trained.get(client)
            row = {
                "round": number,
                "client": client,
                "cluster": cluster_of[client],
                **{name: seen.get(name, np.nan) if there else np.nan for name, there in columns.items()},
                "trained": trained is not None,
                "train_loss": trained.loss if trained is not None else np.nan,
                "n_samples": trained.n_samples if trained is not None else 0,
                "failure": failed.get(client, ""),
            }
            rows.append(row)
        return rows

    def _finish(self, clusters: Clusters) -> dict[str, Any]:
        settings = self.settings
        agreement: dict[str, float | None] = {"ari": None, "nmi": None}
        if self.groups is not None and set(self.present) <= set(self.groups):
            groups = groups_of(self.groups, self.calendar.rows_of(self.rounds))
            found = np.array([clusters.cluster_of[client] for client in self.present])
            truth = np.array([groups[client] for client in self.present])
            ari, nmi = adjusted_rand(truth, found), normalized_mutual_information(truth, found)
            agreement = {"ari": float(ari), "nmi": float(nmi)}
        outcome = {
            "method": name_of(self.method),
            "data": settings.data,
            "model": settings.model,
            "seed": settings.seed,
            "clients": len(self.clients),
            **(self.about or {}),
            **self.engine.facts,
            "layout": self.engine.layout.to_json(),
            "rounds": self.rounds,
            "metric": self.engine.metrics[0].name,
            **{
                f"{metric.name}{of}": metric.over_clients(self._last(f"{metric.name}{of}"))
                for of in MODELS
                for metric in self.engine.metrics
            },
            "clusters": {"found": len(clusters), **agreement},
            "bytes": dict(self.bytes),
            "failures": self._failures(),
            "records": dict(self.records),
            "remarks": self.remarks,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),  # of this process: with one worker, of everything
        }
        silent = [client for client in self.present if client not in self.has_answered and self.rounds > 0]
        parts = {str(cluster): list(clients) for cluster, clients in clusters.members.items()}
        waiting = sorted({*clusters.unassigned, *silent})
        told = {"members": parts, "unassigned": waiting, "tree": [dict(branch) for branch in clusters.tree]}
        models = {cluster: self.engine.state_dict(clusters.models[cluster]) for cluster in clusters.members}
        record = self.run.settings
        scaling = record.get("preprocessing")
        task = record_of(settings.task)
        facts = file_facts(str(settings.model), record["input_shape"], record["classes"], scaling, task)
        self.run.finish(outcome, told, models, facts)
        return outcome

    def _failures(self) -> int:
        """In how many rounds some client failed, over all clients."""
        return int((self.run.column("history", "failure") != "").sum())


class Recorded:
    """An engine that remembers what came back in a step, so that the step can be done again without one client."""

    def __init__(
        self,
        engine: Engine,
        past: Sequence[Mapping[str, Answer | Failure]] = (),
        culprit: str = "",
        error: Exception | None = None,
    ) -> None:
        # Only the first question is the same without the culprit: later ones follow from the answers.
        self._engine, self._past, self._culprit, self._error = engine, list(past[:1]), culprit, error
        self._calls: list[Mapping[str, Answer | Failure]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def answered(self) -> list[str]:
        """Who gave an answer, the latest first: it is the likeliest to have done the harm."""
        order = [client for call in reversed(self._calls) for client, a in call.items() if not isinstance(a, Failure)]
        return list(dict.fromkeys(order))

    def without(self, culprit: str, error: Exception) -> "Recorded":
        return Recorded(self._engine, self._calls, culprit, error)

    def answer(self, tasks: Mapping[str, Task], round: int) -> Mapping[str, Answer | Failure]:
        asked = {client: task for client, task in tasks.items() if client != self._culprit}
        known = self._past.pop(0) if self._past else {}
        missing = {client: task for client, task in asked.items() if client not in known}
        came = {**known, **(self._engine.answer(missing, round) if missing else {})}
        if self._culprit in tasks:
            why = f"its answer broke the method ({type(self._error).__name__}: {self._error})"
            came[self._culprit] = Failure("refused", why.splitlines()[0][:300])
        self._calls.append(came)
        return came
