"""What a new task is stored from, and how one is: by a single statement. ``sql.insert_many`` stores many."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from queue_app.core import trace
from queue_app.core.states import Status
from queue_app.sql.database import fetch_all, fetch_prepared


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What all calls of one checked task share."""

    task_type: str
    queue: str
    priority: int
    capabilities: tuple[str, ...]
    user: str
    max_retries: int | None
    timeout: float | None
    retry_delay: float | None
    run_after: datetime | None
    idempotency_key: str | None
    lane: str
    concurrency_key: str = ""
    weight: int = 1


class Place(NamedTuple):
    """What is known of a task before its payload is: enough to count it and to tell of it."""

    id: uuid.UUID
    spec: TaskSpec


class TaskRow(NamedTuple):
    """A checked call of a task, ready to be stored."""

    id: uuid.UUID
    spec: TaskSpec
    args: str  # JSON text
    parameters: str  # JSON text


class Stored(NamedTuple):
    """A stored task: ``queued_at`` is ``None`` for one that waits for its time."""

    row: Place | TaskRow
    created_at: datetime
    queued_at: datetime | None

    @property
    def status(self) -> Status:
        """The state it was stored in."""
        return Status.SCHEDULED if self.queued_at is None else Status.QUEUED


# Whether a row limits what may be enqueued, so that services.admission has to count first.
_QUEUE_LIMITS = """EXISTS (
    SELECT FROM queue_app_queue WHERE name = {queues} AND (max_length IS NOT NULL OR max_pending_per_user IS NOT NULL)
)"""
_USER_LIMIT = "EXISTS (SELECT FROM queue_app_runtimesettings WHERE max_pending_per_user IS NOT NULL)"

# The task and its payload in one statement; a taken idempotency key, or a condition that is not met, stores neither.
_INSERT = """
WITH task AS (
    INSERT INTO queue_app_task (
        id, task_type, queue, status, priority, capabilities, "user", attempt, failures, max_retries, timeout,
        retry_delay, idempotency_key, concurrency_key, weight, created_at, run_after, queued_at
    )
    SELECT %s::uuid, %s, %s,
        CASE WHEN run_after > clock THEN 'scheduled' ELSE 'queued' END,
        %s::int2, %s::text[], %s, 0, 0, %s::int2, %s::float8, %s::float8, %s, %s, %s::int2, clock,
        run_after,
        CASE WHEN run_after > clock THEN NULL ELSE clock END
    FROM (SELECT clock_timestamp() AS clock, %s::timestamptz AS run_after) AS at
    WHERE {condition}
    {on_conflict}
    RETURNING id, created_at, queued_at IS NOT NULL AS is_queued
), payload AS (
    INSERT INTO queue_app_taskpayload (task_id, args, parameters, trace)
    SELECT id, %s::jsonb, %s::jsonb, %s::text FROM task
)
SELECT created_at, is_queued FROM task
"""
_ON_CONFLICT = 'ON CONFLICT ("user", idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING'


def insert_where(condition: str, *, with_key: bool) -> str:
    """Return the statement that stores one task under a condition; a key has its price, also where none conflicts."""
    return _INSERT.format(condition=condition, on_conflict=_ON_CONFLICT if with_key else "")


_UNLIMITED = f"%s OR NOT ({_QUEUE_LIMITS.format(queues='%s')} OR %s AND {_USER_LIMIT})"
_INSERT_WITH_KEY = insert_where(_UNLIMITED, with_key=True)
_INSERT_PLAIN = insert_where(_UNLIMITED, with_key=False)


class LimitApplies(Exception):
    """Some row limits what may be enqueued here; nothing was stored, and somebody has to count."""


def insert_one(row: TaskRow, *, admitted: bool = False) -> Stored | None:
    """Store one task; return ``None`` when its idempotency key is taken.

    Raises ``LimitApplies`` where limits are set, unless it was ``admitted`` under them. The
    question is part of the statement, so where there are none it costs no round trip, and a
    limit that was committed before holds.
    """
    spec = row.spec
    sql = _INSERT_PLAIN if spec.idempotency_key is None else _INSERT_WITH_KEY
    found = fetch_prepared((sql, values(row, admitted, spec.queue, spec.user != "")))
    if not found:
        if not admitted and (spec.idempotency_key is None or look([row])[1]):
            raise LimitApplies
        return None
    return stored_as(row, *found[0])


def values(row: TaskRow, *of_condition: Any) -> list[Any]:
    """Return the parameters of ``insert_where``."""
    spec = row.spec
    return [
        row.id,
        spec.task_type,
        spec.queue,
        spec.priority,
        list(spec.capabilities),
        spec.user,
        spec.max_retries,
        spec.timeout,
        spec.retry_delay,
        spec.idempotency_key,
        spec.concurrency_key,
        spec.weight,
        spec.run_after,
        *of_condition,
        row.args,
        row.parameters,
        trace.of_caller(),
    ]


def stored_as(row: TaskRow, created_at: datetime, is_queued: bool) -> Stored:  # noqa: FBT001 - as it was returned
    """Return the row as it was stored; what is queued is so in the instant of its creation."""
    return Stored(row, created_at, created_at if is_queued else None)


_CLOCK = f"""
SELECT clock_timestamp(), {_QUEUE_LIMITS.format(queues="ANY(%s)")} OR %s AND {_USER_LIMIT}
"""


def look(rows: Sequence[Place | TaskRow]) -> tuple[datetime, bool]:
    """Return the time, and whether some row limits what may be enqueued there."""
    queues, has_user = list({row.spec.queue for row in rows}), any(row.spec.user for row in rows)
    clock, is_limited = fetch_all(_CLOCK, [queues, has_user])[0]
    return clock, is_limited


_BY_KEY = """
SELECT t.id, t.status, t.created_at,
    t.task_type = %s AND p.args = %s::jsonb AND p.parameters = %s::jsonb
FROM queue_app_task t JOIN queue_app_taskpayload p ON p.task_id = t.id
WHERE t."user" = %s AND t.idempotency_key = %s
"""


def find_by_key(row: TaskRow) -> tuple[uuid.UUID, Status, datetime, bool] | None:
    """Return (id, status, created_at, whether it asks the same) of the task that holds the row's key."""
    found = fetch_all(_BY_KEY, [row.spec.task_type, row.args, row.parameters, row.spec.user, row.spec.idempotency_key])
    if not found:
        return None
    task_id, status, created_at, same = found[0]
    return task_id, Status(status), created_at, same


_FREE_KEY = """
UPDATE queue_app_task SET idempotency_key = NULL
WHERE "user" = %s AND idempotency_key = %s AND created_at < statement_timestamp() - make_interval(secs => %s)
RETURNING id
"""


def free_key(row: TaskRow, seconds: float) -> bool:
    """Take the row's key from a task that was created longer ago than this; return whether there was one.

    Of several callers one takes it, the others wait until that transaction has ended.
    """
    return bool(fetch_all(_FREE_KEY, [row.spec.user, row.spec.idempotency_key, seconds]))


def ensure_queue(name: str) -> None:
    """Create the queue with the defaults unless it exists."""
    if not fetch_all("SELECT 1 FROM queue_app_queue WHERE name = %s", [name]):
        fetch_all(
            "INSERT INTO queue_app_queue (name, description, paused, paused_reason, paused_by, created_at, updated_at)"
            " VALUES (%s, '', false, '', '', now(), now()) ON CONFLICT DO NOTHING RETURNING name",
            [name],
        )
