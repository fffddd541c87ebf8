"""A worker process: it loads the workbench once, then does pieces of work until its connection closes."""

import contextlib
import os
import shutil
import signal
import sys
from multiprocessing.connection import Client
from pathlib import Path


def main(address: str, folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which then closes the connection
    import torch

    from fedclade.clients.work import load_workbench

    torch.set_num_threads(1)
    bench = load_workbench(Path(folder))
    bench.built  # noqa: B018  (a model that cannot be made must fail here, before the run starts)
    with Client(address, authkey=bytes.fromhex(os.environ.pop("FEDCLADE_WORKER_KEY"))) as connection:
        connection.send(os.getpid())
        while True:
            try:
                work, round = connection.recv()
            except (EOFError, OSError):
                break
            result = work.do(bench, round)
            with contextlib.suppress(OSError):  # the main process is gone: the next recv will say so
                connection.send(result)
    # The main process has ended, or was killed and could not clear the shared files away.
    rows = Path(folder, "x.npy")
    if rows.is_symlink():
        shutil.rmtree(rows.resolve().parent, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
