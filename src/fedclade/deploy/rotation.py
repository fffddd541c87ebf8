"""A client of a run gets a new key."""

from pathlib import Path

from fedclade.deploy.keys import binding_of
from fedclade.errors import FedcladeError, listed
from fedclade.files import safe_name
from fedclade.runs.folder import RunFolder


def rotate(run: Path, name: str, key: Path | None = None) -> str:
    """Let a client's name belong to another key, or to the next that comes with it; returns what was done."""
    from fedclade.deploy.local import home_of

    folder = RunFolder.open(run)
    with folder:
        record = folder.settings
        bound = record.get("nodes")
        if bound is None:
            raise FedcladeError(f"the run in {run} was not on Flower nodes: it knows no keys")
        if name not in bound:
            raise FedcladeError(f"the run in {run} knows no key of {name!r}: it knows those of {listed(sorted(bound))}")
        others = {client: owner for client, owner in bound.items() if client != name}
        folder.update_settings({**record, "nodes": others | ({name: binding_of(key)} if key else {})})
    old = home_of(run) / "keys" / safe_name(name)  # of a run on this machine: the next start makes a new one
    for path in (old, old.with_name(f"{old.name}.pub")):
        path.unlink(missing_ok=True)
    owner = f"the key in {key}" if key else "the next key that is registered under it and comes"
    return f"{name!r} belongs to {owner}"
