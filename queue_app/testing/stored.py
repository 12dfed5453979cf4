"""A task in memory: the contents of a row, and whether its transaction was rolled back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connections, transaction
from django.tasks.base import TaskError
from django.utils.json import normalize_json

from queue_app import codecs, conf
from queue_app.backend.results import Progress
from queue_app.core.payload import dump_json
from queue_app.core.priorities import Band, band_from_django
from queue_app.core.states import Status
from queue_app.core.steps import Fields, Step
from queue_app.exceptions import UnserializableParameters
from queue_app.registry import AnyTask


@dataclass(slots=True, kw_only=True)
class StoredCall:
    """One task in memory, with its outcome."""

    task: AnyTask
    args: str  # JSON text, as in a row
    kwargs: str
    id: str
    sequence: int
    created_at: datetime
    status: Status
    queued_at: datetime | None
    run_after: datetime | None
    exists: Callable[[], bool]
    failures: int = 0
    errors: list[TaskError] = field(default_factory=list)
    worker_ids: list[str] = field(default_factory=list)
    first_started_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    value: str | None = None
    unique_key: str | None = None
    steps: dict[str, Step] = field(default_factory=dict)  # by name, in order
    signals: list[tuple[str, str | None]] = field(default_factory=list)  # (name, payload as JSON) that no step took
    schema: Fields | None = None  # of the signal that it waits for
    metadata: str | None = None
    progress: Progress | None = None
    workflow: Any = None  # a ``MemoryWorkflow``
    ended_as: int = 0  # its place among the tasks that ended
    is_cancelled: bool = False  # on request
    is_discarded: bool = False  # a dead letter that was closed
    extended: float = 0.0  # seconds that the running attempt asked for

    @property
    def band(self) -> Band:
        return band_from_django(self.task.priority)

    def option(self, name: str, default: Any = None) -> Any:
        """Return an option of the task; a plain Django task has only Django's options."""
        return getattr(self.task, name, default)


def as_json(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, str]:
    """Return the parameters as the JSON texts of a row; raise the real backend's errors."""
    limits = conf.get().payload
    if codecs.are_on():
        args, kwargs = codecs.encode_call(args, kwargs)
    texts = []
    for name, value in (("args", list(args)), ("parameters", kwargs)):
        try:
            texts.append(dump_json(value, field=name, limits=limits))
        except UnserializableParameters as refused:
            try:
                plain = normalize_json(value)
            except (TypeError, ValueError, RecursionError):
                raise refused from None
            texts.append(dump_json(plain, field=name, limits=limits))
    return texts[0], texts[1]


def existence() -> Callable[[], bool]:
    """Return a function that returns false once the current transaction or savepoint was rolled back.

    Django removes the hooks of a rolled-back transaction or savepoint from its list. So a hook that has not run and is
    not on the list was rolled back. In a test case that never commits, the hook stays on the list until the end of the
    test.
    """
    connection = connections[conf.get().database_alias]
    if not connection.in_atomic_block:
        return lambda: True
    committed: list[bool] = []

    def hook() -> None:
        committed.append(True)

    transaction.on_commit(hook, using=connection.alias)
    return lambda: bool(committed) or any(entry[1] is hook for entry in connection.run_on_commit)
