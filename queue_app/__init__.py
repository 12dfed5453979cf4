"""A priority task queue for Django: PostgreSQL stores the tasks, a Redis index decides which task runs next."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue_app.core.unique import Unique as Unique
    from queue_app.schedules import schedule as schedule
    from queue_app.tasks import QueueTask as QueueTask, signal as signal, task as task
    from queue_app.workflows import Workflow as Workflow, chain as chain, group as group
    from queue_app.workflows.builder import WorkflowHandle

__all__ = ["QueueTask", "Unique", "Workflow", "WorkflowHandle", "chain", "group", "schedule", "signal", "task"]
_MODULES = {
    "Unique": "core.unique",
    "WorkflowHandle": "workflows.builder",
    "schedule": "schedules",
    **dict.fromkeys(("Workflow", "chain", "group"), "workflows"),
}


def __getattr__(name: str) -> Any:
    """Import exports on first use: Django imports this package before its apps are ready."""
    if name in __all__:
        return getattr(import_module(f"queue_app.{_MODULES.get(name, 'tasks')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
