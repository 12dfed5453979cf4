"""Read recorded tasks for a simulation: when they waited and ran, never what they were called with."""

import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_app.sql.database import fetch_all

PAGE: Final = 20_000
_US: Final = "(EXTRACT(EPOCH FROM {}) * 1e6)::bigint"
_KIND: Final = 't.queue, t.task_type, t.priority, t.capabilities, t."user", t.concurrency_key, t.weight'
_TIMES: Final = ", ".join(_US.format(f"t.{name}_at") for name in ("queued", "started", "finished"))
_ENDED: Final = f"""
SELECT {_KIND}, {_TIMES}, t.worker_id, t.status, t.finished_at, t.id FROM queue_app_task AS t
WHERE t.finished_at >= %(since)s AND (t.finished_at, t.id) > (%(last)s, %(id)s)
ORDER BY t.finished_at, t.id LIMIT {PAGE}
"""
_PENDING: Final = f"""
SELECT {_KIND}, {_TIMES}, t.worker_id, t.status FROM queue_app_task AS t
WHERE t.status IN ('queued', 'executing') AND t.queued_at < %(until)s
"""
_COUNTED: Final = """
SELECT count(*) FROM (
    (SELECT FROM queue_app_task WHERE finished_at >= %(since)s AND queued_at < %(until)s LIMIT %(most)s)
    UNION ALL
    (SELECT FROM queue_app_task WHERE status IN ('queued', 'executing') AND queued_at < %(until)s LIMIT %(most)s)
) AS task
"""
# The last attempt of an ended task is the task's own row.
_FAILED: Final = f"""
SELECT {_KIND}, {_US.format("a.started_at")}, {_US.format("a.finished_at")}
FROM queue_app_taskattempt AS a JOIN queue_app_task AS t ON t.id = a.task_id
WHERE a.finished_at >= %(since)s AND a.started_at < %(until)s AND (a.attempt < t.attempt OR t.finished_at IS NULL)
"""
_EDITS: Final = """
SELECT count(*) FROM queue_app_auditentry WHERE at BETWEEN %(since)s AND %(until)s
    AND target IN ('queue', 'limit', 'prioritypolicy', 'runtimesettings', 'settings')
"""


class RecordedTask(NamedTuple):
    """A task of the window; times in µs."""

    kind: tuple[Any, ...]  # queue, task type, band, capabilities, user, key, weight
    queued_at: int | None
    started_at: int | None
    finished_at: int | None
    worker_id: uuid.UUID | None
    status: str


def are_more(since: datetime, until: datetime, most: int) -> bool:
    """Return whether ``tasks`` yields more than ``most``, without reading them."""
    return int(fetch_all(_COUNTED, {"since": since, "until": until, "most": most + 1})[0][0]) > most


def tasks(since: datetime, until: datetime) -> Iterator[RecordedTask]:
    """Yield the tasks that ended since ``since`` or are pending, and were queued before ``until``."""
    last: dict[str, Any] = {"since": since, "last": since, "id": uuid.UUID(int=0)}
    while page := fetch_all(_ENDED, last):
        for *row, ended_at, task_id in page:
            last |= {"last": ended_at, "id": task_id}
            found = _task(row)
            if found.queued_at and found.queued_at < until.timestamp() * 1e6:
                yield found
    yield from map(_task, fetch_all(_PENDING, {"until": until}))


def _task(row: Sequence[Any]) -> RecordedTask:
    *kind, queued_at, started_at, finished_at, worker_id, status = row
    return RecordedTask(_kind(*kind), queued_at, started_at, finished_at, worker_id, status)


def _kind(queue: str, task_type: str, priority: int, capabilities: list[str], *others: Any) -> tuple[Any, ...]:
    return (queue, task_type, priority, tuple(capabilities), *others)


def failed_attempts(since: datetime, until: datetime) -> Iterator[tuple[tuple[Any, ...], int, int]]:
    """Yield (kind, start, end) of the attempts that were retried."""
    for *kind, started_at, finished_at in fetch_all(_FAILED, {"since": since, "until": until}):
        yield _kind(*kind), started_at, finished_at


def edits(since: datetime, until: datetime) -> int:
    """Return how often people edited limits and policies in the window."""
    return int(fetch_all(_EDITS, {"since": since, "until": until})[0][0])
