"""Store what a task has done, so that its later attempts need not do it again.

Crash points: before the commit of a step, the next attempt runs the step again; what the step itself wrote is rolled
back with ``atomic_step``, and stays without. After the commit, the next attempt reads the stored result.
"""

import json
from collections.abc import Callable

from queue_app.core.records import ClaimedTask
from queue_app.core.redaction import is_sealed
from queue_app.core.signals import Fields, listed
from queue_app.core.steps import Step
from queue_app.encryption import SHARED, opened_if, sealed_if
from queue_app.exceptions import AttemptLost, StepRefused
from queue_app.services.advance import share
from queue_app.sql import signals
from queue_app.sql import steps as rows
from queue_app.sql.database import atomic, is_in_transaction


def stored_steps(task: ClaimedTask) -> list[Step]:
    """Return the steps that attempts of the task have stored, in order."""
    return [_opened(step) for step in rows.load(task.id)]


def record_step(task: ClaimedTask, step: Step) -> None:
    """Store a step durably; raise ``AttemptLost`` if the attempt no longer holds the task.

    Raises ``StepRefused`` inside a transaction, with which the step would be rolled back.
    """
    check_no_transaction(step.name)
    _record(task, step)


def atomic_step(task: ClaimedTask, run: Callable[[], Step]) -> Step:
    """Run a step and store it in one transaction; raise ``AttemptLost``, and roll back, as ``record_step`` does."""
    with atomic():
        step = run()
        _record(task, step)
    return step


def await_signal(task: ClaimedTask, step: Step, schema: Fields | None) -> Step:
    """Take the oldest signal for a step, or store that it waits, or that its time is over; return the step as stored.

    Raises ``AttemptLost`` and ``StepRefused`` as ``record_step`` does.
    """
    check_no_transaction(step.name)
    with atomic():
        share([task.workflow_id])
        found = signals.take(task, step, None if schema is None else json.dumps(listed(schema)))
    if found is None:  # it was stored before, and the answer was lost
        found = next((one for one in rows.load(task.id) if one.name == step.name and one.is_done), None)
    if found is None:
        raise _lost(step.name)
    return _opened(found)


def check_no_transaction(name: str) -> None:
    """Raise ``StepRefused`` inside a transaction."""
    if is_in_transaction():
        raise StepRefused(
            f"The step {name!r} was called inside a transaction. If that is rolled back, the task forgets the step, but"
            " what the step did elsewhere stays. Call the step outside; with atomic=True it opens a transaction itself."
        )


def _record(task: ClaimedTask, step: Step) -> None:
    if not rows.record(task, step._replace(value=sealed_if(step.value, task.task_type, SHARED))):
        raise _lost(step.name)


def _opened(step: Step) -> Step:
    return step._replace(value=opened_if(step.value, SHARED)) if is_sealed(step.value) else step


def _lost(name: str) -> AttemptLost:
    return AttemptLost(f"The attempt no longer holds the task, so the step {name!r} was not stored.")
