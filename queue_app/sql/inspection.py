"""Read everything about one task in one statement."""

import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_app.models import Task
from queue_app.sql.database import alias, fetch_prepared

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
