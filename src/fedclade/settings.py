"""The settings of a run: the same names on the command line, in a TOML file and in Python."""

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from fedclade.aggregation import AGGREGATIONS, Aggregation, Mean
from fedclade.ask import MAX_SAMPLES
from fedclade.clients.objective import Classification, Objective, objective_class, record_of
from fedclade.clients.tasks import Training
from fedclade.data.options import DataOptions
from fedclade.errors import FedcladeError, listed, unknown
from fedclade.events import Event
from fedclade.methods import Method, method_class, name_of
from fedclade.optimizers import SERVER_OPTIMIZERS, ServerOptimizer
from fedclade.serving import SERVINGS, Serving, serving_of
from fedclade.stopping import Stop
from fedclade.updates import UPDATE_STEPS, UpdateStep

DEFAULT_DATA, DEFAULT_METHOD = "digits", "clade"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


class Settings(BaseModel):
    """Everything that makes up a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = DEFAULT_DATA  # a data set, folder:PATH, table:PATH or my_module:make_data
    data_options: DataOptions = DataOptions()  # how own data are read: `data = { name = "folder:...", label = "y" }`
    split: str | None = None  # how rows are dealt out to clients; None: natural where rows have owners, else iid
    clients: Annotated[int, Field(ge=1)] | None = None  # how many clients; None: all owners, or 20
    rows: Annotated[int, Field(ge=1)] | None = None  # training rows that a client keeps at most, drawn at random
    test_view: Literal["label-support", "proportional", "holdout"] | None = None  # on what clients are tested
    model: str | None = None  # the network; None: one that fits the data
    method: SerializeAsAny[Method] = Field(default_factory=lambda: method_class(DEFAULT_METHOD)())  # what is run
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0  # the share of clients that take part in a round
    aggregation: SerializeAsAny[Aggregation] = Mean()  # how the answers of a cluster become its model
    server: SerializeAsAny[ServerOptimizer] = ServerOptimizer()  # how the model steps to what they became together
    updates: tuple[SerializeAsAny[UpdateStep], ...] = ()  # what updates go through on their way to the server
    serving: SerializeAsAny[Serving] | None = None  # what serves clients in the end; None: as the method does
    training: Training = Training()  # how clients train
    stop: Stop | None = None  # end the run early, once models no longer improve on rows that nobody trains on
    task: SerializeAsAny[Objective] = Classification()  # what networks are trained for
    device: Literal["cpu", "auto", "cuda", "mps"] = "cpu"  # where they run; "auto": on a GPU where torch sees one
    rounds: Annotated[int, Field(ge=0)] = 10  # how many rounds
    seed: Annotated[int, Field(ge=0)] = 0  # all chance in a run comes from it
    evaluate_every: Annotated[int, Field(ge=0)] = 1  # rounds from one evaluation to the next; 0: only at the end
    evaluate_participation: Annotated[float, Field(ge=0, le=1)] = 1.0  # the share of clients that evaluate then
    evaluate_local_every: Annotated[int, Field(ge=0)] = 0  # the same for locally trained models; 0: only at the end
    baselines: bool = False  # also run fedavg and local on the same rows, to see whether the method pays
    keep_local: bool | None = None  # clients keep the models they trained; None: unless there are more than 5,000
    events: tuple[Event, ...] = ()  # clients that join, leave or see their data change during the run
    engine: Literal["local", "flower-sim", "flower"] = "local"  # where clients run
    engine_address: str | None = None  # of a Ray cluster: `engine = { name = "flower-sim", address = "..." }`
    workers: Annotated[int, Field(ge=1, le=256)] = Field(default_factory=cores)  # worker processes
    timeout: Annotated[float, Field(gt=0)] | None = None  # seconds that a piece of clients' work may take
    quorum: Annotated[float, Field(ge=0, le=1)] = 0.0  # the share of those who train a model that must answer
    max_samples: Annotated[int, Field(ge=1)] = MAX_SAMPLES  # rows that one client may claim to have trained on
    data_dir: str | None = None  # where data files lie; None: $FEDCLADE_DATA, or the user's cache

    @model_validator(mode="before")
    @classmethod
    def _data_with_options(cls, values: Any) -> Any:
        return with_engine_address(with_data_options(values)) if isinstance(values, Mapping) else values

    @field_validator("training", mode="before")
    @classmethod
    def _rate_of_optimizer(cls, value: Any) -> Any:
        """Adam's steps are as long as its rate, so that it needs a smaller one."""
        if isinstance(value, Mapping) and value.get("optimizer") in ("adam", "adamw"):
            return {"learning_rate": 0.001, **value}
        return value

    @field_validator("method", mode="before")
    @classmethod
    def _method_by_name(cls, value: Any) -> Any:
        return chosen("method", value, Method, method_class, DEFAULT_METHOD)

    @field_validator("aggregation", mode="before")
    @classmethod
    def _aggregation_by_name(cls, value: Any) -> Any:
        return chosen("aggregation", value, Aggregation, by_name("aggregation", AGGREGATIONS))

    @field_validator("server", mode="before")
    @classmethod
    def _server_by_name(cls, value: Any) -> Any:
        return chosen("server", value, ServerOptimizer, by_name("server optimiser", SERVER_OPTIMIZERS))

    @field_validator("task", mode="before")
    @classmethod
    def _task_by_name(cls, value: Any) -> Any:
        return chosen("task", value, Objective, objective_class, "own")

    @field_validator("serving", mode="before")
    @classmethod
    def _serving_by_name(cls, value: Any) -> Any:
        return None if value is None else chosen("serving", value, Serving, by_name("serving", SERVINGS))

    @field_serializer("serving")
    def _named_serving(self, serving: Serving | None) -> dict[str, Any]:
        return named(serving_of(serving, self.method), SERVINGS)

    @property
    def serves(self) -> Serving:
        """What serves clients in the end."""
        return serving_of(self.serving, self.method)

    @field_validator("updates", mode="before")
    @classmethod
    def _updates_by_name(cls, value: Any) -> Any:
        steps = value if isinstance(value, list | tuple) else [value]
        return tuple(chosen("update step", step, UpdateStep, by_name("update step", UPDATE_STEPS)) for step in steps)

    @field_serializer("method")
    def _named_method(self, method: Method) -> dict[str, Any]:
        return {"name": name_of(method), **method.model_dump(mode="json")}

    @field_serializer("aggregation")
    def _named_aggregation(self, rule: Aggregation) -> dict[str, Any]:
        return named(rule, AGGREGATIONS)

    @field_serializer("server")
    def _named_server(self, optimizer: ServerOptimizer) -> dict[str, Any]:
        return named(optimizer, SERVER_OPTIMIZERS)

    @field_serializer("task")
    def _named_task(self, task: Objective) -> dict[str, Any]:
        return record_of(task)

    @field_serializer("updates")
    def _named_updates(self, steps: tuple[UpdateStep, ...]) -> list[dict[str, Any]]:
        return [named(step, UPDATE_STEPS) for step in steps]

    @model_validator(mode="after")
    def _data_fit_task(self) -> "Settings":
        needed, told = self.task.labels, self.data_options.labels
        if needed is not None and told not in (None, needed):
            raise ValueError(f"task {self.task.name} needs labels that are {needed}, but data.labels is {told}")
        return self

    @property
    def is_open_ended(self) -> bool:
        """Whether nobody has said how long clients train, so that the run may: see `assembly.long_enough`."""
        said = {"local_epochs", "batch_size"} & self.training.model_fields_set
        return "rounds" not in self.model_fields_set and not said

    def training_for(self, epochs: int) -> "Settings":
        """The same settings with another number of epochs in a round."""
        return self.model_copy(update={"training": self.training.model_copy(update={"local_epochs": epochs})})

    def from_anywhere(self) -> "Settings":
        """The same settings with paths that hold from any directory."""

        def whole(path: str) -> str:
            return str(Path(path).expanduser().absolute())

        kind, _, path = self.data.partition(":")
        changes: dict[str, Any] = {"data": f"{kind}:{whole(path)}"} if kind in ("folder", "table") and path else {}
        if self.data_dir is not None:
            changes["data_dir"] = whole(self.data_dir)
        probe = getattr(self.method, "probe_file", None)
        if probe is not None:
            changes["method"] = self.method.model_copy(update={"probe_file": whole(probe)})
        return self.model_copy(update=changes)

    @property
    def pace(self) -> Training:
        """How clients train, with a schedule that ends with the run."""
        return self.training.for_run(self.rounds)

    @property
    def reading(self) -> DataOptions:
        """How own data are read for this task."""
        labels = self.task.labels or self.data_options.labels or "classes"
        return self.data_options.model_copy(update={"labels": labels, "rows": self.data_options.rows or self.task.rows})

    @field_validator("data_dir", mode="before")
    @classmethod
    def _path_is_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value


