"""The errors that Python code gets."""

from parts.markdown import code, summary_of, table
from queue_app import exceptions

#: What only workers get.
OF_WORKERS = (
    "AttemptOver", "IndexDamaged", "IndexOfAnotherDatabase", "OutOfScope", "StaleLease", "TokenRefused",
    "UnknownProfile", "WorkerLost", "WorkerNameTaken", "WorkerNotFound",
)  # fmt: skip


def listed() -> list[type[exceptions.TaskQueueError]]:
    """Return the errors that a project's code may get from the queue."""
    base = exceptions.TaskQueueError
    kinds = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, base)]
    return [kind for kind in kinds if kind is not base and kind.__name__ not in OF_WORKERS]


def errors() -> str:
    """Return the table of these errors."""
    rows = []
    for kind in listed():
        bases = [code(each.__name__) for each in kind.__bases__ if each is not exceptions.TaskQueueError]
        rows.append((code(kind.__name__), ", ".join(bases), summary_of(kind)))
    return table(("error", "is also a", "says"), rows)
