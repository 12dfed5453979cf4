"""Find tasks by the end of their id, and failed attempts by words of their errors, or any part of them."""

import json
import re
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db.models import BooleanField, F, Func
from django.db.models.expressions import RawSQL

from queue_app.models import Task
from queue_app.models.task import INDEXED_CHARACTERS
from queue_app.sql.database import alias, fetch_all, fetch_column, fetch_prepared

#: Number of newest tasks among which the end of an id is looked for.
IDS_READ: Final = 1_000_000
#: Number of newest failed attempts in whose errors a part of a text is looked for.
ERRORS_READ: Final = 50_000
MAX_WORDS: Final = 8
#: The expression of the index ``taskqueue_error_words``.
_WORDS: Final = (
    "to_tsvector('simple', regexp_replace((exception_class || ' ' || left(message, "
    f"{INDEXED_CHARACTERS})), '[^[:alnum:]]+', ' ', 'g'))"
)
_WORD: Final = re.compile(r"[^\W_]+")


class Failed(NamedTuple):
    """A failed attempt whose error has the words."""

    task_id: uuid.UUID
    task_type: str
    exception_class: str
    message: str


#: The task types of ended tasks, one probe of the index ``taskqueue_by_type`` each.
_TYPES: Final = """
WITH RECURSIVE types AS (
    SELECT min(task_type) AS name FROM queue_app_task WHERE finished_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(task_type) FROM queue_app_task WHERE finished_at IS NOT NULL AND task_type > types.name)
    FROM types WHERE types.name IS NOT NULL
) SELECT name FROM types WHERE name IS NOT NULL LIMIT 1000
"""


def types_of_ended() -> list[str]:
    """Return the types of ended tasks, including those whose code is gone."""
    return fetch_column(_TYPES)


def split(text: str) -> list[str]:
    """Return the words of a text as the index has them."""
    return _WORD.findall(text)


def words_of(text: str) -> list[str]:
    """Return the words to look for, at most ``MAX_WORDS``."""
    return [word.lower() for word in split(text)[:MAX_WORDS]]


def failed_with(words: list[str], limit: int) -> list[Failed]:
    """Return the newest failed attempts in whose class or message some word begins with each of ``words``."""
    query = " & ".join(f"'{word}':*" for word in words)
    found = fetch_all(
        f"SELECT a.task_id, t.task_type, a.exception_class, left(a.message, {INDEXED_CHARACTERS})"
        " FROM (SELECT task_id, exception_class, message FROM queue_app_taskattempt"
        f" WHERE {_WORDS} @@ to_tsquery('simple', %s) ORDER BY task_id DESC LIMIT %s) AS a"
        " JOIN queue_app_task AS t ON t.id = a.task_id",
        [query, limit],
    )
    return [Failed(*row) for row in found]


#: Django's ``icontains`` compares ``UPPER(message)``. Of ``message`` alone PostgreSQL knows how common a part of it is.
_HAS: Final = "message ILIKE %s OR exception_class ILIKE %s"
# The array is made once; each of its ids is one probe of the primary key, in order. A join would read all tasks.
_PARTS: Final = f"""
queue_app_task.id = ANY(ARRAY(
    SELECT task_id FROM (
        SELECT task_id, exception_class, message FROM queue_app_taskattempt ORDER BY task_id DESC LIMIT %s
    ) AS newest WHERE {_HAS}
))
"""


def newest_with_error(part: str) -> RawSQL:
    """Return the condition that a text is a part of a task's errors, among the newest ``ERRORS_READ`` failed attempts.

    Case does not matter.
    """
    return RawSQL(_PARTS, [ERRORS_READ, *_patterns(part)], BooleanField())  # nosec B611  # noqa: S611 - no value is in the text


def has_error(part: str) -> RawSQL:
    """Return the condition on failed attempts that a text is a part of the error; case does not matter."""
    return RawSQL(_HAS, _patterns(part), BooleanField())  # nosec B611  # noqa: S611 - no value is in the text


def _patterns(part: str) -> list[str]:
    return ["%{}%".format(re.sub(r"([%_\\])", r"\\\1", part))] * 2


#: Number of newest tasks among whose positional arguments a value is looked for: no index has these.
ARGUMENTS_READ: Final = 50_000
type Place = tuple[str, int]  # task type, position
_AT_PLACE: Final = f"""
SELECT p.task_id FROM (
    SELECT task_id, args FROM queue_app_taskpayload ORDER BY task_id DESC LIMIT {ARGUMENTS_READ}
) AS p JOIN queue_app_task AS t ON t.id = p.task_id
    JOIN unnest(%s::text[], %s::int[]) AS known (task_type, place) ON known.task_type = t.task_type
WHERE p.args <> '[]' AND p.args -> known.place @> ANY(%s::jsonb[])
ORDER BY p.task_id DESC
"""


def at_places(places: Sequence[Place], values: Sequence[Any]) -> Func:
    """Return the condition on payloads, among the newest, that one of the values is at one of the places.

    The array is made once, and each of its ids is one probe of the primary key, beside the index of parameters.
    """
    found = RawSQL(f"ARRAY({_AT_PLACE})", _at(places, values))  # nosec B611  # noqa: S611 - no value is in the text
    return Func(F("task_id"), found, template="%(expressions)s", arg_joiner=" = ANY ", output_field=BooleanField())


