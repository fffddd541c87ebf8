"""What many clients cost the server, and what a start costs: `make bench`.

Every line is measured in a process of its own, in seconds of the processor (the smallest of several), and set against
others of the same run: as a ratio, or as the power of the number of clients with which it grows. `--large` adds 100,000
clients, `--flower` what Flower's own simulation takes for the same job.
"""

import argparse
import itertools
import math
import multiprocessing as mp
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 850  # numbers by which a client is compared: the last layer of LeNet-5
HEAD = "|---|---|---|---|"


def apart(action: Callable[..., Any], *arguments: Any) -> Any:
    """What an action returns in a new process."""
    with ProcessPoolExecutor(1, mp.get_context("spawn")) as pool:
        return pool.submit(action, *arguments).result()


def spent() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def power(sizes: list[int], seconds: list[float]) -> float:
    """Of the number of clients with which the time grows, over the last two sizes."""
    return math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2])


# ---- starting ---------------------------------------------------------------------------------------------------------


def starts(repeats: int = 5) -> Iterator[str]:
    """The processor's seconds of Python processes, which take turns."""
    commands = {
        "`import torch`": ("-c", "import torch"),
        "`fedclade methods`": ("-m", "fedclade", "methods"),
        "a run of 0 rounds": ("-c", "import fedclade; fedclade.run(method='fedavg', rounds=0, workers=1)"),
    }
    best = dict.fromkeys(commands, math.inf)
    for name, words in [*commands.items()] * repeats:
        before = spent()
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        best[name] = min(best[name], spent() - before)
    torch, *others = best.items()
    yield f"| {torch[0]} | {torch[1]:.2f} s | | |"
    for name, seconds in others:
        yield f"| {name} | {seconds:.2f} s | | {seconds / torch[1]:.2f} times `import torch` |"


# ---- runs -------------------------------------------------------------------------------------------------------------


def clients_of(count: int, rows: int = 16) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    x = random.normal(size=(count, rows, 20)).astype(np.float32)
    y = (x[:, :, 0] > 0) + 2 * (x[:, :, 1] > 0)
    return {f"c{k:06d}": (x[k], y[k]) for k in range(count)}


def one_run(count: int) -> tuple[float, float, int, float]:
    """Seconds, peak megabytes, files and megabytes on disk of two rounds of FedAvg; imports are not counted."""
    import fedclade.api

    fedclade.api.run(clients_of(20), method="fedavg", model="mlp", rounds=1, workers=1)
    data, began = clients_of(count), spent()
    with tempfile.TemporaryDirectory() as folder:
        fedclade.api.run(data, method="fedavg", model="mlp", rounds=2, workers=1, out=Path(folder) / "run")
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return spent() - began, peak(), len(files), sum(path.stat().st_size for path in files) / 1e6


def runs(sizes: list[int]) -> Iterator[str]:
    times: list[float] = []
    for size in sizes:
        seconds, memory, files, disk = apart(one_run, size)
        times.append(seconds)
        grows = f"power {power(sizes[: len(times)], times):.2f}" if len(times) > 1 else ""
        yield (
            f"| a run: {size:,} clients x 16 rows, MLP, 2 rounds of FedAvg, one process "
            f"| {seconds:.1f} s | {memory:.0f} MB, {files} files, {disk:.0f} MB on disk | {grows} |"
        )


# ---- a deployed node --------------------------------------------------------------------------------------------------


def node_tasks(repeats: int = 20) -> tuple[float, float]:
    """Seconds of a node's worker for its first small task (it reads its rows), and for one of those that follow."""
    import torch

    from fedclade.clients.messages import pack
    from fedclade.clients.objective import Classification
    from fedclade.clients.tasks import Train, Training
    from fedclade.data import DataOptions
    from fedclade.deploy.worker import perform
    from fedclade.engines.brief import Brief
    from fedclade.models import make
    from fedclade.models.weights import Layout, flatten

    torch.set_num_threads(1)
    recipe: Any = ("mlp", (20,), 4)
    module = make(*recipe)
    told = {"run": "bench", "session": "1", "since": 0, "seed": 0, "rows": None, "network": "", "preprocessing": None}
    brief = Brief(
        **told,  # type: ignore[arg-type]
        training=Training(local_epochs=1),
        classes=("0", "1", "2", "3"),
        task=Classification(),
        options=DataOptions(),
        recipes={"": recipe},
    )
    task = pack(Train(flatten(module)), Layout.of(module))
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rows").mkdir()
        x, y = clients_of(1, 200)["c000000"]
        np.savez(Path(folder) / "rows" / "c0.npz", x=x, y=y)
        config = {"name": "c0", "data": f"folder:{folder}/rows", "memory": f"{folder}/memory"}
        for number in range(repeats):
            began = time.process_time()
            header = {"brief": brief.to_json(), "client": "c0", "task": task.header, "round": number + 1}
            answer, _ = perform(config, header, task.arrays)
            seconds.append(time.process_time() - began)
            assert "Trained" in str(answer), answer
    return seconds[0], min(seconds[1:])


