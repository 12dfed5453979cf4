"""Find queued tasks that could run now, by the rows alone: the index, which decides who runs next, may be wrong.

A task could run if no pause, cap or throttle in the rows stops it, and an active worker said with its last heartbeat
that its last claim left slots free. The rows do not tell how much of a rate is used up, or whether a cap was full a
moment ago. So the caller also asks whether anything passed the limited gates (``started_since``).
"""

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_app import conf
from queue_app.sql.database import fetch_all, fetch_value

#: Maximum number of lanes that one look reports, those of the oldest tasks first.
MOST_LANES: Final = 50

#: Condition for workers that want tasks. One that is full, draining or near its last task reports no free slots.
_WANTS: Final = "status = 'active' AND drain_requested_at IS NULL AND free_slots > 0"
#: Whether the look is worth its cost: a worker wants tasks, and a task waits.
ANY_STARTABLE: Final = f"""
(EXISTS (SELECT FROM queue_app_worker WHERE {_WANTS})
    AND (SELECT queued_at FROM queue_app_task WHERE status = 'queued' ORDER BY queued_at LIMIT 1) IS NOT NULL)
"""


def _serves(worker: str, lane: str) -> str:
    return (
        f"({worker}.queues = '{{}}' OR {lane}.queue = ANY({worker}.queues))"
        f" AND {lane}.task_type = ANY({worker}.task_types) AND {lane}.capabilities <@ {worker}.capabilities"
    )


def _running(condition: str) -> str:
    return f"(SELECT COALESCE(sum(tasks), 0) FROM running AS r WHERE {condition})"


def _limits(table: str, used: str) -> str:
    """Whether the limits of a row may have stopped a task between two looks; not if its cap is far above what runs."""
    return (
        f"COALESCE({table}.max_concurrent < 4 * {used} + 20, false)"
        f" OR num_nonnulls({table}.rate_count, {table}.min_delay_seconds) > 0"
    )


_OVERALL: Final = _running("true")
_IN_QUEUE: Final = _running("r.queue = q.name")
_OF_TYPE: Final = _running("r.task_type = lane.task_type")
_OF_KEY: Final = _running("r.concurrency_key = lane.concurrency_key")
_OF_USER: Final = _running('r.queue = lane.queue AND r."user" = lane."user"')
_PACES: Final = ", ".join(
    f"{table}.rate_seconds / {table}.rate_count, {table}.min_delay_seconds" for table in ("q", "t", "k")
)
# A lane is one row of a hash table, however many tasks it has; a queue that is paused or full costs nothing. `running`
# has a row for each kind of executing task. A worker that waits for a heavier task (`heavy`) takes no other one.
# A key has its own numbers, else those of its family (`k`); both can pause and throttle it (`own`, `family`).
_STARTABLE: Final = f"""
WITH running AS MATERIALIZED (
    SELECT queue, task_type, concurrency_key, "user", count(*) AS tasks FROM queue_app_task
    WHERE status = 'executing' GROUP BY 1, 2, 3, 4
), worker AS MATERIALIZED (
    SELECT name, queues, task_types, capabilities, concurrency, free_slots,
        EXTRACT(EPOCH FROM statement_timestamp() - last_heartbeat_at)::float8 AS heard
    FROM queue_app_worker AS w WHERE {_WANTS}
        AND last_heartbeat_at BETWEEN
            statement_timestamp() - make_interval(secs => heartbeat_seconds * %(missed)s) AND statement_timestamp()
        AND NOT EXISTS (SELECT FROM queue_app_workertoken AS token WHERE token.id = w.token_id AND max_in_flight <= (
            SELECT count(*) FROM queue_app_task AS t JOIN queue_app_worker AS other ON other.id = t.worker_id
            WHERE t.status = 'executing' AND other.token_id = token.id))
), overall AS MATERIALIZED (
    SELECT * FROM queue_app_runtimesettings WHERE id = 1
), lane AS MATERIALIZED (
    SELECT queue, task_type, capabilities, concurrency_key, weight,
        CASE WHEN queue = ANY(ARRAY(SELECT name FROM queue_app_queue WHERE max_concurrent_per_user IS NOT NULL))
            THEN "user" ELSE '' END AS "user", count(*) AS tasks, min(queued_at) AS oldest
    FROM queue_app_task
    WHERE status = 'queued' AND EXISTS (SELECT FROM worker)
        AND NOT EXISTS (SELECT FROM overall WHERE paused OR max_concurrent <= {_OVERALL})
        AND queue = ANY(ARRAY(SELECT name FROM queue_app_queue AS q
            WHERE NOT q.paused AND (q.throttled_until IS NULL OR q.throttled_until <= statement_timestamp())
                AND (q.max_concurrent IS NULL OR q.max_concurrent > {_IN_QUEUE})))
    GROUP BY 1, 2, 3, 4, 5, 6
), heavy AS MATERIALIZED (
    SELECT DISTINCT queue, task_type, capabilities, weight FROM lane WHERE weight > 1
)
SELECT lane.queue, lane.task_type, lane.capabilities, lane.concurrency_key, lane."user", lane.weight,
    lane.tasks, lane.oldest, able.name, able.free_slots, able.heard,
    array_remove(ARRAY[
        CASE WHEN (SELECT COALESCE(max_concurrent < 4 * {_OVERALL} + 20, false) FROM overall) THEN 'everything' END,
        CASE WHEN {_limits("q", _IN_QUEUE)} THEN 'queue' END, CASE WHEN {_limits("t", _OF_TYPE)} THEN 'type' END,
        CASE WHEN {_limits("k", _OF_KEY)} THEN 'key' END,
        CASE WHEN q.max_concurrent_per_user IS NOT NULL AND lane."user" <> '' THEN 'user' END
    ], NULL),
    GREATEST(0, {_PACES})::float8, GREATEST(q.updated_at, t.updated_at, k.updated_at), statement_timestamp()
FROM lane JOIN queue_app_queue AS q ON q.name = lane.queue
LEFT JOIN queue_app_limit AS t ON t.scope = 'type' AND t.name = lane.task_type
LEFT JOIN queue_app_limit AS own ON own.scope = 'key' AND own.name = lane.concurrency_key
LEFT JOIN queue_app_limit AS family ON family.scope = 'key' AND lane.concurrency_key LIKE '%%:%%'
    AND family.name = split_part(lane.concurrency_key, ':', 1)
LEFT JOIN queue_app_limit AS k ON k.id = CASE
    WHEN num_nonnulls(own.max_concurrent, own.rate_count, own.min_delay_seconds) > 0 THEN own.id ELSE family.id END
CROSS JOIN LATERAL (
    SELECT name, free_slots, heard FROM worker
    WHERE {_serves("worker", "lane")} AND free_slots >= lane.weight AND NOT EXISTS (
        SELECT FROM heavy WHERE heavy.weight > worker.free_slots AND heavy.weight <= worker.concurrency
            AND {_serves("worker", "heavy")})
    ORDER BY heard LIMIT 1
) AS able
WHERE NOT COALESCE(t.paused OR own.paused OR family.paused, false)
    AND COALESCE(GREATEST(t.throttled_until, own.throttled_until, family.throttled_until), '-infinity')
        <= statement_timestamp()
    AND (t.max_concurrent IS NULL OR t.max_concurrent > {_OF_TYPE})
    AND (k.max_concurrent IS NULL OR k.max_concurrent > {_OF_KEY})
    AND (q.max_concurrent_per_user IS NULL OR lane."user" = '' OR q.max_concurrent_per_user > {_OF_USER})
ORDER BY lane.oldest LIMIT {MOST_LANES}
"""


