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
from queue_app.sql.columns import cap
from queue_app.sql.database import fetch_all, fetch_value

#: Time without progress after which the watchdog reports a stall.
STALL_SECONDS: Final = 10.0
#: Name of the job whose row holds the stalls.
WATCHDOG: Final = "watchdog"
#: Age (s) of the last record after which no watchdog counts as running. It checks each second and writes each 15 s.
CHECK_IS_OLD: Final = 60.0
#: Maximum number of kinds (queue, task type, capabilities, weight) that one check reports, the oldest tasks first.
MOST_KINDS: Final = 50

#: Condition for workers that want tasks. One that is full, draining or near its last task reports no free slots.
_WANTS: Final = "status = 'active' AND drain_requested_at IS NULL AND free_slots > 0"
#: Whether the check is worth its cost: a worker wants tasks, and a task waits.
ANY_STARTABLE: Final = f"""
(EXISTS (SELECT FROM queue_app_worker WHERE {_WANTS})
    AND (SELECT queued_at FROM queue_app_task WHERE status = 'queued' ORDER BY queued_at LIMIT 1) IS NOT NULL)
"""


def _serves(lane: str) -> str:
    return (
        f"(worker.queues = '{{}}' OR {lane}.queue = ANY(worker.queues))"
        f" AND {lane}.task_type = ANY(worker.task_types) AND {lane}.capabilities <@ worker.capabilities"
    )


def _running(condition: str) -> str:
    return f"(SELECT COALESCE(sum(tasks), 0) FROM running AS r WHERE {condition})"


def _limits(table: str, used: str) -> str:
    """Whether the limits of a row may have stopped a task between two checks; not if its cap is far above what runs."""
    return (
        f"COALESCE({cap(table)} < 4 * {used} + 20, false)"
        f" OR num_nonnulls({table}.rate_count, {table}.min_delay_seconds) > 0"
    )


_OVERALL: Final = _running("true")
_IN_QUEUE: Final = _running("r.queue = q.name")
_PACES: Final = ", ".join(
    f"{table}.rate_seconds / {table}.rate_count, {table}.min_delay_seconds" for table in ("q", "t", "k")
)
# The row whose numbers apply to a key: its own, unless it has none, else that of its family.
_OF_KEY: Final = """
LEFT JOIN queue_app_limit AS own ON own.scope = 'key' AND own.name = {key}
LEFT JOIN queue_app_limit AS family
    ON family.scope = 'key' AND {key} LIKE '%%:%%' AND family.name = split_part({key}, ':', 1)
LEFT JOIN queue_app_limit AS k ON k.id = CASE
    WHEN num_nonnulls(own.max_concurrent, own.rate_count, own.min_delay_seconds) > 0 THEN own.id ELSE family.id END
"""
# Whether only a rate or the queue may hold a task back. Running tasks and the rows of limits, which are few, tell which
# gates are closed, so a task costs some look-ups in hash tables. A key stops by its own pause or that of its family.
_PASSES: Final = """
task_type IN (SELECT unnest(task_types) FROM worker) AND task_type NOT IN (SELECT name FROM closed_type)
AND (concurrency_key = '' OR (concurrency_key NOT IN (SELECT name FROM closed_key)
    AND split_part(concurrency_key, ':', 1) NOT IN (SELECT name FROM stopped WHERE scope = 'key')))
AND ("user" = '' OR (queue, "user") NOT IN (SELECT queue, "user" FROM closed_user))
"""
# `kind` reads the waiting tasks once; its cost does not grow with the number of lanes. `running` has a row per kind
# of executing task. A worker that keeps slots free for a heavier task (`heavy`) takes no other one.
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
), stopped AS MATERIALIZED (
    SELECT scope, name FROM queue_app_limit WHERE paused OR throttled_until > statement_timestamp()
), closed_type AS MATERIALIZED (
    SELECT name FROM stopped WHERE scope = 'type'
    UNION SELECT name FROM queue_app_limit AS l
    WHERE scope = 'type' AND {cap("l")} <= {_running("r.task_type = l.name")}
), closed_key AS MATERIALIZED (
    SELECT name FROM stopped WHERE scope = 'key'
    UNION SELECT used.name FROM (
        SELECT concurrency_key AS name, sum(tasks) AS tasks FROM running WHERE concurrency_key <> '' GROUP BY 1
    ) AS used {_OF_KEY.format(key="used.name")} WHERE {cap("k")} <= used.tasks
), closed_user AS MATERIALIZED (
    SELECT r.queue, r."user" FROM running AS r JOIN queue_app_queue AS q ON q.name = r.queue
    GROUP BY 1, 2, q.max_concurrent_per_user HAVING q.max_concurrent_per_user <= sum(r.tasks)
), kind AS MATERIALIZED (
    SELECT queue, task_type, capabilities, weight, count(*) AS tasks, min(queued_at) AS oldest FROM queue_app_task
    WHERE status = 'queued' AND EXISTS (SELECT FROM worker)
        AND NOT EXISTS (SELECT FROM overall WHERE paused OR {cap()} <= {_OVERALL})
        AND queue = ANY(ARRAY(SELECT name FROM queue_app_queue AS q
            WHERE NOT q.paused AND (q.throttled_until IS NULL OR q.throttled_until <= statement_timestamp())
                AND (q.max_concurrent IS NULL OR {cap("q")} > {_IN_QUEUE})))
        AND {_PASSES}
    GROUP BY 1, 2, 3, 4
), heavy AS MATERIALIZED (
    SELECT * FROM kind WHERE weight > 1
)
SELECT first.id, kind.queue, kind.task_type, kind.capabilities, kind.weight, first.concurrency_key, first."user",
    kind.tasks, kind.oldest, able.name, able.free_slots, able.heard,
    array_remove(ARRAY[
        CASE WHEN (SELECT COALESCE({cap()} < 4 * {_OVERALL} + 20, false) FROM overall) THEN 'everything' END,
        CASE WHEN {_limits("q", _IN_QUEUE)} THEN 'queue' END,
        CASE WHEN {_limits("t", _running("r.task_type = kind.task_type"))} THEN 'type' END,
        CASE WHEN {_limits("k", _running("r.concurrency_key = first.concurrency_key"))} THEN 'key' END,
        CASE WHEN q.max_concurrent_per_user IS NOT NULL AND first."user" <> '' THEN 'user' END
    ], NULL),
    GREATEST(0, {_PACES})::float8, GREATEST(q.updated_at, t.updated_at, own.updated_at, family.updated_at),
    statement_timestamp()
