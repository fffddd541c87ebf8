"""A worker process: it loads the client runtime once, then does pieces of work until its connection closes."""

import contextlib
import ctypes
import os
import shutil
import signal
import sys
from multiprocessing.connection import Client
from pathlib import Path

PR_SET_PDEATHSIG = 1  # Linux: the signal that a process gets when its parent ends


def main(address: str, folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which then closes the connection
    end_with_parent(Path(folder))
    import torch

    import fedclade.engines.pool  # noqa: F401  (what travels is registered there)
    from fedclade.clients.runtime import load_runtime
    from fedclade.codec import Packet, decode, encode

    torch.set_num_threads(1)
    runtime = load_runtime(Path(folder))
    runtime.built  # noqa: B018  (a model that cannot be made must fail here, before the run starts)
    with Client(address, authkey=bytes.fromhex(os.environ.pop("FEDCLADE_WORKER_KEY"))) as connection:
        connection.send(os.getpid())
        while True:
            try:
                work, round = decode(Packet.from_bytes(connection.recv_bytes()))
            except (EOFError, OSError):
                break
            result = work.do(runtime, round)
            with contextlib.suppress(OSError):  # the main process is gone: the next recv will say so
                connection.send_bytes(encode(result).to_bytes())
    clear(Path(folder))


def end_with_parent(folder: Path) -> None:
    """Stop at once when the main process is killed: a resumed run must not meet a worker of the old one."""

    def end(number: int, frame: object) -> None:
        clear(folder)
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    end_when_parent_does()


def end_when_parent_does() -> None:
    """Have the system send this process a SIGTERM when its parent ends, even by SIGKILL (on Linux)."""
    set_option = getattr(ctypes.CDLL(None), "prctl", None) if os.name == "posix" else None
    if set_option is not None:
        set_option(PR_SET_PDEATHSIG, signal.SIGTERM)


def clear(folder: Path) -> None:
    """Take the shared files away: a main process that was killed could not."""
    rows = folder / "x.npy"
    if rows.is_symlink():
        shutil.rmtree(rows.resolve().parent, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
