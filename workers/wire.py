"""Tasks and outcomes as JSON, for slots in other processes."""

from __future__ import annotations

import json
import socket
import struct
import uuid
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Final

from queue_app.core.records import ClaimedTask, Outcome, TaskFailure, Throttling
from queue_app.workers.context import ClaimedAttempt

_SIZE: Final = struct.Struct("!I")
_TIMES: Final = ("created_at", "queued_at", "started_at")
_IDS: Final = ("id", "worker_id")


def task_form(task: ClaimedTask) -> dict[str, Any]:
    """Return a task as JSON values."""
    form = {field.name: getattr(task, field.name) for field in fields(task)}
    for name in _TIMES:
        form[name] = form[name].isoformat()
    for name in _IDS:
        form[name] = form[name] and str(form[name])
    return form


def task_of(form: dict[str, Any]) -> ClaimedTask:
    """Return the task that ``task_form`` described."""
    values = dict(form)
    for name in _TIMES:
        values[name] = datetime.fromisoformat(values[name])
    for name in _IDS:
        values[name] = values[name] and uuid.UUID(values[name])
    values["capabilities"] = tuple(values["capabilities"])
    return ClaimedTask(**values)


def outcome_form(outcome: Outcome) -> dict[str, Any]:
    """Return how an attempt ended as JSON values; which attempt, and when, the reader knows."""
    return {
        "result": outcome.result,
        "failure": None if outcome.failure is None else asdict(outcome.failure),
        "snooze": outcome.snooze,
        "throttle": outcome.throttle,
    }


def outcome_of(form: dict[str, Any], held: ClaimedAttempt, began: float, ended: float) -> Outcome:
    """Return the outcome that ``outcome_form`` described, of an attempt between two monotonic times."""
    failure = None if form["failure"] is None else TaskFailure(**form["failure"])
    throttle = form.get("throttle")
    return Outcome(
        held.task,
        held.row_time(began),
        held.row_time(ended),
        form["result"],
        failure=failure,
        snooze=form["snooze"],
        throttle=None if throttle is None else Throttling(*throttle),
    )


def send(to: socket.socket, message: dict[str, Any]) -> None:
    """Send one message."""
    data = json.dumps(message, separators=(",", ":")).encode()
    to.sendall(_SIZE.pack(len(data)) + data)


class Reader:
    """Cuts what arrives on a socket into messages."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._buffer = bytearray()

    def receive(self, flags: int = 0) -> list[dict[str, Any]] | None:
        """Wait for more and return the messages that are complete; ``None`` at the end.

        Raises ``BlockingIOError`` with the flag MSG_DONTWAIT when there is nothing yet.
        """
        try:
            data = self._source.recv(65536, flags)
        except ConnectionError:
            data = b""
        if not data:
            return None
        self._buffer += data
        messages: list[dict[str, Any]] = []
        while len(self._buffer) >= _SIZE.size:
            end = _SIZE.size + _SIZE.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            messages.append(json.loads(self._buffer[_SIZE.size : end]))
            del self._buffer[:end]
        return messages