M = TypeVar("M", bound=BaseModel)


def chosen(kind: str, value: Any, base: type[M], known: Callable[[str], type[M]], default: str | None = None) -> M:
    """One of several classes by its name, or a table of its name and settings; an object stays as it is."""
    if isinstance(value, base):
        return value
    table = {"name": value} if isinstance(value, str) else value
    given = {"name": default, **table} if isinstance(table, Mapping) else {}
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise FedcladeError(f"{kind} = {value!r} is wrong: say which by its name, or as a table with a name")
    found = known(name)
    try:
        return found(**given)
    except ValidationError as error:
        raise FedcladeError(in_one_line(error, f"{kind} {name}", found.model_fields)) from None


def by_name(kind: str, known: Mapping[str, type[M]]) -> Callable[[str], type[M]]:
    def found(name: str) -> type[M]:
        if name not in known:
            raise unknown(kind, name, known)
        return known[name]

    return found


def named(value: BaseModel, known: Mapping[str, type[Any]]) -> dict[str, Any]:
    """An object as a record has it: its name and all its settings."""
    name = next(name for name, kind in known.items() if kind is type(value))
    return {"name": name, **value.model_dump(mode="json")}


def settings_from(values: Mapping[str, Any]) -> Settings:
    """Validated settings. Anything wrong is one line."""
    try:
        return Settings(**values)
    except ValidationError as error:
        raise FedcladeError(in_one_line(error, "settings", Settings.model_fields)) from None


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`training.momentum` and the like, in place of tables inside tables."""
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            plain |= flat(value, f"{prefix}{name}.")
        else:
            plain[f"{prefix}{name}"] = value
    return plain


def gathered(config: Path | None, options: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """What a command was given: a file's values, beaten by its options (None: not given), beaten by its --set."""
    values = read_toml(config) if config is not None else {}
    given = {name: value for name, value in options.items() if value is not None}
    if "method" in given:
        given["method"] = {**as_table(values.get("method")), "name": given["method"]}
    if "task" in given and isinstance(values.get("task"), Mapping):
        given["task"] = {**values["task"], "name": given["task"]}
    if "data" in given and isinstance(values.get("data"), Mapping):
        given["data"] = {**values["data"], "name": given["data"]}
    return with_data_options(with_assignments({**values, **given}, assignments))


