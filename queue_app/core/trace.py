"""W3C trace context of the running code.

A trace id travels with a task. One id finds the log lines of a request, of the task that it
enqueued, and of the tasks that this task enqueued. The header is
``00-<trace id>-<span id>-<flags>``. If OpenTelemetry is in use, its current span counts
(``queue_app.telemetry.tracing``).
A task that was enqueued outside of a trace begins one, whose id is the id of the task. So every task
has a trace id, and nothing is stored for it.
"""

import random
import re
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

#: Trace context of the running code; ``None`` outside of a trace.
current: Final[ContextVar[str | None]] = ContextVar("taskqueue_traceparent", default=None)

LENGTH: Final = 55
_FORMAT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.ASCII)


def parse(header: str) -> str | None:
    """Return a header in the form of version 00; ``None`` if the standard requires to ignore it."""
    match = _FORMAT.fullmatch(header.strip()[:512])
    if match is None or match[1] == "ff" or not int(match[2], 16) or not int(match[3], 16):
        return None
    if match[1] == "00" and len(header.strip()) != LENGTH:
        return None
    return f"00-{match[2]}-{match[3]}-{match[4]}"


def trace_id(traceparent: str) -> str:
    """Return the trace id."""
    return traceparent[3:35]


def of_task(task_id: uuid.UUID, stored: str | None = None) -> str:
    """Return the context of a task: the one that its caller sent, else the one that the task begins."""
    return stored or f"00-{task_id.hex}-{task_id.hex[16:]}-01"


def child(traceparent: str) -> str:
    """Return the context of a new span in the same trace.

    Its id need not be secret. ``os.urandom`` releases the GIL, which costs more than a quick task itself.
    """
    return f"{traceparent[:36]}{random.getrandbits(64):016x}{traceparent[52:]}"


def new() -> str:
    """Return the context of a new, sampled trace."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


@contextmanager
def use(traceparent: str | None) -> Iterator[None]:
    """Enqueue the tasks of this block in a trace."""
    token = current.set(traceparent)
    try:
        yield
    finally:
        current.reset(token)
