"""What to do with a run that has ended: predictions for new rows, and its models in forms that others read."""

import io
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclade.api import load
from fedclade.clients.objective import Objective
from fedclade.data import DataOptions
from fedclade.data.own.prepared import prepared
from fedclade.errors import FedcladeError, listed
from fedclade.files import write_atomically, write_json
from fedclade.methods import Method
from fedclade.models.weights import load as load_weights
from fedclade.result import Result
from fedclade.runs.packing import save_tensors
from fedclade.runs.record import recorded_settings
from fedclade.settings import Settings

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import nn

FORMATS = ("safetensors", "torchscript", "onnx")
CHUNK = 1000  # rows in one forward pass


def predict(
    path: Path | str,
    client: str,
    data: Any,
    *,
    model: Any = None,
    method: Method | None = None,
    task: Any = None,
) -> "pd.DataFrame":
    """What the model that serves a client says of new rows: a row each, with probabilities or amounts.

    `data` are a file as clients have them, a DataFrame or an array; labels in it are passed over. `model`, `method` and
    `task` are needed where the run was given them in Python.
    """
    import pandas as pd

    result = load(path)
    settings = recorded_settings(result.record, path, method, task)
    x = prepared(data, result.record.get("preprocessing"), settings.reading, client=client)
    if list(x.shape[1:]) != result.record["input_shape"]:
        raise FedcladeError(f"rows have shape {x.shape[1:]}, those of the run {tuple(result.record['input_shape'])}")
    if not len(x):
        raise FedcladeError("there are no rows to predict: give some")
    network = _with_model(result, settings, model).model_for(client)
    outputs = [_outputs(network, x[start : start + CHUNK]) for start in range(0, len(x), CHUNK)]
    return pd.DataFrame(_columns(np.concatenate(outputs), settings.task, result.record["classes"]))


def _with_model(result: Result, settings: Settings, model: Any) -> Result:
    """The run with its networks, where these were given in Python."""
    if model is None:
        return Result(result.folder, method=settings.method)
    from fedclade.assembly import make_networks

    record = result.record
    shape = tuple(record["input_shape"])
    networks = make_networks(settings, model, record["clients"], shape, len(record["classes"]))
    return Result(result.folder, networks, settings.method)


def _outputs(network: "nn.Module", rows: np.ndarray) -> np.ndarray:
    import torch

    from fedclade.clients.networks import as_inputs
    from fedclade.models import row_type

    with torch.no_grad():
        return network(as_inputs(torch.from_numpy(np.ascontiguousarray(rows)), row_type(network))).float().numpy()


def _columns(outputs: np.ndarray, task: Objective, classes: Sequence[str]) -> dict[str, Any]:
    import torch

    if outputs.ndim == 3:  # what comes after the whole row
        outputs = outputs[:, :, -1]
    told = task.predictions(torch.from_numpy(outputs)).numpy()
    names = np.array(classes, dtype=object)
    if task.labels == "numbers":
        return {str(name): told[:, place] for place, name in enumerate(names)}
    chances = {f"probability of {name}": told[:, place] for place, name in enumerate(names)}
    if task.labels == "classes":
        return {"prediction": names[told.argmax(1)], **chances}
    if task.labels == "sets":
        return {"prediction": [";".join(names[row > 0.5]) for row in told], **chances}
    return {f"output {name}": told[:, place] for place, name in enumerate(names)}


def export(path: Path | str, form: str, out: Path | str | None = None, *, model: Any = None) -> list[Path]:
    """Write every cluster's model in a form that others read, and beside them what their inputs and outputs are.

    Models in `torchscript` and `onnx` put out what people read: probabilities, or amounts in their unit. Inputs are
    features as `about.json` says they are made.
    """
    if form not in FORMATS:
        raise FedcladeError(f"format {form!r}: choose one of {listed(FORMATS)}")
    result = load(path)
    settings = recorded_settings(result.record, path)
    place = Path(out) if out is not None else result.path / "exported"
    result = _with_model(result, settings, model)
    written: list[Path] = []
    write: Callable[[Path], object]
    for cluster, members in result.clusters.items():
        target = place / f"cluster-{cluster}.{'pt' if form == 'torchscript' else form}"
        through = result.served(members[0]).through
        if form != "safetensors":
            network, shape = _network_of(result, cluster, members[0]), result.record["input_shape"]
            write = partial(_write, network, settings.task, shape, settings.reading, form)
        elif isinstance(through, str):
            write = partial(shutil.copyfile, _undamaged(result, cluster))
        else:  # with the networks that its model reads
            state = result.model_for(members[0]).state_dict()
            write = partial(save_tensors, arrays={name: tensor.numpy() for name, tensor in state.items()})
        write_atomically(target, write)
        written.append(target)
    about = {name: result.record.get(name) for name in ("input_shape", "classes", "columns", "preprocessing", "task")}
    write_json(place / "about.json", {**about, "clusters": {str(k): v for k, v in result.clusters.items()}})
    return [*written, place / "about.json"]


def _undamaged(result: Result, cluster: int) -> Path:
    """The file of a cluster's model, which has no checksum, after making sure that it holds what the run knows."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = result.path / "models" / f"cluster-{cluster}.safetensors"
    known = result.layout.tensors(result.state_of_clusters.models[cluster])
    try:
        found = load_file(path)
        is_whole = all(np.array_equal(found[name], own.astype(found[name].dtype)) for name, own in known.items())
    except (OSError, SafetensorError, KeyError):
        is_whole = False
    if not is_whole:
        raise FedcladeError(f"{path} is damaged or gone: `fedclade resume {result.path}` writes it anew")
    return path


def _network_of(result: Result, cluster: int, member: str) -> "nn.Module":
    """A cluster's model as a network, from rows to outputs."""
    through = result.served(member).through
    if not isinstance(through, str):  # networks that serve all members alike
        return result.model_for(member)
    if through:
        raise FedcladeError(
            "clients of this run have networks of their own, and a cluster's model reads what these put out: "
            "use fedclade predict, or --format safetensors for the cluster's part"
        )
    return load_weights(result.network_of(member), result.state_of_clusters.models[cluster]).eval()


def _write(
    network: "nn.Module", task: Objective, shape: Sequence[int], options: DataOptions, form: str, target: Path
) -> None:
    import warnings

    import torch
    from torch import nn

    from fedclade.models import row_type

    class Served(nn.Module):
        """A network and what makes its outputs readable."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, rows: "torch.Tensor") -> "torch.Tensor":
            return task.predictions(self.network(rows))

    kind = torch.int64 if options.rows == "tokens" else row_type(network)
    example, served = torch.zeros(2, *shape, dtype=kind), Served().eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if form == "torchscript":
            packed = io.BytesIO()  # torch would say in many lines that the disk is full
            torch.jit.save(torch.jit.trace(served, example), packed)
            target.write_bytes(packed.getbuffer())
            return
        try:
            import onnx  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
        except ImportError:
            raise FedcladeError("onnx needs a package: pip install 'fedclade[onnx]'") from None
        axes = {"rows": {0: "rows"}, "predictions": {0: "rows"}}
        torch.onnx.export(
            served, (example,), str(target), input_names=["rows"], output_names=["predictions"], dynamic_axes=axes,
            dynamo=False,
        )  # fmt: skip


__all__ = ["export", "predict"]
