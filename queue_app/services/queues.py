"""Limit queues; the index learns of it on commit."""

from __future__ import annotations

from queue_app.exceptions import UnknownQueue
from queue_app.models import PriorityPolicy, Queue, RuntimeSettings
from queue_app.rows.database import alias
from queue_app.services.hints import on_commit
from queue_app.services.pause import pause, resume

__all__ = [
    "copy_global_limits",
    "copy_queue_limits",
    "copy_thresholds",
    "pause",
    "resume",
    "set_queue_limits",
]


def set_queue_limits(name: str, *, max_concurrent: int | None) -> Queue:
    """Set how many tasks of the queue may run at once; ``None`` lifts the limit. Raises ``UnknownQueue``."""
    queue = _get(name)
    queue.max_concurrent = max_concurrent
    queue.full_clean(validate_unique=False)
    queue.save(update_fields=["max_concurrent", "updated_at"])
    return queue


def _get(name: str) -> Queue:
    try:
        return Queue.objects.get(pk=name)
    except Queue.DoesNotExist:
        raise UnknownQueue(name, Queue.objects.values_list("name", flat=True)[:1000]) from None


def copy_queue_limits(queue: Queue) -> None:
    """Carry the limits of a saved queue to the index on commit, whoever saved it."""
    name, cap, paused = queue.name, queue.max_concurrent, queue.paused
    on_commit(lambda index: index.set_limits(name, max_concurrent=cap, paused=paused), "set_limits")


def copy_global_limits(settings: RuntimeSettings) -> None:
    """Carry the saved limits over all queues to the index on commit."""
    cap = settings.max_concurrent
    on_commit(lambda index: index.set_limits("", max_concurrent=cap), "set_limits")


def copy_thresholds() -> None:
    """Carry the thresholds of promotion to the index on commit, as they are then."""
    on_commit(lambda index: index.set_thresholds(PriorityPolicy.thresholds(alias())), "set_thresholds")
