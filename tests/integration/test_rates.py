"""A rate over a worker process, by the times in the rows."""

import pytest

from queue_app.models import Queue, Task
from queue_app.registry import type_of
from tests.integration.app import tasks
from tests.support.engine import put

pytestmark = pytest.mark.integration

TASKS = 9
EACH = 0.2
#: By so much the clocks of the two servers may be read apart.
CLOCKS = 0.001


def test_no_more_start_than_a_rate_says_and_a_burst_stays_for_all(fleet, log):
    """Five a second, one at a time: the k-th start after one comes at least k - 1 intervals later.

    That holds for one worker whatever the machine does: a row may be late by any time, but then the next claim
    comes after it. A claim that forgot the rate would start them all at once.
    """
    queue, _ = Queue.objects.get_or_create(name="default")
    queue.rate_count, queue.rate_seconds, queue.rate_burst = 5, 5 * EACH, 1
    queue.save()
    for number in range(TASKS):
        put(type_of(tasks.note), args=[log, f"+{number}"])
    assert fleet.worker("--burst", "--concurrency", "4").exit_code() == 0
    done = Task.objects.filter(status="completed")
    starts = sorted(at.timestamp() for at in done.values_list("started_at", flat=True))
    assert len(starts) == TASKS
    too_early = [
        (first, last)
        for first in range(TASKS)
        for last in range(first + 2, TASKS)
        if starts[last] - starts[first] < (last - first - 1) * EACH - CLOCKS
    ]
    assert too_early == []
