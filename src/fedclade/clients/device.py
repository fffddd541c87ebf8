"""Where clients' networks run: rows are put there once, and everything else is made where the rows are."""

from contextlib import AbstractContextManager, nullcontext

import torch

from fedclade.errors import FedcladeError

DEVICES = ("cpu", "auto", "cuda", "mps")


def device_of(name: str) -> torch.device:
    """`auto` takes a GPU where torch sees one; one that was named must be there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next((gpu for gpu in ("cuda", "mps") if there[gpu]), "cpu"))
    if not there.get(name, False):
        raise FedcladeError(f"device {name!r} is not there: torch sees {[known for known in there if there[known]]}")
    return torch.device(name)


def here(device: torch.device) -> AbstractContextManager:
    """Inside, what is made without naming a device is made on this one."""
    return nullcontext() if device.type == "cpu" else device


def seed_torch(seed: int, device: torch.device) -> None:
    """Begin torch's random numbers anew on one device; `torch.manual_seed` also keeps a traceback for every other."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        getattr(torch, device.type).manual_seed(seed)
