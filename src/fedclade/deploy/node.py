"""A node: the rows of one client, where they lie, and what it does when the server asks.

    node-config 'name="anna" data="folder:/srv/anna"'              its own folder, with one file
    node-config 'name="anna" data="hospital.rows:load"'            its own function, which returns (x, y) or more
    node-config 'data="digits" split="label-groups:2" clients=3 partition-id=0'      for trying out

Rows never leave: the server learns their shape, the names of classes and columns, and what a method asks for.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.data import DataOptions, federation_of
from fedclade.data.federation import Federation
from fedclade.data.own import column_order
from fedclade.engines.records import from_records, to_records
from fedclade.errors import FedcladeError, imported, listed
from fedclade.files import safe_name, write_atomically, write_json
from fedclade.runs.packing import save_tensors

if TYPE_CHECKING:
    from flwr.app import Context, Message

AS_THEY_ARE = DataOptions(scaling="none")  # scaling by all clients' rows needs their statistics
HELLO, MODEL = "fedclade_hello", "fedclade_model"  # what the server asks besides tasks, as in `fedclade.engines`


def client_app() -> Any:
    """The Flower ClientApp of a node."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query(HELLO)
    def hello(message: Message, context: Context) -> Message:
        import json

        report = report_of(own_rows(context.node_config), context.node_config)
        return Message(RecordDict({"hello": ConfigRecord({"json": json.dumps(report)})}), reply_to=message)

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


def own_rows(config: Mapping[str, Any]) -> Federation:
    """A federation of one: this node's client."""
    data = config.get("data")
    if not data:
        raise FedcladeError("the node has no data: start it with --node-config 'data=\"folder:PATH\"'")
    name, data = str(config.get("name", "")), str(data)
    if "partition-id" in config:
        whole = _dealt(data, config)
        place = int(config["partition-id"])
        if not 0 <= place < len(whole):
            raise FedcladeError(f"partition-id is {place}: the data have clients 0 to {len(whole) - 1}")
        return whole.alone(whole.names[place], name)
    folder, seed = Path(data.removeprefix("folder:")).expanduser(), int(config.get("seed", 0))
    if data.startswith("folder:") or folder.is_dir():
        whole = federation_of(f"folder:{folder}", seed=seed, options=AS_THEY_ARE)
        return whole.alone(_chosen(whole, name, f"the folder {folder}"), name)
    made = imported(data, "data") if ":" in data else None
    if made is None:
        raise FedcladeError(f"data {data!r} is no folder: give one, or my_module:load, or a data set and partition-id")
    value = made() if callable(made) else made
    if _is_one_client(value):
        return federation_of({name or "client": value}, seed=seed, options=AS_THEY_ARE)
    whole = federation_of(value, seed=seed, options=AS_THEY_ARE)
    return whole.alone(_chosen(whole, name, f"what {data} gives"), name)


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


def _chosen(whole: Federation, name: str, where: str) -> str:
    if len(whole) == 1:
        return whole.names[0]
    if name not in whole.names:
        wanted = f"{name!r} is none of them" if name else "say which with name=..."
        raise FedcladeError(f"{where} holds {len(whole)} clients ({listed(whole.names, 5)}): {wanted}")
    return name


def report_of(rows: Federation, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a node tells of itself before a run: not a row, not how many of which class."""
    client = rows.clients[0]
    named = "name" in config or "partition-id" in config or str(config["data"]).partition(":")[0] == "folder"
    return {
        "client": client.name if named else "",
        "input_shape": list(rows.input_shape),
        "dtype": str(rows.x.dtype),
        "classes": list(rows.classes),
        "columns": list(rows.columns),
        "group": client.group,
    }


def with_columns(rows: Federation, columns: tuple[str, ...]) -> Federation:
    """The same rows with a table's features in the order of the run; rows without names are taken as they are."""
    if not (rows.columns and columns):
        return rows
    order = column_order(rows.columns, columns, "the node's table", "the run")
    return replace(rows, x=np.ascontiguousarray(rows.x[:, order]), columns=columns)


def with_classes(rows: Federation, classes: tuple[str, ...], client: str) -> Federation:
    """The same rows as the whole federation knows them: by the client's name, with labels numbered as everywhere."""
    rows = replace(rows, clients=(replace(rows.clients[0], name=client),))
    if classes == rows.classes:
        return rows
    place = {name: number for number, name in enumerate(classes)}
    strange = [name for name in rows.classes if name not in place]
    if strange:
        raise FedcladeError(f"the label {strange[0]!r} is not among the classes of this run: {listed(classes)}")
    numbers = np.array([place[name] for name in rows.classes], np.int64)
    return replace(rows, y=numbers[rows.y], classes=classes)


# --- what it remembers ------------------------------------------------------------------------------------------------


def memory_folder(config: Mapping[str, Any], run: str, client: str) -> Path:
    """Where a node keeps its own models of a run: `memory` of its node-config, or the user's cache."""
    import pooch

    chosen = config.get("memory")
    place = Path(str(chosen)).expanduser() if chosen else Path(pooch.os_cache("fedclade")) / "nodes"
    return place / safe_name(run) / safe_name(client)


def keep_model(folder: Path, header: Mapping[str, Any], arrays: list[np.ndarray]) -> None:
    """Keep the model that serves this node, and the cluster it is in."""
    tensors = dict(zip(header["names"], arrays, strict=True))
    write_atomically(folder / "model.safetensors", lambda part: save_tensors(part, tensors))
    write_json(folder / "cluster.json", {key: header[key] for key in ("run", "client", "cluster", "members")})
