"""The cyclical learning rate, by hand and against a loop of plain steps."""

import numpy as np
import pytest
from parabola import trained

from fedclade.clients.tasks import Training
from fedclade.clients.training import Job, cyclic_rate


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 1e-5), (5, 5.05e-4), (10, 1e-3), (20, 1e-5), (30, 5.05e-4), (50, 2.575e-4)]
)
def test_each_cycle_is_half_as_high_as_the_one_before(step: int, rate: float) -> None:
    assert cyclic_rate(np.array(step), 10, 1e-5, 1e-3) == pytest.approx(rate)


def test_training_follows_the_rate_of_each_client() -> None:
    """Half a cycle is two epochs of a client's own steps, whoever trains beside it."""
    training = Training(local_epochs=4, batch_size=1, learning_rate=0.5, momentum=0.0, schedule="cyclic", base_rate=0.1)
    jobs = [Job(np.zeros(1, np.float32), np.zeros((4 * steps, 1), np.int64)) for steps in (1, 3)]
    for steps, found in zip((1, 3), trained(jobs, training), strict=True):
        left = np.prod(1 - cyclic_rate(np.arange(4 * steps), 2 * steps, 0.1, 0.5))
        assert found == pytest.approx(1 - left, rel=1e-5)


def test_a_schedule_can_go_on_where_another_task_left_it() -> None:
    training = Training(local_epochs=2, batch_size=1, learning_rate=0.5, momentum=0.0, schedule="cyclic", step_size=3)
    batches = np.zeros((4, 1), np.int64)
    first = trained([Job(np.zeros(1, np.float32), batches)], training)
    second = trained([Job(first, batches, steps_before=4)], training)
    whole = trained([Job(np.zeros(1, np.float32), np.zeros((8, 1), np.int64))], training)
    assert np.array_equal(second, whole)
