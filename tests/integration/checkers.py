"""What must hold over a whole history: each returns what is wrong, so that a test can see it fail too."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence

from queue_app.core.states import TERMINAL, Status
from queue_app.models import Task
from tests.support.history import History


def over_cap(history: History, cap: int, *, of: set[uuid.UUID] | None = None) -> list[str]:
    """Return every event at which more than ``cap`` rows (of these) were executing, replaying all of them."""
    executing: set[uuid.UUID] = set()
    wrong = []
    for event in history.events():
        if of is not None and event.task_id not in of:
            continue
        if event.after == Status.EXECUTING:
            executing.add(event.task_id)
        else:
            executing.discard(event.task_id)
        if len(executing) > cap:
            wrong.append(f"event {event.seq}: {len(executing)} executing")
    return wrong


def out_of_order(history: History, order: Sequence[uuid.UUID], cap: int) -> list[str]:
    """Return every start before which too many earlier tasks had not started.

    The index proposes strictly in order. But rows of different claims may be written in
    another order, so earlier tasks may be on their way: those that hold a lease, which are
    fewer than the cap.
    """
    place = {task_id: position for position, task_id in enumerate(order)}
    waiting = sorted(place.values())
    started: set[int] = set()
    first = 0  # every place below has started
    wrong = []
    for task_id in history.starts():
        position = place[task_id]
        if position in started:
            continue
        started.add(position)
        while first in started:
            first += 1
        skipped = sum(1 for earlier in waiting[first:position] if earlier not in started)
        if skipped >= cap:
            wrong.append(f"task {position} started before {skipped} earlier ones")
    return wrong


def lost_or_doubled(history: History, ids: Sequence[uuid.UUID], wanted: Status = Status.COMPLETED) -> list[str]:
    """Return the tasks that have not ended as wanted, or more than once."""
    ends = Counter(event.task_id for event in history.events() if event.after in TERMINAL)
    states = dict(Task.objects.values_list("id", "status"))
    wrong = [f"{task_id} is {states.get(task_id)}" for task_id in ids if states.get(task_id) != wanted]
    wrong += [f"{task_id} ended {ends[task_id]} times" for task_id in ids if ends[task_id] != 1]
    return wrong


def repeated(entries: Sequence[str]) -> list[str]:
    """Return the lines that occur more than once."""
    return [f"{line}: {count} times" for line, count in Counter(entries).items() if count > 1]
