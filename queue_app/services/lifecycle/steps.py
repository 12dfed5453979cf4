"""Store what a task has done, so that its later attempts need not do it again.

Crash points: before the commit of a step, the next attempt runs the step again; what the step itself wrote is rolled
back with ``atomic_step``, and stays without. After the commit, the next attempt reads the stored result.
"""

import uuid
from collections.abc import Callable

from queue_app.core.records import ClaimedTask
from queue_app.core.steps import Step
from queue_app.exceptions import AttemptLost, StepRefused
from queue_app.sql import steps as rows
from queue_app.sql.database import atomic, is_in_transaction


def stored_steps(task_id: uuid.UUID) -> list[Step]:
    """Return the steps that attempts of the task have stored, in order."""
    return rows.load(task_id)


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


def check_no_transaction(name: str) -> None:
    """Raise ``StepRefused`` inside a transaction."""
    if is_in_transaction():
        raise StepRefused(
            f"The step {name!r} was called inside a transaction. If that is rolled back, the task forgets the step, but"
            " what the step did elsewhere stays. Call the step outside; with atomic=True it opens a transaction itself."
        )


def _record(task: ClaimedTask, step: Step) -> None:
    if not rows.record(task, step):
        raise AttemptLost(f"The attempt no longer holds the task, so the step {step.name!r} was not stored.")
