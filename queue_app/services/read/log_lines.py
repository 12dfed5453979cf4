"""Follow the log lines of attempts while workers store them, about every half second."""

import re
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db.models import QuerySet

from queue_app.core.events import EventFilter
from queue_app.core.redaction import redact
from queue_app.core.states import Status
from queue_app.encryption.displayed import displayed_payload
from queue_app.logs import printable
from queue_app.models import Task, TaskLog, TaskPayload
from queue_app.sql.database import alias

#: Start of a log line as ``workers.progress`` writes it: time, level.
_START: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) ")
#: Maximum time between the statement that stores lines and its commit.
LATE: Final = timedelta(seconds=10)
#: Maximum number of attempts whose printed lines are remembered.
REMEMBERED: Final = 10_000

type Attempt = tuple[uuid.UUID, int]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that an attempt logged; lines that continue a message have its level."""

    task_id: str
    task_type: str
    queue: str
    attempt: int
    level: str
    text: str


class LogLines:
    """Returns the new lines of attempts that are executing or have just ended.

    Attempts that begin and end between two calls are found only if the caller names them.
    """

    def __init__(self, only: EventFilter) -> None:
        self._only = only
        self._seen: dict[Attempt, int] = {}  # lines of an attempt that were returned, with those that were dropped
        self._executing: set[uuid.UUID] = set()
        self._stored_at: datetime | None = None  # time of the latest lines
        self._is_first = True

    def read(self, ended: Collection[uuid.UUID] = ()) -> list[LogLine]:
        """Return the lines since the last call; ``ended`` are tasks whose attempts ended meanwhile.

        The first call returns nothing: its lines are older than the call.
        """
        tasks = self._tasks().filter(status=Status.EXECUTING).values_list("id", flat=True)
        executing = set(tasks)
        wanted = executing | self._executing | set(ended)
        self._executing = executing
        lines = list(self._new_lines(wanted)) if wanted else []
        if self._is_first:
            self._is_first, lines = False, []
        for attempt in list(self._seen)[:-REMEMBERED]:
            del self._seen[attempt]
        return lines

    def _tasks(self) -> QuerySet[Task]:
        wanted = {"queue": self._only.queue, "task_type": self._only.task_type, "id": self._only.task_id}
        given = {name: value for name, value in wanted.items() if value is not None}
        return Task.objects.using(alias()).filter(**given)

    def _new_lines(self, task_ids: Collection[uuid.UUID]) -> Iterator[LogLine]:
        tasks = {task.id: task for task in self._tasks().filter(id__in=task_ids)}
        logs = TaskLog.objects.using(alias()).filter(task_id__in=tasks).order_by("updated_at")
        if self._stored_at is not None:
            logs = logs.filter(updated_at__gte=self._stored_at - LATE)
        for log in logs:
            self._stored_at = log.updated_at
            task, key = tasks[log.task_id], (log.task_id, log.attempt)
            if key not in self._seen and log.attempt != task.attempt:
                continue  # an earlier attempt
            total = log.dropped + log.lines.count("\n") + 1
            new = total - self._seen.pop(key, 0)
            self._seen[key] = total  # at the end, as the latest
            if new > 0 and not self._is_first:
                yield from _masked(task, log, new)


def _masked(task: Task, log: TaskLog, new: int) -> Iterator[LogLine]:
    """Yield the last ``new`` lines without the secrets of the task."""
    payload = TaskPayload.objects.using(alias()).filter(task_id=task.id).first()
    secrets = displayed_payload(task.task_type, payload)[0]
    lines = redact(log.lines, secrets).split("\n")
    level = "INFO"
    for position, line in enumerate(lines):
        if found := _START.match(line):
            level = found[1]
        if position >= len(lines) - new:
            yield LogLine(str(task.id), task.task_type, task.queue, log.attempt, level, printable(line))
