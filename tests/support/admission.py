"""Limits of queues, and submissions that may be refused."""

from collections.abc import Callable
from typing import Any

from queue_app.exceptions import QueueFull, UserLimitExceeded
from queue_app.models import Queue
from queue_app.services.enqueue.store import enqueue
from tests.support.engine import new


def limit(name: str = "default", **numbers: Any) -> None:
    """Set limits of a queue."""
    Queue.objects.update_or_create(name=name, defaults=numbers)


def from_outside(**options: Any) -> Any:
    """Submit a task as the API does."""
    return enqueue(new(**options), outside=True)


def outcome_of(action: Callable[[], Any]) -> str:
    """Return "stored", or the code of the refusal."""
    try:
        action()
    except (QueueFull, UserLimitExceeded) as error:
        return error.code
    return "stored"