def with_data_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """`data = { name = "folder:...", label = "y" }` as the data's name and its options."""
    data = values.get("data")
    if not isinstance(data, Mapping):
        return dict(values)
    options = {name: value for name, value in data.items() if name != "name"}
    told = {**values.get("data_options", {}), **options}
    return {**values, "data": data.get("name", DEFAULT_DATA), "data_options": told}


def with_engine_address(values: Mapping[str, Any]) -> dict[str, Any]:
    """`engine = { name = "flower-sim", address = "..." }` as the engine's name and its address."""
    engine = values.get("engine")
    if not isinstance(engine, Mapping):
        return dict(values)
    strange = [name for name in engine if name not in ("name", "address")]
    if strange:
        raise FedcladeError(
            f"settings: there is no setting 'engine.{strange[0]}'; there are engine.name and engine.address"
        )
    return {**values, "engine": engine.get("name", "local"), "engine_address": engine.get("address")}


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return _with_underscores(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except FileNotFoundError:
        raise FedcladeError(f"there is no file {path}: give the path of a TOML file") from None
    except OSError as error:
        raise FedcladeError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # broken TOML, or bytes that are no text, or nested without end
        raise FedcladeError(f"cannot read {path}: it is no proper TOML ({error})") from None


def _with_underscores(table: Mapping[str, Any]) -> dict[str, Any]:
    """`data-dir`, as on the command line, and `data_dir`, as in Python, are the same name."""
    inner = {name: _with_underscores(value) if isinstance(value, Mapping) else value for name, value in table.items()}
    return {name.replace("-", "_"): value for name, value in inner.items()}


def with_assignments(values: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Add `--set method.threshold=1.4` and the like; what stands right of `=` is read as TOML, else as a word."""
    result: dict[str, Any] = {**values}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = name.strip().replace("-", "_").split(".")
        if not equals or not all(keys):
            raise FedcladeError(f"--set {assignment!r}: write it as name=value, for example method.threshold=1.4")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        table = result
        for key in keys[:-1]:
            inner = table.get(key, {})
            inner = {"name": inner} if isinstance(inner, str) else dict(inner) if isinstance(inner, Mapping) else None
            if inner is None:
                raise FedcladeError(f"--set {assignment!r}: {key} has no settings of its own")
            table[key] = inner
            table = inner
        if keys == ["method"] and isinstance(value, str):
            value = {**as_table(result.get("method")), "name": value}
        table[keys[-1]] = value
    return result


def merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` settings beat `shared` ones, inside the tables (method, training) name by name."""
    tables = {
        name: {**as_table(shared[name]), **as_table(own[name])}
        for name in shared.keys() & own.keys()
        if isinstance(shared[name], Mapping) or isinstance(own[name], Mapping)
    }
    return {**shared, **own, **tables}


def as_table(method: Any) -> dict[str, Any]:
    return dict(method) if isinstance(method, Mapping) else {} if method is None else {"name": method}


def in_one_line(error: ValidationError, where: str, known: Mapping[str, Any]) -> str:
    """The first fault, those of unknown names before others: a misspelt name explains a missing one."""
    first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    name = ".".join(
        str(part) for part in first["loc"] if not str(part).startswith(("function-", "literal[", "constrained-"))
    )
    if first["type"] == "extra_forbidden":
        import difflib

        tables = {
            "training": Training.model_fields,
            "stop": Stop.model_fields,
            "events": Event.model_fields,
            "data_options": DataOptions.model_fields,
        }
        known = tables.get(name.partition(".")[0], known)
        near = difflib.get_close_matches(name.split(".")[-1], list(known), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {listed(known)}"
        return f"{where}: there is no setting {name!r}; {hint}"
    if first["type"] == "missing":
        return f"{where}: {name} is missing"
    words = first["msg"].removeprefix("Value error, ")
    if not name:
        return f"{where}: {words}"
    return f"{where}: {name} = {first['input']!r} is wrong: {words[0].lower()}{words[1:]}"
