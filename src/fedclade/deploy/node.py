"""A node: the rows of one client, where they lie, and what it does when the server asks.

    node-config 'name="anna" data="folder:/srv/anna"'              its own folder, with one file
    node-config 'name="anna" data="hospital.rows:load"'            its own function, which returns (x, y) or more
    node-config 'data="digits" split="label-groups:2" clients=3 partition-id=0'      for trying out

Rows never leave: the server learns their shape, the names of classes and columns, statistics of features that are to
be scaled, and what a method asks for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.clients.memory import Memory
from fedclade.clients.objective import label_statistics
from fedclade.data import DataOptions, Preprocessing, federation_of
from fedclade.data.federation import Federation
from fedclade.data.own import Gathered, gather
from fedclade.data.own.tables import Table, kinds_of
from fedclade.engines.records import from_records, to_records
from fedclade.errors import FedcladeError, imported, listed
from fedclade.files import safe_name, write_atomically, write_json
from fedclade.models.weights import Layout
from fedclade.runs.packing import save_tensors

if TYPE_CHECKING:
    from flwr.app import Context, Message

# What the server asks besides tasks, as in `fedclade.engines`
HELLO, STATISTICS, MODEL = "fedclade_hello", "fedclade_statistics", "fedclade_model"


def client_app() -> Any:
    """The Flower ClientApp of a node."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def replied(message: Message, told: Mapping[str, Any]) -> Message:
        return Message(RecordDict({"told": ConfigRecord({"json": json.dumps(told)})}), reply_to=message)

    @app.query(HELLO)
    def hello(message: Message, context: Context) -> Message:
        asked = json.loads(str(message.content.config_records["asked"]["json"]))
        held = held_by(context.node_config, DataOptions(**asked["options"]))
        return replied(message, report_of(held, context.node_config))

    @app.query(STATISTICS)
    def statistics(message: Message, context: Context) -> Message:
        asked = json.loads(str(message.content.config_records["asked"]["json"]))
        held = held_by(context.node_config, DataOptions(**asked["options"]))
        return replied(message, statistics_of(held, asked["numbers"], asked["texts"]))

    @app.query(MODEL)
    def model(message: Message, context: Context) -> Message:
        header, arrays = from_records(message.content)
        keep_model(memory_folder(context.node_config, header["run"], header["client"]), header, arrays)
        return Message(RecordDict(), reply_to=message)

    app.train()(work)
    app.evaluate()(work)
    app.query()(work)
    return app


def work(message: "Message", context: "Context") -> "Message":
    """Hand a task to this node's worker, which does it on the node's own rows."""
    from flwr.app import Message

    from fedclade.deploy.worker import hand_over

    header, arrays = from_records(message.content)
    return Message(to_records(*hand_over(dict(context.node_config), header, arrays)), reply_to=message)


# --- its rows ---------------------------------------------------------------------------------------------------------


def own_rows(
    config: Mapping[str, Any], options: DataOptions | None = None, known: Preprocessing | None = None
) -> Federation:
    """A federation of one: this node's client, with features made as the run makes them."""
    held = held_by(config, options)
    if isinstance(held, Federation):
        return held
    return replace(held, options=held.options.model_copy(update={"scaling": "none"})).federation(known)


def held_by(config: Mapping[str, Any], options: DataOptions | None = None) -> Federation | Gathered:
    """What a node holds: its own rows as they lie there, or its part of a data set."""
    data = config.get("data")
    if not data:
        raise FedcladeError("the node has no data: start it with --node-config 'data=\"folder:PATH\"'")
    name, data = str(config.get("name", "")), str(data)
    if "partition-id" in config:
        dealt = _dealt(data, config)
        place = int(config["partition-id"])
        if not 0 <= place < len(dealt):
            raise FedcladeError(f"partition-id is {place}: the data have clients 0 to {len(dealt) - 1}")
        return dealt.alone(dealt.names[place], name)
    options, seed = options or DataOptions(), int(config.get("seed", 0))
    folder = Path(data.removeprefix("folder:")).expanduser()
    if data.startswith("folder:") or folder.is_dir():
        return _alone(gather(f"folder:{folder}", options, seed=seed), name, f"the folder {folder}")
    made = imported(data, "data") if ":" in data else None
    if made is None:
        raise FedcladeError(f"data {data!r} is no folder: give one, or my_module:load, or a data set and partition-id")
    value = made() if callable(made) else made
    whole = {name or "client": value} if _is_one_client(value) else value
    if isinstance(whole, Federation):
        return whole.alone(_chosen(whole.names, name, f"what {data} gives"), name)
    return _alone(gather(whole, options, seed=seed), name, f"what {data} gives")


def _alone(whole: Gathered, name: str, where: str) -> Gathered:
    """One of the clients that were read."""
    names = [member.name for member in whole.members]
    place = names.index(_chosen(names, name, where))
    member = replace(whole.members[place], name=name or names[place])
    return replace(whole, clients=[whole.clients[place]], members=[member], y=[whole.y[place]])


def _is_one_client(value: Any) -> bool:
    return isinstance(value, tuple | list) or (isinstance(value, Mapping) and "x" in value and "y" in value)


