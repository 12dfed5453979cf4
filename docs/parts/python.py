"""The entries of public Python names."""

import inspect
from collections.abc import Iterable
from importlib import import_module

from asgiref.sync import SyncToAsync

from parts.markdown import code, summary_of, table
from queue_app import exceptions
from queue_app.workers.context import QueueTaskContext

#: What a task raises, or sees.
TASK_EXCEPTIONS = (
    "Discard", "Retry", "Snooze", "Throttle", "TaskTimeout", "TaskCancelled", "AttemptLost", "SignalTimeout",
    "WorkerDied",
)  # fmt: skip


#: What only workers get.
OF_WORKERS = (
    "AttemptOver", "IndexDamaged", "IndexOfAnotherDatabase", "OutOfScope", "StaleLease", "TokenRefused",
    "UnknownProfile", "WorkerLost", "WorkerNameTaken", "WorkerNotFound",
)  # fmt: skip


def errors() -> str:
    """Return the table of the errors that a project's code may get from the queue."""
    base = exceptions.TaskQueueError
    rows = [
        (code(name), ", ".join(code(each.__name__) for each in kind.__bases__ if each is not base), summary_of(kind))
        for name, kind in vars(exceptions).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base and name not in OF_WORKERS
    ]
    return table(("error", "is also a", "says"), rows)


def members(module: str, names: Iterable[str] | None = None) -> str:
    """Return an entry for each public name of a module: how it is called, and what it does."""
    found = import_module(module)
    values = {name: getattr(found, name) for name in sorted(names or found.__all__, key=str.lower)}
    return "\n\n".join(_entry(name, value) for name, value in values.items() if not isinstance(value, SyncToAsync))


def context_members() -> str:
    """Return an entry for each public member of a task's context."""
    found = {name: value for name, value in vars(QueueTaskContext).items() if not name.startswith("_")}
    return "\n\n".join(_entry(f"context.{name}", value) for name, value in found.items() if inspect.getdoc(value))


def _entry(name: str, value: object) -> str:
    text = (inspect.getdoc(value) or "").replace("``", "`")
    if isinstance(value, property):
        return f"{code(name)}\n: {_first(text)}"
    return f"{code(name + _signature(value))}\n: {_first(text)}"


def _signature(value: object) -> str:
    """Return the parameters without their types: those stand in the code, where tools read them."""
    try:
        found = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    parameters = [
        each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values() if each.name != "self"
    ]
    return str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _first(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())