def tasks_at_places(places: Sequence[Place], values: Sequence[Any], limit: int) -> list[uuid.UUID]:
    """Return the newest of the tasks that ``at_places`` means."""
    return fetch_column(f"{_AT_PLACE} LIMIT %s", [*_at(places, values), limit])


def _at(places: Sequence[Place], values: Sequence[Any]) -> list[Any]:
    return [[name for name, _place in places], [place for _name, place in places], [*map(json.dumps, values)]]


def has_older_errors() -> bool:
    """Return whether there are more failed attempts than ``newest_with_error`` reads."""
    return bool(fetch_all("SELECT 1 FROM queue_app_taskattempt OFFSET %s LIMIT 1", [ERRORS_READ]))


def ids_that_end_in(digits: str, limit: int) -> list[uuid.UUID]:
    """Return the tasks, among the newest ``IDS_READ``, whose id ends in these hexadecimal digits."""
    for read in (IDS_READ // 20, IDS_READ):  # most are young
        found = fetch_all(
            "SELECT id FROM (SELECT id FROM queue_app_task ORDER BY id DESC LIMIT %s) AS newest"
            " WHERE substring(uuid_send(id) FROM %s) = %s AND encode(uuid_send(id), 'hex') LIKE %s LIMIT %s",
            [read, 17 - len(digits) // 2, bytes.fromhex(digits[len(digits) % 2 :]), f"%{digits}", limit],
        )
        if found:
            break
    return [task_id for (task_id,) in found]


# Read everything about one task in one statement.

_COLUMNS: Final = [field.column for field in Task._meta.concrete_fields]  # noqa: SLF001 - Django documents it
_NAMES: Final = [field.attname for field in Task._meta.concrete_fields]  # noqa: SLF001 - as above
_SELECTED: Final = ", ".join(f't."{column}"' for column in _COLUMNS)

_INSPECT: Final = f"""
SELECT {_SELECTED}, clock_timestamp(), payload.args::text, payload.parameters::text, payload.metadata::text,
    payload.trace, result.value::text, queue.timeout_seconds, queue.max_retries, queue.order,
    (SELECT jsonb_agg(jsonb_build_array(priority, max_retries, timeout_seconds, promote_after_seconds))::text
        FROM queue_app_prioritypolicy),
    EXISTS (SELECT 1 FROM queue_app_taskattempt AS attempt WHERE attempt.task_id = t.id),
    EXISTS (SELECT 1 FROM queue_app_stepresult AS step WHERE step.task_id = t.id)
        OR EXISTS (SELECT 1 FROM queue_app_signal AS s WHERE s.task_id = t.id)
FROM queue_app_task AS t
    LEFT JOIN queue_app_taskpayload AS payload ON payload.task_id = t.id
    LEFT JOIN queue_app_taskresult AS result ON result.task_id = t.id
    LEFT JOIN queue_app_queue AS queue ON queue.name = t.queue
WHERE t.id = %s AND (%s::text IS NULL OR t."user" = %s::text)
"""


_TRACES: Final = "SELECT task_id, trace FROM queue_app_taskpayload WHERE task_id = ANY(%s) AND trace IS NOT NULL"


class BandPolicy(NamedTuple):
    """The fields of ``PriorityPolicy`` that options come from, without the cost of a model."""

    max_retries: int
    timeout_seconds: float
    promote_after_seconds: float | None


class QueueOptions(NamedTuple):
    """The fields of ``Queue`` that options come from."""

    timeout_seconds: float | None
    max_retries: int | None
    order: str | None


class Inspected(NamedTuple):
    """A task with its payload and result, and the options of its queue and of the bands, at one instant."""

    task: Task
    at: datetime
    args: list[Any]
    parameters: dict[str, Any]
    trace: str | None
    metadata: dict[str, Any] | None  # what hooks added
    result: Any
    queue: QueueOptions
    policies: dict[int, BandPolicy]
    has_failed: bool  # whether a failed attempt is recorded
    has_steps: bool  # or signals


def inspect(task_id: uuid.UUID, user: str | None) -> Inspected | None:
    """Return a task, if it belongs to ``user`` (``None``: to any); ``None`` when there is none."""
    found = fetch_prepared((_INSPECT, [task_id, user, user]))
    if not found:
        return None
    values, rest = found[0][: len(_NAMES)], found[0][len(_NAMES) :]
    at, args, parameters, metadata, traceparent, result, *state = rest
    *of_queue, policies, has_failed, has_steps = state
    return Inspected(
        task=Task.from_db(alias(), _NAMES, values),
        at=at,
        args=json.loads(args) if args else [],
        parameters=json.loads(parameters) if parameters else {},
        trace=traceparent,
        metadata=json.loads(metadata) if metadata else None,
        result=None if result is None else json.loads(result),
        queue=QueueOptions(*of_queue),
        policies={band: BandPolicy(*rest) for band, *rest in json.loads(policies or "[]")},
        has_failed=has_failed,
        has_steps=has_steps,
    )


def traces(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, str]:
    """Return the trace contexts that the callers of these tasks have sent."""
    return dict(fetch_prepared((_TRACES, [list(ids)]))) if ids else {}
