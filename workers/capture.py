"""Whose log lines these are: those of an attempt go on its reports, with its task and trace in each record."""

from __future__ import annotations

import logging
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any, Final

from queue_app import conf
from queue_app.core import trace
from queue_app.workers.context import ClaimedAttempt, ProgressSink

_running: Final[ContextVar[tuple[ClaimedAttempt, ProgressSink] | None]] = ContextVar("taskqueue_attempt", default=None)
_OWN: Final = "taskqueue"  # what the runtime says about a task is not said by the task
_FORMAT: Final = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
_plain_factory = logging.getLogRecordFactory()

type Tokens = tuple[Token[tuple[ClaimedAttempt, ProgressSink] | None], Token[str | None]]


class Capture(logging.Handler):
    """Puts the lines that an attempt logs on its reports, as far as its context is known where they are logged.

    It is known in the function itself, in coroutines that it awaits and in what ``asyncio``
    and ``asgiref`` start for it; not in threads that it starts by itself.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record."""
        found = _running.get()
        if found is None or record.name.partition(".")[0] == _OWN:
            return
        held, reports = found
        with suppress(Exception):  # a record that cannot be formatted is for the other handlers to complain about
            reports.log(held, _FORMAT.format(record))


def _make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    """Make a record that knows its task and its trace; empty outside of attempts.

    The names are such as no task takes for its own: logging refuses an ``extra`` that a record has already.
    """
    record = _plain_factory(*args, **kwargs)
    found = _running.get()
    parent = trace.current.get()
    record.taskqueue_task_id = "" if found is None else str(found[0].task.id)
    record.taskqueue_task_type = "" if found is None else found[0].task.task_type
    record.taskqueue_trace_id = "" if parent is None else trace.trace_id(parent)
    return record


def install() -> None:
    """Capture from now on in this process; again, it changes nothing."""
    global _plain_factory  # noqa: PLW0603 - a process has one factory of records
    limits = conf.get().task_logs
    root = logging.getLogger()
    if limits.max_lines and not any(isinstance(handler, Capture) for handler in root.handlers):
        root.addHandler(Capture(limits.level.upper()))
    if logging.getLogRecordFactory() is not _make_record:
        _plain_factory = logging.getLogRecordFactory()
        logging.setLogRecordFactory(_make_record)


def enter(held: ClaimedAttempt, reports: ProgressSink) -> Tokens:
    """Let what is logged from here on count as logged by the attempt, and belong to its trace."""
    parent = held.task.trace
    return _running.set((held, reports)), trace.current.set(parent and trace.child(parent))


def leave(tokens: Tokens) -> None:
    """Undo ``enter``."""
    _running.reset(tokens[0])
    trace.current.reset(tokens[1])
