"""Store new tasks: one by a single statement, many by COPY."""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import batched, count, repeat
from operator import attrgetter
from typing import Any, Final

from queue_app.core.ids import as_digits
from queue_app.core.options import OPTIONS
from queue_app.core.records import Enqueued, TaskRow, TaskSpec
from queue_app.core.redaction import is_sealed
from queue_app.core.states import Status
from queue_app.encryption import call_of, sealed_call
from queue_app.sql.database import atomic, connection, fetch_all, fetch_prepared

#: {column: type} of the fields of a ``TaskSpec`` that are stored.
SPEC_COLUMNS: Final = {
    "task_type": "text",
    "queue": "text",
    "priority": "int2",
    **{f'"{name}"': option.kind.sql for name, option in OPTIONS.items()},
    "unique_key": "text",
    "run_after": "timestamptz",
}
_CAPABILITIES: Final = list(SPEC_COLUMNS).index('"capabilities"')
_values_of: Final = attrgetter(*(name.strip('"') for name in SPEC_COLUMNS))

# Whether a row limits submissions here, so that services.enqueue.admission has to count first.
_QUEUE_LIMITS: Final = """EXISTS (
    SELECT FROM queue_app_queue WHERE name = {queues} AND (max_length IS NOT NULL OR max_pending_per_user IS NOT NULL)
)"""
_USER_LIMIT: Final = "EXISTS (SELECT FROM queue_app_runtimesettings WHERE max_pending_per_user IS NOT NULL)"

# Stores a task and its payload, or neither if the idempotency key is taken or the condition fails.
_INSERT: Final = f"""
WITH task AS (
    INSERT INTO queue_app_task (id, {", ".join(SPEC_COLUMNS)}, status, attempt, failures, created_at, queued_at)
    SELECT spec.*, CASE WHEN run_after > clock THEN 'scheduled' ELSE 'queued' END, 0, 0,
        clock, CASE WHEN run_after > clock THEN NULL ELSE clock END
    FROM (SELECT %s::uuid AS id, {", ".join(f"%s::{kind} AS {name}" for name, kind in SPEC_COLUMNS.items())}) AS spec,
        (SELECT {{clock}} AS clock) AS now
    WHERE {{condition}}
    {{on_conflict}}
    RETURNING id, created_at, queued_at
), payload AS (
    INSERT INTO queue_app_taskpayload (task_id, args, parameters, trace, metadata)
    SELECT id, %s::jsonb, %s::jsonb, %s::text, %s::jsonb FROM task
)
SELECT created_at, queued_at FROM task
"""
_ON_CONFLICT: Final = 'ON CONFLICT ("user", idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING'


def insert_where(condition: str, *, with_key: bool, clock: str = "statement_timestamp()") -> str:
    """Return the statement that stores one task under a condition and returns (created_at, queued_at).

    It is faster without a key. The time is that at which the statement arrived, as ``clock_timestamp()`` would need a
    subquery of its own.
    """
    return _INSERT.format(condition=condition, on_conflict=_ON_CONFLICT if with_key else "", clock=clock)


@cache
def _insert(*, with_key: bool, of_user: bool, at: bool) -> str:
    """Return the statement that stores one task unless a limit applies; PostgreSQL opens each table that it names."""
    limits = f"{_QUEUE_LIMITS.format(queues='%s')}{f' OR {_USER_LIMIT}' if of_user else ''}"
    clock = {"clock": "%s::timestamptz"} if at else {}
    return insert_where(f"%s OR NOT ({limits})", with_key=with_key, **clock)


class LimitApplies(Exception):
    """Nothing was stored, because a row limits submissions here and the caller has to count first."""


def insert_one(
    row: TaskRow, trace: str | None, *, admitted: bool = False, at: datetime | None = None
) -> Enqueued | None:
    """Store one task of a trace; return ``None`` when its idempotency key is taken.

    ``at`` is the time of a task with a key, if it is not the present time.

    Raises ``LimitApplies`` if limits are set and the task was not ``admitted`` under them. The
    statement itself asks for limits, so without any it costs no round trip, and every limit
    that was committed before applies.
    """
    spec = row.spec
    params = values(row, trace, admitted, spec.queue)
    if at is not None:
        params.insert(1 + len(SPEC_COLUMNS), at)
    sql = _insert(with_key=spec.idempotency_key is not None, of_user=spec.user != "", at=at is not None)
    for created_at, queued_at in fetch_prepared((sql, params)):
        status = Status.SCHEDULED if queued_at is None else Status.QUEUED
        return Enqueued(row.id, spec, status, created_at, queued_at, sent_trace=trace)
    if not admitted and (spec.idempotency_key is None or clock_and_limits([row])[1]):
        raise LimitApplies
    return None