def nodes() -> Iterator[str]:
    first, later = apart(node_tasks)
    yield f"| a deployed node's worker: its first small task (it reads its rows) | {first:.3f} s | | |"
    yield f"| every task after that (200 rows, MLP, 1 epoch) | {later:.4f} s | | {later / first:.2f} of the first |"


# ---- trees ------------------------------------------------------------------------------------------------------------


def planted(count: int, groups: int = 10) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    truth = random.permutation(count) % groups
    centres = random.normal(size=(groups, WIDTH)).astype(np.float32)
    centres *= 20 / np.linalg.norm(centres, axis=1, keepdims=True)
    rows = random.standard_normal((count, WIDTH), dtype=np.float32)
    for start in range(0, count, 5000):
        rows[start : start + 5000] += centres[truth[start : start + 5000]]
    return rows, truth


def one_tree(count: int, groups: int, repeats: int) -> tuple[float, float, float, float | None]:
    """Seconds, peak megabytes, and the ARI with the planted groups and with the exact answer, where that can be had."""
    from fedclade.clustering.large import EXACT, agglomerate_rows
    from fedclade.clustering.scores import adjusted_rand

    agglomerate_rows(planted(EXACT + 1)[0][:, :20], threshold="auto")  # imports are not counted
    rows, truth = planted(count, groups)
    best = math.inf
    for _ in range(repeats):
        began = spent()
        found = agglomerate_rows(rows, threshold="auto")
        best = min(best, spent() - began)
    memory = peak()
    exact = None
    if EXACT < count <= 10_000:
        exact = adjusted_rand(agglomerate_rows(rows, threshold="auto", exact=count).labels, found.labels)
    return best, memory, adjusted_rand(truth, found.labels), exact


def trees(sizes: list[int], repeats: int) -> Iterator[str]:
    for groups, name in ((10, "10 groups"), (1, "one cloud")):
        seconds: list[float] = []
        for size in sizes:
            took, memory, truth, exact = apart(one_tree, size, groups, repeats if size <= 10_000 else 1)
            seconds.append(took)
            grows = f"power {power(sizes[: len(seconds)], seconds):.2f}" if len(seconds) > 1 else ""
            agrees = f"ARI {truth:.3f} with the groups" + (
                "" if exact is None else f", {exact:.3f} with the exact answer"
            )
            yield (
                f"| distances, tree and number: {size:,} clients, {name} | {took:.2f} s | {memory:.0f} MB; {agrees} "
                f"| {grows} |"
            )


# ---- the evidence of clade --------------------------------------------------------------------------------------------


def one_evidence(count: int, groups: int = 4) -> tuple[float, float, float]:
    """Seconds, peak megabytes, and the ARI with the planted groups: 4 classes, two sketches of 64 numbers, 16 rows."""
    from fedclade.clustering.many import find_groups_of
    from fedclade.clustering.scores import adjusted_rand

    random = np.random.default_rng(0)
    truth = random.permutation(count) % groups
    shifts = random.normal(size=(groups, 2, 64)) / 2
    told: list[dict[str, np.ndarray]] = []
    for group in truth:
        marks = np.eye(4, dtype=np.float32)[random.integers(4, size=(2, 8))].transpose(0, 2, 1)
        rows = random.normal(size=(2, 2, 8, 64)) + shifts[group][:, None, None]
        sums = (marks @ rows).astype(np.float32)
        told.append({"counts": marks.sum(axis=2), "input": sums[0], "features": sums[1]})
    find_groups_of(told[:50])  # imports are not counted
    began = spent()
    found, _ = find_groups_of(told)
    return spent() - began, peak(), adjusted_rand(truth, found.labels)


