"""Keep what attempts say while they run: progress, log lines, a later deadline.

Nothing of it decides about a task but the deadline, and that one only lets an attempt that
already holds the task hold it for longer. Crash points: what was not stored is lost, and
said again, or not.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from queue_app.core.records import AttemptNote
from queue_app.models import TaskLog, TaskProgress
from queue_app.rows import running as rows


def note(notes: Sequence[AttemptNote]) -> None:
    """Store notes; one of an attempt that lost its task changes nothing."""
    extended = [item for item in notes if item.extend]
    if extended:  # first: it is what somebody else acts on
        rows.extend(extended)
    moved = [item for item in notes if item.progress is not None]
    if moved:
        rows.store_progress(moved)
    logged = [item for item in notes if item.lines is not None]
    if logged:
        rows.store_lines(logged)


def progress_of(task_id: uuid.UUID) -> TaskProgress | None:
    """Return how far the task is, as far as it has said."""
    return TaskProgress.objects.filter(task_id=task_id).first()


def logs_of(task_id: uuid.UUID) -> list[TaskLog]:
    """Return what the task's attempts logged, the first attempt first."""
    return list(TaskLog.objects.filter(task_id=task_id).order_by("attempt"))
