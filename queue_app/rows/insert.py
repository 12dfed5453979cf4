"""Store new tasks: one by one in a single statement, many by COPY."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import batched, count, repeat
from typing import Any, NamedTuple

from queue_app.core import trace
from queue_app.core.ids import as_digits
from queue_app.core.states import Status
from queue_app.rows.database import atomic, connection, fetch_all, fetch_prepared


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

_COPY_TASK = """
COPY queue_app_task (
    task_type, queue, priority, capabilities, "user", attempt, failures, max_retries, timeout, retry_delay,
    concurrency_key, weight, run_after, created_at, id, status, queued_at
) FROM STDIN
"""
_COPY_PAYLOAD = "COPY queue_app_taskpayload (task_id, args, parameters) FROM STDIN"
_COPY_TRACED_PAYLOAD = "COPY queue_app_taskpayload (task_id, args, parameters, trace) FROM STDIN"
#: Rows that go to the server in one message: it stores them while the next are written out.
_COPY_CHUNK = 200


class LimitApplies(Exception):
    """Some row limits what may be enqueued here; nothing was stored, and somebody has to count."""


def insert_one(row: TaskRow, *, admitted: bool = False) -> Stored | None:
    """Store one task; return ``None`` when its idempotency key is taken.

    Raises ``LimitApplies`` where limits are set, unless it was ``admitted`` under them. The
    question is part of the statement, so where there are none it costs no round trip, and a
    limit that was committed before holds.
    """
    spec = row.spec
    found = fetch_prepared(
        _INSERT_PLAIN if spec.idempotency_key is None else _INSERT_WITH_KEY,
        values(row, admitted, spec.queue, spec.user != ""),
    )
    if not found:
        if not admitted and (spec.idempotency_key is None or _look([row])[1]):
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


def _look(rows: Sequence[Place | TaskRow]) -> tuple[datetime, bool]:
    """Return the time, and whether some row limits what may be enqueued there."""
    queues, has_user = list({row.spec.queue for row in rows}), any(row.spec.user for row in rows)
    clock, is_limited = fetch_all(_CLOCK, [queues, has_user])[0]
    return clock, is_limited


def insert_many(rows: Sequence[TaskRow], *, admitted: bool = False) -> list[Stored]:
    """Store many tasks without idempotency keys, all or nothing, in order; as ``insert_places``."""
    return insert_places(rows, lambda: ((args, parameters) for _id, _spec, args, parameters in rows), admitted=admitted)


def insert_places(
    rows: Sequence[Place | TaskRow], payloads: Callable[[], Iterable[tuple[str, str]]], *, admitted: bool = False
) -> list[Stored]:
    """Store many tasks without idempotency keys, all or nothing, in order; ``LimitApplies`` as ``insert_one``.

    ``payloads`` returns (args, parameters) of each as JSON text. It is asked once the tasks are under way
    to the server, which stores them while the payloads are written out; what it raises stores
    nothing.

    Tasks of one lane share the instant, their ids keep the order. Over several lanes each
    is queued 8 µs after the one before: the step that a score can still tell apart. The
    COPY itself takes longer per row, so nothing that this caller enqueues later comes
    before them; what others enqueue meanwhile may come in between.
    """
    if not rows:
        return []
    with atomic():
        clock, is_limited = _look(rows)
        if is_limited and not admitted:
            raise LimitApplies
        one_lane = len({row.spec.lane for row in rows}) == 1
        step = timedelta(0) if one_lane else timedelta(microseconds=8)
        stored = [
            Stored(row, clock, None if _is_later(row.spec.run_after, clock) else at)
            for row, at in zip(rows, _instants(clock, step), strict=False)
        ]
        ids = as_digits([row.id for row in rows])
        with connection().cursor() as cursor:
            traceparent = trace.of_caller()
            with cursor.copy(_COPY_TASK) as copy:
                for text in _in_chunks(_task_lines(ids, stored, clock)):
                    copy.write(text)
                texts = list(_in_chunks(_payload_lines(ids, payloads(), traceparent)))
            with cursor.copy(_COPY_PAYLOAD if traceparent is None else _COPY_TRACED_PAYLOAD) as copy:
                for text in texts:
                    copy.write(text)
    return stored


def _instants(clock: datetime, step: timedelta) -> Iterator[datetime]:
    """Yield the same instant for ever, or one that advances by ``step``."""
    if not step:
        yield from repeat(clock)
    for position in count():
        yield clock + position * step


def _is_later(run_after: datetime | None, clock: datetime) -> bool:
    return run_after is not None and run_after > clock


def _in_chunks(lines: Iterable[str]) -> Iterator[str]:
    return ("".join(chunk) for chunk in batched(lines, _COPY_CHUNK))


def _task_lines(ids: Sequence[str], stored: Sequence[Stored], clock: datetime) -> Iterator[str]:
    """Yield the lines of the COPY; what the calls of one task share is written out once."""
    shared: dict[int, str] = {}
    last: datetime | None = clock
    waiting = f"\t{Status.QUEUED.value}\t{_field(last)}\n"
    for digits, (row, _created_at, queued_at) in zip(ids, stored, strict=True):
        prefix = shared.get(id(row.spec))
        if prefix is None:
            prefix = shared[id(row.spec)] = "\t".join(map(_field, (*_spec_fields(row.spec), clock))) + "\t"
        if queued_at is None:
            yield f"{prefix}{digits}\t{Status.SCHEDULED.value}\t{_field(None)}\n"
            continue
        if queued_at is not last:
            last, waiting = queued_at, f"\t{Status.QUEUED.value}\t{_field(queued_at)}\n"
        yield prefix + digits + waiting


def _payload_lines(ids: Sequence[str], payloads: Iterable[tuple[str, str]], traceparent: str | None) -> Iterator[str]:
    end = "\n" if traceparent is None else f"\t{traceparent}\n"
    for digits, (args, parameters) in zip(ids, payloads, strict=True):
        yield f"{digits}\t{_quote(args)}\t{_quote(parameters)}{end}"


def _spec_fields(spec: TaskSpec) -> tuple[Any, ...]:
    return (
        spec.task_type,
        spec.queue,
        spec.priority,
        "{" + ",".join(f'"{name}"' for name in spec.capabilities) + "}",  # checked names: nothing in them to escape
        spec.user,
        0,
        0,
        spec.max_retries,
        spec.timeout,
        spec.retry_delay,
        spec.concurrency_key,
        spec.weight,
        spec.run_after,
    )


def _field(value: Any) -> str:
    """Return a value in PostgreSQL's text format of COPY."""
    if value is None:
        return r"\N"
    return _quote(value) if isinstance(value, str) else str(value)


def _quote(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if "\n" in text or "\r" in text or "\t" in text:
        text = text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return text


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
