"""Follow events and log lines of tasks until Ctrl-C."""

import json
import logging
import re
import time
import uuid
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from django.db import DatabaseError, connections
from django.utils import timezone

from queue_app import conf
from queue_app.core.events import Event, EventFilter, EventName
from queue_app.exceptions import IndexUnavailable, in_one_line
from queue_app.index import hide_password
from queue_app.logs import printable
from queue_app.management.verbs import OK, Call, Needs
from queue_app.models import Queue
from queue_app.services.notify import events
from queue_app.services.read.log_lines import LogLine, LogLines
from queue_app.sql.database import alias

EXAMPLE = "taskqueue tail --queue mail --level WARNING"
NEEDS = Needs.DATABASE
#: Longest wait for an event; log lines are read after each wait.
BLOCK_MS: Final = 500
RETRY_SECONDS: Final = 1.0
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

#: Event -> its words, and the style of Django in which they are printed.
WORDS: Final[dict[str, tuple[str, str]]] = {
    EventName.ACCEPTED: ("accepted", ""),
    EventName.REJECTED: ("refused", "WARNING"),
    EventName.STARTED: ("started", ""),
    EventName.COMPLETED: ("completed", "SUCCESS"),
    EventName.FAILED: ("failed", "ERROR"),
    EventName.TIMED_OUT: ("timed out", "ERROR"),
    EventName.CANCELLED: ("cancelled", "WARNING"),
    EventName.PROMOTED: ("promoted", ""),
    EventName.DEAD_LETTERED: ("dead letter", "ERROR"),
    EventName.REQUEUED: ("queued again", "WARNING"),
    EventName.EXPIRED: ("expired", "WARNING"),
}
#: Width of the longest of these words.
WIDTH: Final = 12
_LEVEL_COLORS: Final = {"WARNING": "WARNING", "ERROR": "ERROR", "CRITICAL": "ERROR"}
#: Date, time and level at the start of a log line.
_LOG_START: Final = re.compile(r"\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d{3} [A-Z]+ ")
ENDS: Final = frozenset({
    EventName.COMPLETED, EventName.FAILED, EventName.TIMED_OUT, EventName.CANCELLED, EventName.REQUEUED,
})  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--queue", help="only this queue")
    add("--type", dest="task_type", help="only this task type")
    add("--task", type=uuid.UUID, metavar="ID", help="only this task")
    add(
        "--level",
        type=str.upper,
        choices=[*LEVELS, "NONE"],
        default="INFO",
        help="lowest level of log lines, or none for events only (default INFO)",
    )
    add("--json", action="store_true", help="print one JSON object a line")


def run(call: Call) -> int:
    """Print what happens until the user ends it."""
    if not conf.get().events.max_length:
        call.err.write("No events are published (TASKQUEUE EVENTS.MAX_LENGTH is 0); log lines follow.")
    _warn_of_unknown_queue(call)
    call.note_unknown_type(call["task_type"])
    tail = Tail(
        EventFilter(queue=call["queue"], task_type=call["task_type"], task_id=call["task"]), level=call["level"]
    )
    try:
        while True:
            for item in tail.run_once():
                if isinstance(item, str):
                    call.err.write(item)
                else:
                    call.out.write(as_json(item) if call["json"] else as_line(item, call.style))
            call.out.flush()
            time.sleep(tail.pause)
    except KeyboardInterrupt:
        return OK


def _warn_of_unknown_queue(call: Call) -> None:
    """Warn that there is no such queue yet; only warn, because a task may create it."""
    with suppress(DatabaseError):
        name, queues = call["queue"], Queue.objects.using(alias())
        if name is not None and not queues.filter(pk=name).exists():
            call.err.write(f"{Queue.unknown(name, using=alias())} Its events follow when a task names it.")


