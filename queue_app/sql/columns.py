"""The columns of a task (table alias ``t``) from which statements are composed, in the order of the records' fields."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, Final

from queue_app.core.records import CLAIMED_FIELDS, ClaimedTask, Returned, TaskRef
from queue_app.core.states import Status
from queue_app.sql.database import columns_of


def _of(names: Iterable[str], **expressions: str) -> str:
    return ", ".join(expressions.get(name, f't."{name}"') for name in names)


def effective(option: str, policy: str, default: int) -> str:
    """Return an option of a task as an expression: the task's own value, else the queue's, else the band's.

    The subqueries only run if the task has no value of its own, and PostgreSQL plans them faster than joins.
    """
    return (
        f"COALESCE(t.{option}, (SELECT {policy} FROM queue_app_queue WHERE name = t.queue),"
        f" (SELECT {policy} FROM queue_app_prioritypolicy WHERE priority = t.priority), {default})"
    )


def cap(table: str = "") -> str:
    """Return the limit of a row that is in force as an expression, as ``models.limits.Capped.cap``."""
    at = f"{table}." if table else ""
    return (
        f"CASE WHEN {at}adaptive = '' THEN {at}max_concurrent"
        f" ELSE GREATEST({at}min_concurrent, LEAST({at}current_concurrent, {at}max_concurrent)) END"
    )


#: For ``TaskRef.from_row``.
REF: Final = _of(field.name for field in fields(TaskRef))
#: For ``core.limits.lane_name``.
LANE: Final = 't.queue, t.task_type, t.capabilities, t."user", t.concurrency_key, t.weight'

#: For ``returned``.
RETURNED: Final = f"t.status, COALESCE(t.leased_at, 0), {REF}"

_OPTIONS: Final = {
    "leased_at": "COALESCE(t.leased_at, 0)",
    "timeout": "EXTRACT(EPOCH FROM t.deadline - t.started_at)::float8",
    "max_retries": effective("max_retries", "max_retries", 3),
    "start_by": "NULL::float8",  # of this process only
}
#: For ``ClaimedTask.from_row``, with the table ``payload``.
CLAIMED: Final = _of(
    CLAIMED_FIELDS,
    **_OPTIONS,
    args="payload.args",
    parameters="payload.parameters",
    trace="payload.trace",
    metadata="payload.metadata",
)
#: The caller's trace context and the metadata, without the table ``payload``.
TRACE: Final = "(SELECT trace FROM queue_app_taskpayload WHERE task_id = t.id)"
METADATA: Final = "(SELECT metadata::text FROM queue_app_taskpayload WHERE task_id = t.id)"
#: For ``ClaimedTask.from_row`` where the payload does not matter.
CLAIMED_WITHOUT_PAYLOAD: Final = _of(
    CLAIMED_FIELDS, **_OPTIONS, args="'[]'", parameters="'{}'", trace=TRACE, metadata=METADATA
)

#: Types of the columns of ``fence``.
FENCE: Final = "%s::uuid[], %s::int[], %s::uuid[], %s::bigint[]"
#: Condition that the row ``t`` names the grant ``v`` (id, attempt, worker_id, leased_at). A remote worker may leave the
#: stamp out (0).
GRANTED: Final = (
    "t.id = v.id AND t.attempt = v.attempt AND t.worker_id = v.worker_id AND v.leased_at IN (0, t.leased_at)"
)

INSERT_ATTEMPTS: Final = """INSERT INTO queue_app_taskattempt
        (task_id, attempt, worker_id, started_at, finished_at, exception_class, message, traceback)"""
INSERT_DEAD_LETTERS: Final = """INSERT INTO queue_app_deadletter
        (id, task_id, task_type, queue, priority, "user", reason, attempts, exception_class, message, died_at,
         expires_at, replayed_by, fingerprint)"""


def fence(tasks: Sequence[ClaimedTask]) -> list[list[Any]]:
    """Return the columns of the grants that workers hold: id, attempt, worker and stamp."""
    rows = [(task.id, task.attempt, task.worker_id, task.leased_at) for task in tasks]
    return columns_of(rows, 4)


def returned(rows: Iterable[Sequence[Any]]) -> list[Returned]:
    """Return the records of rows with the columns ``RETURNED``."""
    return [Returned(Status(status), leased_at, TaskRef.from_row(row)) for status, leased_at, *row in rows]