def values(row: TaskRow, trace: str | None, *of_condition: Any) -> list[Any]:
    """Return the parameters of ``insert_where``."""
    return [row.id, *spec_values(row.spec), *of_condition, *sealed_call(row), trace, row.metadata]


def spec_values(spec: TaskSpec) -> list[Any]:
    """Return the values of ``SPEC_COLUMNS``, with the capabilities as PostgreSQL's text of an array."""
    found = list(_values_of(spec))
    found[_CAPABILITIES] = "{" + ",".join([f'"{name}"' for name in spec.capabilities]) + "}"  # names need no escapes
    return found


_CLOCK: Final = f"""
SELECT clock_timestamp(), {_QUEUE_LIMITS.format(queues="ANY(%s)")} OR %s AND {_USER_LIMIT}
"""


def clock_and_limits(rows: Sequence[TaskRow]) -> tuple[datetime, bool]:
    """Return the time, and whether a row limits submissions of these tasks."""
    queues, has_user = list({row.spec.queue for row in rows}), any(row.spec.user for row in rows)
    clock, is_limited = fetch_all(_CLOCK, [queues, has_user])[0]
    return clock, is_limited


_BY_KEY: Final = """
SELECT t.id, t.status, t.created_at,
    t.task_type = %s AND p.args = %s::jsonb AND p.parameters = %s::jsonb, t.task_type, p.args::text
FROM queue_app_task t JOIN queue_app_taskpayload p ON p.task_id = t.id
WHERE t."user" = %s AND t.idempotency_key = %s
"""


def find_by_key(row: TaskRow) -> tuple[uuid.UUID, Status, datetime, bool] | None:
    """Return (id, status, created_at, whether it is the same call) of the task that holds the row's key."""
    found = fetch_all(_BY_KEY, [row.spec.task_type, row.args, row.parameters, row.spec.user, row.spec.idempotency_key])
    if not found:
        return None
    task_id, status, created_at, same, task_type, args = found[0]
    if is_sealed(args) and task_type == row.spec.task_type:
        same = call_of(task_type, args, "{}") == (json.loads(row.args), json.loads(row.parameters))
    return task_id, Status(status), created_at, same


_FREE_KEY: Final = """
UPDATE queue_app_task SET idempotency_key = NULL
WHERE "user" = %s AND idempotency_key = %s AND created_at < statement_timestamp() - make_interval(secs => %s)
RETURNING id
"""


def free_key(row: TaskRow, seconds: float) -> bool:
    """Take the row's key from a task created more than ``seconds`` ago; return whether there was one.

    Of several callers one takes the key; the others wait until its transaction has ended.
    """
    return bool(fetch_all(_FREE_KEY, [row.spec.user, row.spec.idempotency_key, seconds]))


def ensure_queue(name: str) -> bool:
    """Create the queue with the defaults unless it exists; return whether it is new."""
    if fetch_all("SELECT 1 FROM queue_app_queue WHERE name = %s", [name]):
        return False
    sql = (
        "INSERT INTO queue_app_queue (name, description, paused, paused_reason, paused_by, created_at, updated_at)"
        " VALUES (%s, '', false, '', '', now(), now()) ON CONFLICT DO NOTHING RETURNING name"
    )
    return bool(fetch_all(sql, [name]))


# Store many new tasks by COPY.

_COPY_TASK: Final = f"""
COPY queue_app_task ({", ".join(SPEC_COLUMNS)}, attempt, failures, created_at, id, status, queued_at) FROM STDIN
"""
PAYLOAD_COLUMNS: Final = "task_id, args, parameters"
#: Time between two tasks that are queued together and must keep their order: the resolution of a score.
STEP: Final = timedelta(microseconds=8)
#: Rows per message to the server, which stores them while the client writes the next message.
_COPY_CHUNK: Final = 200


def insert_many(rows: Sequence[TaskRow], trace: str | None, *, admitted: bool = False) -> list[Enqueued]:
    """Store many tasks without idempotency keys, all or nothing, in order, like ``insert_calls``."""
    return insert_calls(rows, trace, lambda: map(sealed_call, rows), lambda it: it, admitted=admitted)


