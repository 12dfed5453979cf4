"""Progress, log lines and extensions of running attempts, collected until the worker's loop stores them."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Set as AbstractSet
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from queue_app import conf
from queue_app.core import trace
from queue_app.core.payload import storable_text
from queue_app.core.records import AttemptKey, ProgressReport
from queue_app.encryption import hides
from queue_app.workers.context import ClaimedAttempt, ProgressSink

#: Minimum time between two stored reports. An extension is stored at once.
PAUSE_SECONDS = 0.5
LINE_LENGTH = 2_000  # characters


@dataclass(slots=True)
class _Pending:
    """What one attempt reported since the last store, and the log lines since its start."""

    held: ClaimedAttempt
    progress: float | None = None
    message: str = ""
    extend: float = 0.0
    lines: deque[str] = field(default_factory=deque)
    size: int = 0  # characters of the lines
    dropped: int = 0
    has_new_lines: bool = False
    stack: str | None = None

    def take(self) -> ProgressReport:
        """Return the report to store, and start the next one."""
        task = self.held.task
        lines = "\n".join(self.lines) if self.has_new_lines else None
        report = ProgressReport(
            task.id, task.attempt, task.worker_id, self.progress, self.message, lines, self.dropped, self.extend,
            task.leased_at, self.stack,
        )  # fmt: skip
        self.progress, self.extend, self.has_new_lines, self.stack = None, 0.0, False, None
        return report


class ProgressReports(ProgressSink):
    """Receives reports from the slots' threads; calls ``on_report`` when the loop has something to store."""

    def __init__(self, on_report: Callable[[], None]) -> None:
        self._on_report = on_report
        self._lock = threading.Lock()
        self._pending: dict[AttemptKey, _Pending] = {}
        self._changed: set[AttemptKey] = set()  # attempts with something to store
        self._is_urgent = False
        self._next_at = 0.0  # monotonic
        limits = conf.get().task_logs
        self._max_lines, self._max_size = limits.max_lines, limits.max_characters

    def progress(self, held: ClaimedAttempt, fraction: float, message: str) -> None:
        with self._lock:
            pending = self._of(held)
            pending.progress, pending.message = fraction, storable_text(message)
        self._mark_changed(held)

    def extend(self, held: ClaimedAttempt, seconds: float) -> None:
        """Record that the attempt needs more time; the next turn of the loop stores it."""
        with self._lock:
            self._of(held).extend += seconds
            self._is_urgent = True
        self._mark_changed(held, urgent=True)

    def stack(self, held: ClaimedAttempt, text: str) -> None:
        """Record where the attempt is now; the next turn of the loop stores it."""
        with self._lock:
            self._of(held).stack = text
            self._is_urgent = True
        self._mark_changed(held, urgent=True)

    def log(self, held: ClaimedAttempt, line: str) -> None:
        """Record what the attempt logged. If there are too many lines, the oldest are dropped."""
        with self._lock:
            pending = self._of(held)
            for part in storable_text(line).splitlines() or [""]:
                text = part[:LINE_LENGTH]
                pending.lines.append(text)
                pending.size += len(text) + 1
            while pending.lines and (len(pending.lines) > self._max_lines or pending.size > self._max_size):
                pending.size -= len(pending.lines.popleft()) + 1
                pending.dropped += 1
            pending.has_new_lines = True
        self._mark_changed(held)

    def due_in(self) -> float | None:
        """Return the seconds until ``take`` returns something; ``None`` if nothing was reported."""
        if not self._changed:
            return None
        return 0.0 if self._is_urgent else max(0.0, self._next_at - time.monotonic())

    def take(self, ended: AbstractSet[AttemptKey] = frozenset()) -> list[ProgressReport]:
        """Return the reports that are due, and the last ones of attempts that ``ended``; forget those attempts."""
        if not self._pending:
            return []
        with self._lock:
            taken = set(self._changed) if self.due_in() == 0.0 else self._changed & ended
            reports = [self._pending[key].take() for key in taken]
            self._changed -= taken
            if taken:
                self._is_urgent = False
                self._next_at = time.monotonic() + PAUSE_SECONDS
            for key in ended:
                self._pending.pop(key, None)
        return reports

    def _of(self, held: ClaimedAttempt) -> _Pending:
        pending = self._pending.get(held.key)
        if pending is None:
            pending = self._pending[held.key] = _Pending(held)
        return pending

    def _mark_changed(self, held: ClaimedAttempt, *, urgent: bool = False) -> None:
        with self._lock:
            is_first = not self._changed
            self._changed.add(held.key)
        if is_first or urgent:
            self._on_report()


# Capture what an attempt logs, and add its task and trace to every log record.

_running: Final[ContextVar[tuple[ClaimedAttempt, ProgressSink] | None]] = ContextVar("taskqueue_attempt", default=None)
_OWN: Final = "taskqueue"  # the runtime's own logger; its lines do not belong to the task
_FORMAT: Final = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
_plain_factory = logging.getLogRecordFactory()


class Capture(logging.Handler):
    """Reports the lines that an attempt logs.

    A line belongs to an attempt if the task's function logs it, or a coroutine that it awaits, or code that
    ``asyncio`` or ``asgiref`` start for it. Threads that the task starts itself are not captured.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Report one record."""
        found = _running.get()
        if found is None or record.name.partition(".")[0] == _OWN:
            return
        held, reports = found
        with suppress(Exception):  # the other handlers complain about a record that cannot be formatted
            reports.log(held, _FORMAT.format(record))


def _make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    """Make a record with the attributes of the attempt's task and trace; they are empty outside of attempts.

    The names have a prefix because logging refuses an ``extra`` that a record already has.
    """
    record = _plain_factory(*args, **kwargs)
    found = _running.get()
    parent = trace.current.get()
    record.taskqueue_task_id = "" if found is None else str(found[0].task.id)
    record.taskqueue_task_type = "" if found is None else found[0].task.task_type
    if found is not None and record.name == "django.tasks" and hides(found[0].task.task_type):
        record.exc_info = None  # Django logs the exception of every failed task, whose text may repeat an argument
    record.taskqueue_trace_id = "" if parent is None else trace.trace_id(parent)
    return record


def install() -> None:
    """Start to capture in this process, unless it does already."""
    global _plain_factory  # noqa: PLW0603 - a process has one factory of records
    limits = conf.get().task_logs
    root = logging.getLogger()
    if not root.handlers and logging.lastResort is not None:
        root.addHandler(logging.lastResort)  # Python uses it only if there is no other handler
    if limits.max_lines and not any(isinstance(handler, Capture) for handler in root.handlers):
        root.addHandler(Capture(limits.level.upper()))
    if logging.getLogRecordFactory() is not _make_record:
        _plain_factory = logging.getLogRecordFactory()
        logging.setLogRecordFactory(_make_record)


def enter(held: ClaimedAttempt, reports: ProgressSink) -> None:
    """Attribute what is logged from here on in this context to the attempt, and to its trace."""
    _running.set((held, reports))
    trace.current.set(trace.child(held.task.traceparent))
