"""A priority task queue for Django: PostgreSQL rows remember, a Redis index decides who runs next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue_app.tasks import QueueTask as QueueTask
    from queue_app.tasks import task as task

__all__ = ["QueueTask", "task"]


def __getattr__(name: str) -> Any:
    """Import what is exported when it is asked for: Django imports this package before it is set up."""
    if name in __all__:
        from queue_app import tasks  # noqa: PLC0415

        return getattr(tasks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
