"""Real federations on Flower: what the server and a node do (`server`, `node`), and a place to try it out (`local`)."""

from fedclade.errors import FedcladeError


def needs_flower(what: str) -> None:
    """Raise one line on what to install unless Flower is there."""
    import importlib.util

    if importlib.util.find_spec("flwr") is None:
        raise FedcladeError(f"{what} needs Flower: pip install 'fedclade[flower]'")