FROM kind JOIN queue_app_queue AS q ON q.name = kind.queue
CROSS JOIN LATERAL (
    SELECT name, free_slots, heard FROM worker
    WHERE {_serves("kind")} AND free_slots >= kind.weight AND NOT EXISTS (
        SELECT FROM heavy WHERE heavy.weight > worker.free_slots AND heavy.weight <= worker.concurrency
            AND {_serves("heavy")})
    ORDER BY heard LIMIT 1
) AS able
CROSS JOIN LATERAL (
    SELECT id, concurrency_key, "user" FROM queue_app_task
    WHERE status = 'queued' AND queued_at = kind.oldest AND queue = kind.queue AND task_type = kind.task_type
        AND capabilities = kind.capabilities AND weight = kind.weight AND {_PASSES}
    ORDER BY id LIMIT 1
) AS first
LEFT JOIN queue_app_limit AS t ON t.scope = 'type' AND t.name = kind.task_type
{_OF_KEY.format(key="first.concurrency_key")}
ORDER BY kind.oldest LIMIT {MOST_KINDS}
"""


class Startable(NamedTuple):
    """The oldest task of a kind that could run now, and the worker that wants one."""

    id: uuid.UUID
    queue: str
    task_type: str
    capabilities: list[str]
    weight: int
    key: str
    user: str
    tasks: int  # of this kind that could run
    oldest: datetime  # when the task was queued
    worker: str
    free_slots: int
    heard: float  # seconds since the worker said so
    limited: list[str]  # gates whose limits may have stopped the task since the last check
    pace: float  # seconds from one start to the next, by the slowest of its rates
    edited_at: datetime  # when its limits were last changed
    at: datetime  # when it was found

    @property
    def kind(self) -> tuple[Any, ...]:
        """What tells its kind from others."""
        return self.queue, self.task_type, tuple(self.capabilities), self.weight


def startable() -> list[Startable]:
    """Return the oldest task of each kind that could run now."""
    found = fetch_all(_STARTABLE, {"missed": conf.get().worker.missed_heartbeats})
    return [Startable(*row) for row in found]


_CONDITIONS: Final = {
    "everything": "true",
    "queue": "queue = %(queue)s",
    "type": "task_type = %(task_type)s",
    "key": "concurrency_key = %(key)s",
    "user": 'queue = %(queue)s AND "user" = %(user)s',
}


def started_since(since: datetime, task: Startable, gates: Iterable[str]) -> bool:
    """Whether a task that passes one of these gates of ``task`` has started since then."""
    passes = " OR ".join(f"({_CONDITIONS[gate]})" for gate in sorted(gates))
    started = f"started_at >= %(since)s AND ({passes})"
    sql = (
        f"SELECT EXISTS (SELECT FROM queue_app_task WHERE status = 'executing' AND {started})"
        f" OR EXISTS (SELECT FROM queue_app_task WHERE finished_at >= %(since)s AND {started})"
    )
    return bool(passes and fetch_value(sql, {"since": since, **task._asdict()}))


def waits_unlocked(task_id: uuid.UUID) -> bool:
    """Whether the task is still queued, and no other transaction keeps its row locked."""
    sql = "SELECT FROM queue_app_task WHERE id = %s AND status = 'queued' FOR UPDATE SKIP LOCKED"
    return bool(fetch_all(sql, [task_id]))