class Startable(NamedTuple):
    """A lane of tasks that could run now, and the worker that wants one."""

    queue: str
    task_type: str
    capabilities: list[str]
    key: str
    user: str  # '' unless the queue limits its users
    weight: int
    tasks: int
    oldest: datetime  # when the oldest of them was queued
    worker: str
    free_slots: int
    heard: float  # seconds since the worker said so
    limited: list[str]  # gates whose limits may have stopped the lane since the last look
    pace: float  # seconds from one start to the next, by the slowest of its rates
    edited_at: datetime  # when its limits were last changed
    at: datetime  # when it was found

    @property
    def lane(self) -> tuple[Any, ...]:
        """What tells the lane from others."""
        return self.queue, self.task_type, tuple(self.capabilities), self.key, self.user, self.weight


def startable() -> list[Startable]:
    """Return the lanes whose tasks could run now."""
    found = fetch_all(_STARTABLE, {"missed": conf.get().worker.missed_heartbeats})
    return [Startable(*row) for row in found]


_CONDITIONS: Final = {
    "everything": "true",
    "queue": "queue = %(queue)s",
    "type": "task_type = %(task_type)s",
    "key": "concurrency_key = %(key)s",
    "user": 'queue = %(queue)s AND "user" = %(user)s',
}


def started_since(since: datetime, lane: Startable, gates: Iterable[str]) -> bool:
    """Whether a task that passes one of the gates of the lane has started since then."""
    passes = " OR ".join(f"({_CONDITIONS[gate]})" for gate in sorted(gates))
    started = f"started_at >= %(since)s AND ({passes})"
    sql = (
        f"SELECT EXISTS (SELECT FROM queue_app_task WHERE status = 'executing' AND {started})"
        f" OR EXISTS (SELECT FROM queue_app_task WHERE finished_at >= %(since)s AND {started})"
    )
    return bool(passes and fetch_value(sql, {"since": since, **lane._asdict()}))


def oldest_of(lane: Startable) -> uuid.UUID | None:
    """Return the oldest task of a lane; ``None`` if it is gone, or another transaction keeps its row locked."""
    found: uuid.UUID | None = fetch_value(
        "SELECT id FROM queue_app_task WHERE status = 'queued' AND queued_at = %s AND queue = %s AND task_type = %s"
        " LIMIT 1 FOR UPDATE SKIP LOCKED",
        [lane.oldest, lane.queue, lane.task_type],
    )
    return found