def _dealt(data: str, config: Mapping[str, Any]) -> Federation:
    clients = config.get("clients", config.get("num-partitions"))
    return federation_of(
        data,
        config.get("split"),
        None if clients is None else int(clients),
        int(config.get("seed", 0)),
        config.get("test-view"),
        config.get("data-dir"),
    )


def _chosen(names: Sequence[str], name: str, where: str) -> str:
    if len(names) == 1:
        return names[0]
    if name not in names:
        wanted = f"{name!r} is none of them" if name else "say which with name=..."
        raise FedcladeError(f"{where} holds {len(names)} clients ({listed(names, 5)}): {wanted}")
    return name


def report_of(held: Federation | Gathered, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a node tells of itself before a run: not a row, and of how many only in all."""
    is_named = "name" in config or "partition-id" in config or str(config["data"]).partition(":")[0] == "folder"
    client = held.clients[0] if isinstance(held, Federation) else held.members[0]
    x = held.x if isinstance(held, Federation) else held.clients[0].x
    kinds = kinds_of(x) if isinstance(x, Table) else {}
    return {
        "client": client.name if is_named else "",
        "input_shape": [len(kinds)] if isinstance(x, Table) else list(x.shape[1:]),
        "dtype": x.dtype.name if isinstance(x, np.ndarray) and x.dtype in (np.uint8, np.int32) else "float32",
        "classes": list(held.classes),
        "columns": kinds,  # of a table, and whether each holds numbers or text
        "scaling": held.options.scaling if isinstance(held, Gathered) else "none",
        "group": client.group,
        "rows": len(client.train),
    }


def statistics_of(held: Federation | Gathered, numbers: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """Of features that are scaled and of labels that are amounts: sums over the training rows, no row."""
    client = held.clients[0] if isinstance(held, Federation) else held.members[0]
    y = held.y if isinstance(held, Federation) else held.y[0]
    told: dict[str, Any] = {"features": {}, "labels": {}}
    if numbers or texts:
        if not isinstance(held, Gathered):
            raise FedcladeError("this node's rows are ready made: they need no scaling")
        (features,) = held.statistics(numbers, texts)
        told["features"] = {name: values.tolist() for name, values in features.items()}
    if y.dtype == np.float32:
        told["labels"] = {name: values.tolist() for name, values in label_statistics(y[client.train]).items()}
    return told


def with_classes(rows: Federation, classes: tuple[str, ...], client: str) -> Federation:
    """The same rows as the whole federation knows them: by the client's name, with labels numbered as everywhere."""
    rows = replace(rows, clients=(replace(rows.clients[0], name=client),))
    if classes == rows.classes:
        return rows
    place = {name: number for number, name in enumerate(classes)}
    strange = [name for name in rows.classes if name not in place]
    if rows.labels != "classes":
        raise FedcladeError(f"the labels of this node are {listed(rows.classes)}, those of this run {listed(classes)}")
    if strange:
        raise FedcladeError(f"the label {strange[0]!r} is not among the classes of this run: {listed(classes)}")
    numbers = np.array([place[name] for name in rows.classes], np.int64)
    x = numbers[rows.x].astype(np.int32) if rows.is_text else rows.x
    return replace(rows, x=x, y=numbers[rows.y], classes=classes)


# --- what it remembers ------------------------------------------------------------------------------------------------


def memory_folder(config: Mapping[str, Any], run: str, client: str) -> Path:
    """Where a node keeps its own models of a run: `memory` of its node-config, or the user's cache."""
    import pooch

    chosen = config.get("memory")
    place = Path(str(chosen)).expanduser() if chosen else Path(pooch.os_cache("fedclade")) / "nodes"
    return place / safe_name(run) / safe_name(client)


def keep_model(folder: Path, header: Mapping[str, Any], arrays: list[np.ndarray]) -> None:
    """Keep the model that serves this node, the cluster it is in, and that cluster's model if it is another one."""
    tensors = dict(zip(header["names"], arrays, strict=True))
    mine = own_model(folder, header, tensors)
    if mine is not None:
        write_atomically(folder / "cluster-model.safetensors", lambda part: save_tensors(part, tensors))
    write_atomically(folder / "model.safetensors", lambda part: save_tensors(part, mine or tensors))
    told = {key: header[key] for key in ("run", "client", "cluster", "members")}
    write_json(folder / "cluster.json", told | {"own_model": mine is not None})


def own_model(
    folder: Path, header: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray] | None:
    """What serves this node where it is not what came: what it keeps, perhaps with layers of what came."""
    from fedclade.clients.runtime import composed

    own = header.get("own")
    kept = Memory(folder, read_only=True).read(header["client"], own["slot"]) if own else None
    if not own or kept is None:
        return None
    layout = Layout(tuple(tensors), tuple(array.shape for array in tensors.values()), int(own["n_parameters"]))
    cluster = np.concatenate([array.ravel() for array in tensors.values()])
    layers = tuple(own["layers"]) if isinstance(own["layers"], list) else own["layers"]
    return dict(layout.tensors(composed(cluster if own["sent"] else None, layers, kept, cluster, layout)))
