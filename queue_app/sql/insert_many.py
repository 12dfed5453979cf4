"""Store many new tasks by COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import batched, count, repeat
from typing import Any

from queue_app.core import trace
from queue_app.core.ids import as_digits
from queue_app.core.states import Status
from queue_app.sql.database import atomic, connection
from queue_app.sql.insert import LimitApplies, Place, Stored, TaskRow, TaskSpec, look

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


def insert_many(rows: Sequence[TaskRow], *, admitted: bool = False) -> list[Stored]:
    """Store many tasks without idempotency keys, all or nothing, in order; as ``insert_places``."""
    payloads = ((args, parameters) for _id, _spec, args, parameters in rows)
    return insert_places(rows, lambda: payloads, lambda stored: stored, admitted=admitted)


def insert_places[T](
    rows: Sequence[Place | TaskRow],
    payloads: Callable[[], Iterable[tuple[str, str]]],
    make: Callable[[list[Stored]], T],
    *,
    admitted: bool = False,
) -> T:
    """Store many tasks without idempotency keys, all or nothing, in order; return what ``make`` makes of them.

    The server works while the caller does: ``payloads`` is asked for (args, parameters) of each, as
    JSON text, once the tasks are under way, and ``make`` once the payloads are. What either raises
    stores nothing; neither may use the database. Raises ``LimitApplies`` as ``insert_one`` does.

    Tasks of one lane share the instant, their ids keep the order. Over several lanes each
    is queued 8 µs after the one before: the step that a score can still tell apart. The
    COPY itself takes longer per row, so nothing that this caller enqueues later comes
    before them; what others enqueue meanwhile may come in between.
    """
    if not rows:
        return make([])
    with atomic():
        clock, is_limited = look(rows)
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
                made = make(stored)
    return made


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
