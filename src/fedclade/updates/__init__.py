"""What an update goes through on its way: before it leaves a client, and after it has arrived at the server.

A step is one small file and a line here. Steps are a setting of the run, done in the order given on the client and in
the reverse order at the server.
"""

from fedclade.updates.clip import Clip
from fedclade.updates.step import UpdateStep

UPDATE_STEPS: dict[str, type[UpdateStep]] = {"clip": Clip}

__all__ = ["UPDATE_STEPS", "Clip", "UpdateStep"]
