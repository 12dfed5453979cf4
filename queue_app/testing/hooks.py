"""Hooks in memory: the same calls as in a worker."""

import uuid
from datetime import UTC, datetime

from queue_app import registry
from queue_app.core.priorities import band_from_django
from queue_app.core.records import ClaimedTask, TaskRow, TaskSpec
from queue_app.hooks import before_enqueue
from queue_app.registry import AnyTask
from queue_app.testing.stored import StoredCall

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def metadata_of(task: AnyTask, args: str, kwargs: str) -> str | None:
    """Return the metadata that hooks add to a new call; let their exceptions through."""
    user = getattr(task, "user", "")
    spec = TaskSpec(task_type=registry.type_of(task), queue=task.queue_name, priority=0, user=user, lane="")
    return before_enqueue(TaskRow(uuid.uuid4(), spec, args, kwargs)).metadata


def claimed(call: StoredCall) -> ClaimedTask:
    """Return a task in memory as hooks see it."""
    return ClaimedTask(
        id=uuid.UUID(call.id),
        attempt=call.failures + 1,
        task_type=registry.type_of(call.task),
        queue=call.task.queue_name,
        priority=int(band_from_django(call.task.priority)),
        user=call.option("user", ""),
        created_at=call.created_at,
        queued_at=call.queued_at or call.created_at,
        started_at=call.started_at or _EPOCH,
        timeout=0.0,
        max_retries=0,
        failures=call.failures,
        args=call.args,
        parameters=call.kwargs,
        metadata=call.metadata,
    )
