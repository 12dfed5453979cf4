"""Staff edit limits while tasks run, and the index is lost in between: what a limit says holds all the same."""

from __future__ import annotations

from datetime import datetime

from queue_app.core.limits import ORDERS
from queue_app.core.states import Status
from queue_app.models import Limit, Queue, Task
from queue_app.registry import type_of
from tests.integration.app import tasks
from tests.integration.faults.run import CAPS, Run
from tests.integration.faults.starts import disturbed

#: Tasks of the queue ``other`` that may start in a second; three slots alone would start a hundred.
RATE = 40
BURST = 2
#: What was leased early may start late, so in some window so many more start: all slots, and what is claimed ahead.
IN_HAND = 20


def edit_limits(run: Run) -> None:
    """Edit caps, pauses, order and limits of users at random moments, and flush; a rate must hold throughout."""
    other = Queue.objects.get(pk="other")
    other.rate_count, other.rate_seconds, other.rate_burst = RATE, 1.0, BURST
    other.save()
    for number in disturbed(run, 9, "an edit of limits"):
        _edit(run, number)
        if number % 3 == 2:
            run.arena.flush()
    run.reach(1)
    wrong = over_rate(starts("other"), RATE, BURST + IN_HAND)
    run.broken += wrong


def _edit(run: Run, number: int) -> None:
    queue = Queue.objects.get(pk="default")
    queue.max_concurrent = run.chance.randint(1, CAPS["default"])
    if number % 3 == 1:  # tasks get other lanes or places, and the index is built anew
        queue.max_concurrent_per_user = run.chance.choice([None, 1])
        queue.order = run.chance.choice(ORDERS)
    queue.save()
    limit, _ = Limit.objects.get_or_create(scope="type", name=type_of(tasks.job))
    limit.max_concurrent = run.chance.choice([None, 2, 5])
    limit.min_delay_seconds = run.chance.choice([None, 0.01])
    limit.save()


def starts(queue: str) -> list[datetime]:
    """Return when the tasks of a queue have started, in order."""
    found = Task.objects.filter(queue=queue, status=Status.COMPLETED).order_by("started_at")
    return list(found.values_list("started_at", flat=True))


def over_rate(starts: list[datetime], rate: float, more: int) -> list[str]:
    """Return the windows in which more than ``rate`` tasks a second, and ``more`` beside, have started."""
    wrong: list[str] = []
    lowest, at = float("inf"), 0.0
    for number, instant in enumerate(starts):
        # Of k starts from i to j, k <= more + rate * (t_j - t_i): compare each with the lowest before it.
        level = number - rate * instant.timestamp()
        if level < lowest:
            lowest, at = level, instant.timestamp()
        if level - lowest + 1 > more:
            wrong.append(f"{instant.timestamp() - at:.2f} s before {instant} until then: {level - lowest:.0f} too many")
    return wrong
