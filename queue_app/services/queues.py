"""Limit queues; the index learns of it on commit."""

from __future__ import annotations

from queue_app.core.limits import EVERYTHING, Scope, gate_of
from queue_app.exceptions import UnknownQueue
from queue_app.models import Limit, PriorityPolicy, Queue
from queue_app.rows import audit
from queue_app.rows.database import alias
from queue_app.services.hints import on_commit
from queue_app.services.pause import pause, resume

__all__ = [
    "copy_global_limits",
    "copy_limit",
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


def copy_queue_limits(name: str) -> None:
    """Carry the limits of a queue to the index on commit, as they are then, whoever changed them."""
    _copy(Scope.QUEUE, name)


def copy_limit(limit: Limit) -> None:
    """Carry the limits of a task type or key to the index on commit, as they are then."""
    _copy(Scope(limit.scope), limit.name)


def _copy(scope: Scope, name: str) -> None:
    on_commit(lambda index: index.copy_limits(gate_of(scope, name), audit.limits_of(scope, name)), "set_limits")


def copy_global_limits() -> None:
    """Carry the limits over everything to the index on commit, as they are then."""
    on_commit(lambda index: index.copy_limits(EVERYTHING, audit.global_limits()), "set_limits")


def copy_thresholds() -> None:
    """Carry the thresholds of promotion to the index on commit, as they are then."""
    on_commit(lambda index: index.set_thresholds(PriorityPolicy.thresholds(alias())), "set_thresholds")