def evidence(sizes: list[int]) -> Iterator[str]:
    seconds: list[float] = []
    for size in sizes:
        took, memory, truth = apart(one_evidence, size)
        seconds.append(took)
        grows = f"power {power(sizes[: len(seconds)], seconds):.2f}" if len(seconds) > 1 else ""
        yield (
            f"| clade's evidence: {size:,} clients, 4 groups | {took:.2f} s "
            f"| {memory:.0f} MB; ARI {truth:.3f} with the groups | {grows} |"
        )


# ---- simulations ------------------------------------------------------------------------------------------------------


def our_round(engine: str, count: int, workers: int) -> float:
    """Seconds of the clock of the last of three rounds of FedAvg."""
    import fedclade

    ends: list[float] = []
    settings: dict[str, Any] = {
        "method": "fedavg",
        "model": "mlp",
        "rounds": 3,
        "evaluate_every": 0,
        "training": {"local_epochs": 1},
    }
    settings |= {"keep_local": False, "engine": engine, "workers": workers}
    fedclade.run(clients_of(count), on_round=lambda progress: ends.append(progress.seconds), **settings)
    return min(ends[1] - ends[0], ends[2] - ends[1])


def flower_round(count: int, workers: int) -> float:
    """The same job in Flower's own words: its simulation, its FedAvg, a plain torch loop in each client."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import logging

    import torch
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from fedclade.models import make

    logging.getLogger("flwr").setLevel(logging.ERROR)
    app, server, ends = ClientApp(), ServerApp(), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        # Rows of the same shape; nothing of this file is at hand where Ray runs this.
        torch.manual_seed(int(context.node_config["partition-id"]))
        x = torch.randn(13, 20)
        y = (x[:, 0] > 0) + 2 * (x[:, 1] > 0)
        model = make("mlp", (20,), 4)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        for rows in torch.randperm(len(x)).split(10):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
        return Message(RecordDict(content), reply_to=message)

    class Timed(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            came = list(replies)
            assert not any(reply.has_error() for reply in came)
            ends.append(time.perf_counter())
            return super().aggregate_train(server_round, came)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=count)
        strategy.start(grid, ArrayRecord(make("mlp", (20,), 4).state_dict()), num_rounds=3, train_config=ConfigRecord())

    backend = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": workers, "log_to_driver": False}}
    run_simulation(server, app, count, backend_config=backend)
    return min(b - a for a, b in itertools.pairwise(ends))


def simulations(count: int, workers: int) -> Iterator[str]:
    local = apart(our_round, "local", count, workers)
    ours = apart(our_round, "flower-sim", count, workers)
    theirs = apart(flower_round, count, workers)
    what = f"a round of FedAvg, {count:,} clients, MLP, {workers} processes"
    yield f"| {what}: local engine | {local:.2f} s of the clock | | |"
    yield f"| {what}: flower-sim | {ours:.2f} s | | {ours / local:.1f} times the local engine |"
    yield f"| {what}: Flower's own simulation and FedAvg | {theirs:.2f} s | | {theirs / ours:.0f} times flower-sim |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="100,000 clients too")
    parser.add_argument("--flower", type=int, metavar="CLIENTS", help="the simulations too, with so many clients")
    parser.add_argument("--only", choices=["start", "scale", "evidence", "flower"], help="this table alone")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    large = [100_000] if asked.large else []
    sizes = [1000, 2000, 4000, 10_000, *large]
    tables: dict[str, list[Iterator[str]]] = {
        "start": [starts(), nodes()],
        "scale": [runs([1000, 3000, 10_000, *large]), trees(sizes, asked.repeats)],
        "evidence": [evidence([1000, 10_000, *large])],
    }
    if asked.flower:
        tables["flower"] = [simulations(asked.flower, 2)]
    for name in tables if asked.only is None else [asked.only]:
        lines = ["| what | time | besides | ratio or growth |", HEAD]
        print(*lines, sep="\n", flush=True)
        for line in itertools.chain(*tables[name]):
            print(line, flush=True)
            lines.append(line)
        if asked.out:
            before, _, rest = asked.out.read_text().partition(f"<!-- {name} -->\n")
            _, _, after = rest.partition(f"<!-- end of {name} -->")
            asked.out.write_text("\n".join([f"{before}<!-- {name} -->", *lines, f"<!-- end of {name} -->{after}"]))


if __name__ == "__main__":
    main()