class Tail:
    """Reads events and log lines from now on; continues after an outage where it stopped."""

    def __init__(self, only: EventFilter, *, level: str = "INFO") -> None:
        self.pause = 0.0  # seconds to wait before the next turn
        self._only = only
        self._level = None if level == "NONE" else logging.getLevelNamesMapping()[level]
        self._last: str | None = None  # id of the last event
        self._lines = LogLines(only)
        self._away: set[str] = set()  # servers that do not answer

    def run_once(self) -> Iterator[Event | LogLine | str]:
        """Wait for events; yield these, log lines, and notices for the user."""
        self.pause = 0.0
        found: list[Event] = []
        try:
            if self._last is None:
                self._last = events.last_id()
            found, self._last = events.read(self._last, count=events.MAX_COUNT, block_ms=BLOCK_MS, only=self._only)
        except IndexUnavailable as error:
            follows = "" if conf.get().index == conf.ROWS else " Events follow when it answers again."
            yield from self._on_away("Redis", f"{error}{follows}")
        else:
            yield from self._on_answer("Redis")
        yield from self._merge(found)

    def _merge(self, found: list[Event]) -> Iterator[Event | LogLine | str]:
        """Yield the events in order, and the lines of a task before the event that ends its attempt."""
        lines: list[LogLine] = []
        if self._level is not None:
            levels = logging.getLevelNamesMapping()
            ended = {uuid.UUID(event.task_id) for event in found if event.name in ENDS and event.task_id}
            try:
                found_lines = self._lines.read(ended)
                lines = [line for line in found_lines if levels.get(line.level, logging.INFO) >= self._level]
            except DatabaseError as error:
                connections[alias()].close()
                reason = hide_password(in_one_line(error))
                yield from self._on_away("PostgreSQL", f"PostgreSQL failed: {reason} Log lines follow when it answers.")
            else:
                yield from self._on_answer("PostgreSQL")
        for event in found:
            if event.name in ENDS:
                yield from (line for line in lines if line.task_id == event.task_id)
                lines = [line for line in lines if line.task_id != event.task_id]
            yield event
        yield from lines

    def _on_away(self, server: str, notice: str) -> Iterator[str]:
        self.pause = RETRY_SECONDS
        if server not in self._away:
            self._away.add(server)
            yield notice

    def _on_answer(self, server: str) -> Iterator[str]:
        if server in self._away:
            self._away.remove(server)
            yield f"{server} answers again."


def as_json(item: Event | LogLine) -> str:
    """Return an event or log line as one line of JSON."""
    if isinstance(item, LogLine):
        return json.dumps({"kind": "log"} | asdict(item))
    at = datetime.fromtimestamp(item.at / 1000, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"kind": "event"} | asdict(item) | {"at": at})


def as_line(item: Event | LogLine, style: Any) -> str:
    """Return an event or log line as text."""
    if isinstance(item, LogLine):
        return _log_line(item, style)
    words, color = WORDS.get(item.name, (item.name, ""))
    at = timezone.localtime(datetime.fromtimestamp(item.at / 1000, UTC))
    facts = [f"queue {item.queue}", *(f"{name} {value}" for name, value in item.details.items())]
    if item.attempt and item.attempt > 1:
        facts.append(f"attempt {item.attempt}")
    what = printable(f"{item.task_type} {item.task_id} ({', '.join(facts)})")
    return f"{at:%H:%M:%S} {_painted(words, color, style)} {what}"


def _log_line(line: LogLine, style: Any) -> str:
    start = _LOG_START.match(line.text)
    if start is None:  # continues a message
        return f"{'':<8} {'':<{WIDTH}} {line.text}"
    level = _painted(line.level, _LEVEL_COLORS.get(line.level, ""), style)
    return f"{start[1]} {level} {line.text[start.end() :]} ({printable(line.task_type)} {line.task_id})"


def _painted(text: str, color: str, style: Any) -> str:
    padded = f"{text:<{WIDTH}}"
    return str(getattr(style, color)(padded)) if color else padded
