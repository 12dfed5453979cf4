"""The errors that Python code gets."""

from parts.markdown import code, summary_of, table
from queue_app import exceptions

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
