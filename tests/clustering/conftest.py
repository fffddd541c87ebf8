"""Property tests here have no deadline: a busy machine is not a failure."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
