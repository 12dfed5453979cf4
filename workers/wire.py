"""Messages between a worker and the slots of its process pool: tasks and outcomes as JSON."""

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
_IDS: Final = ("id", "worker_id", "workflow_id")


def task_form(task: ClaimedTask) -> dict[str, Any]:
    """Return a task as JSON values."""
    form = {field.name: getattr(task, field.name) for field in fields(task)}  # not ``asdict``, which copies deeply
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
    """Return an outcome as JSON values, without the task and the times, which the reader knows."""
    return {
        "result": outcome.result,
        "failure": outcome.failure and asdict(outcome.failure),
        "snooze": outcome.snooze,
        "throttle": outcome.throttle,
        "waits": outcome.waits,
        "is_late": outcome.is_late,
    }


def outcome_of(form: dict[str, Any], held: ClaimedAttempt, began: float) -> Outcome:
    """Return the outcome that ``outcome_form`` described, of an attempt that began at ``began`` and ends now."""
    failure, throttle = form["failure"], form["throttle"]
    return held.outcome(
        began,
        form["result"],
        failure=failure and TaskFailure(**failure),
        snooze=form["snooze"],
        throttle=throttle and Throttling(*throttle),
        waits=form["waits"],
        is_late=form["is_late"],
    )


def send(to: socket.socket, message: dict[str, Any]) -> None:
    """Send one message."""
    data = json.dumps(message, separators=(",", ":")).encode()
    to.sendall(_SIZE.pack(len(data)) + data)


class Reader:
    """Splits the data that arrives on a socket into messages."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._buffer = bytearray()

    def receive(self, flags: int = 0) -> list[dict[str, Any]] | None:
        """Wait for data and return the messages that are complete; ``None`` if the other side hung up.

        Raises ``BlockingIOError`` with the flag MSG_DONTWAIT if no data has arrived.
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
