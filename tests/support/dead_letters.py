"""Helpers for tests of dead letters."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from queue_app.models import DeadLetter, Task
from queue_app.services.lifecycle.finish import finish
from queue_app.services.operations import run as running
from queue_app.services.operations.run import run_operations
from queue_app.services.upkeep.promote import make_due
from tests.support.engine import done, failed, put, take
from tests.support.scene import Hand


def make_dead_letter(hand: Hand, message: str = "no", **options: Any) -> DeadLetter:
    """Enqueue a task that dies at its first attempt; return its dead letter."""
    task_id = put(**{"max_retries": 0} | options)
    kill(hand, task_id, message)
    return letter_of(task_id)


def make_dead_letters(hand: Hand, count: int, **options: Any) -> list[DeadLetter]:
    """Make several dead letters, in this order."""
    return [make_dead_letter(hand, **options) for _ in range(count)]


def kill(hand: Hand, task_id: uuid.UUID, message: str = "no") -> None:
    """Claim the task that waits, which must be this one, and let it fail; its retries come due until there are none."""
    while True:
        [task] = take(hand)
        assert task.id == task_id
        finish([failed(task, message)])
        if Task.objects.get(pk=task_id).status == "dead_letter":
            return
        Task.objects.filter(pk=task_id).update(run_after="2026-01-01T00:00Z")
        make_due()


def letter_of(task_id: uuid.UUID) -> DeadLetter:
    """Return the dead letter by which a task is dead now."""
    return DeadLetter.objects.get(task_id=task_id, replayed_at=None)


def end_next(hand: Hand, count: int, *, well: bool) -> None:
    """Claim ``count`` tasks, and let all of them complete or fail."""
    tasks = take(hand, count)
    assert len(tasks) == count
    finish([done(task) if well else failed(task) for task in tasks])


def pass_time(operation: Any, seconds: float) -> None:
    """Move the pace of an operation ``seconds`` into the past."""
    type(operation).objects.filter(pk=operation.pk).update(paced_at=running.clock() - timedelta(seconds=seconds))


def step(operation: Any) -> Any:
    """Run the operations once and return the operation as it then is."""
    run_operations()
    operation.refresh_from_db()
    return operation