def insert_calls[T](
    rows: Sequence[TaskRow],
    trace: str | None,
    payloads: Callable[[], Iterable[tuple[str, str]]],
    make: Callable[[list[Enqueued]], T],
    *,
    admitted: bool = False,
) -> T:
    """Store many tasks of a trace without idempotency keys, all or nothing, in order; return the result of ``make``.

    The server works while the caller does: ``payloads``, which returns (args, parameters) of each task as JSON text, is
    called after the tasks are sent, and ``make`` after the payloads are. If one of them raises, nothing is stored;
    neither may use the database. Raises ``LimitApplies`` as ``insert_one`` does.

    Tasks of one lane share the instant, and their ids keep the order. Over several lanes each task
    is queued 8 µs after the one before: the resolution of a score. The COPY itself takes longer
    per row, so tasks that this caller enqueues later never come before them; tasks of other
    callers may come in between.
    """
    if not rows:
        return make([])
    with atomic():
        clock, is_limited = clock_and_limits(rows)
        if is_limited and not admitted:
            raise LimitApplies
        one_lane = len({row.spec.lane for row in rows}) == 1
        step = timedelta(0) if one_lane else STEP
        stored = [
            Enqueued(row.id, row.spec, Status.SCHEDULED, clock, None, True, None, trace)
            if row.spec.run_after is not None and row.spec.run_after > clock
            else Enqueued(row.id, row.spec, Status.QUEUED, clock, at, True, None, trace)
            for row, at in zip(rows, instants(clock, step), strict=False)
        ]
        ids = as_digits([row.id for row in rows])
        # Django's cursors do not translate errors of the driver in COPY.
        with connection().wrap_database_errors, connection().cursor() as cursor:
            with cursor.copy(_COPY_TASK) as copy:
                for text in in_chunks(_task_lines(ids, stored, clock)):
                    copy.write(text)
                more, ends = payload_extras(rows, trace)
                texts = list(in_chunks(payload_lines(ids, payloads(), ends)))
            with cursor.copy(f"COPY queue_app_taskpayload ({PAYLOAD_COLUMNS}{more}) FROM STDIN") as copy:
                for text in texts:
                    copy.write(text)
                made = make(stored)
    return made


def instants(clock: datetime, step: timedelta) -> Iterator[datetime]:
    """Yield the same instant for ever, or one that advances by ``step``."""
    if not step:
        yield from repeat(clock)
    for position in count():
        yield clock + position * step


def in_chunks(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a COPY, joined for the messages that carry them."""
    return ("".join(chunk) for chunk in batched(lines, _COPY_CHUNK))


def _task_lines(ids: Sequence[str], stored: Sequence[Enqueued], clock: datetime) -> Iterator[str]:
    """Yield the lines of the COPY; the columns that all calls of one task share are written once."""
    shared: dict[int, str] = {}
    last: datetime | None = clock
    waiting = f"\t{Status.QUEUED.value}\t{field(last)}\n"
    for digits, item in zip(ids, stored, strict=True):
        spec, queued_at = item.spec, item.queued_at
        prefix = shared.get(id(spec))
        if prefix is None:
            prefix = shared[id(spec)] = "\t".join(map(field, (*spec_values(spec), 0, 0, clock))) + "\t"
        if queued_at is None:
            yield f"{prefix}{digits}\t{Status.SCHEDULED.value}\t{field(None)}\n"
            continue
        if queued_at is not last:
            last, waiting = queued_at, f"\t{Status.QUEUED.value}\t{field(queued_at)}\n"
        yield prefix + digits + waiting


def payload_extras(rows: Sequence[TaskRow], traceparent: str | None) -> tuple[str, Iterable[str]]:
    """Return the names of the columns that only some payloads have, and the end of each line with their values."""
    if traceparent is None and all(row.metadata is None for row in rows):
        return "", repeat("\n")
    parent = field(traceparent)
    return ", trace, metadata", (f"\t{parent}\t{field(row.metadata)}\n" for row in rows)


def payload_lines(ids: Sequence[str], payloads: Iterable[tuple[str, str]], ends: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the COPY of payloads."""
    for digits, (args, parameters), end in zip(ids, payloads, ends, strict=False):
        yield f"{digits}\t{_quote(args)}\t{_quote(parameters)}{end}"


def field(value: Any) -> str:
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
