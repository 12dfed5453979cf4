"""Capture what an attempt logs, and add its task and trace to every log record."""

import logging
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from queue_app import conf
from queue_app.core import trace
from queue_app.encryption import hides
from queue_app.workers.context import ClaimedAttempt, ProgressSink

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
