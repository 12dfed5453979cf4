"""Store many new tasks by COPY."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import batched, count, repeat
from typing import Any, Final

from queue_app import tracing
from queue_app.core.ids import as_digits
from queue_app.core.records import Enqueued, TaskRow
from queue_app.core.states import Status
from queue_app.encryption import sealed_call
from queue_app.sql.database import atomic, connection
from queue_app.sql.insert import SPEC_COLUMNS, LimitApplies, clock_and_limits, spec_values

_COPY_TASK: Final = f"""
COPY queue_app_task ({", ".join(SPEC_COLUMNS)}, attempt, failures, created_at, id, status, queued_at) FROM STDIN
"""
PAYLOAD_COLUMNS: Final = "task_id, args, parameters"
#: Time between two tasks that are queued together and must keep their order: the resolution of a score.
STEP: Final = timedelta(microseconds=8)
#: Rows per message to the server, which stores them while the client writes the next message.
_COPY_CHUNK: Final = 200


def insert_many(rows: Sequence[TaskRow], *, admitted: bool = False) -> list[Enqueued]:
    """Store many tasks without idempotency keys, all or nothing, in order, like ``insert_calls``."""
    return insert_calls(rows, lambda: map(sealed_call, rows), lambda it: it, admitted=admitted)


def insert_calls[T](
    rows: Sequence[TaskRow],
    payloads: Callable[[], Iterable[tuple[str, str]]],
    make: Callable[[list[Enqueued]], T],
    *,
    admitted: bool = False,
) -> T:
    """Store many tasks without idempotency keys, all or nothing, in order; return the result of ``make``.

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
        sent = tracing.of_caller()
        stored = [
            Enqueued(row.id, row.spec, Status.SCHEDULED, clock, None, True, None, sent)
            if row.spec.run_after is not None and row.spec.run_after > clock
            else Enqueued(row.id, row.spec, Status.QUEUED, clock, at, True, None, sent)
            for row, at in zip(rows, instants(clock, step), strict=False)
        ]
        ids = as_digits([row.id for row in rows])
        # Django's cursors do not translate errors of the driver in COPY.
        with connection().wrap_database_errors, connection().cursor() as cursor:
            with cursor.copy(_COPY_TASK) as copy:
                for text in in_chunks(_task_lines(ids, stored, clock)):
                    copy.write(text)
                more, ends = payload_extras(rows, sent)
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
