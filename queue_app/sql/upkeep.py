"""Which jobs have work; delete rows past their retention in small batches, ended workflows in parts."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from queue_app.core import rooms
from queue_app.core.ids import CLOCKS_DIFFER, first_at
from queue_app.sql import doctor, waiting, workers
from queue_app.sql.database import BY_KEYS_ONLY, execute, fetch_all, fetch_column, fetch_prepared, fetch_value

_AGO: Final = "statement_timestamp() - make_interval(secs => %s)"
# Each kind of end is read along an index, up to its own retention, so a run reads the tasks that it deletes and not
# those kept for longer. The index for successes also holds failures; a run reads past kept failures, from `after` on.
COMPLETED: Final = """
    status = 'completed' AND workflow_id IS NULL AND finished_at >= COALESCE(%(after)s::timestamptz, '-infinity')
    AND finished_at < statement_timestamp() - make_interval(secs => %(seconds)s)
"""
# A task stays while its dead letter can be replayed, even past the retention of failures.
UNSUCCESSFUL: Final = """
    status IN ('cancelled', 'dead_letter', 'expired', 'failed') AND workflow_id IS NULL
    AND finished_at >= COALESCE(%(after)s::timestamptz, '-infinity')
    AND finished_at < statement_timestamp() - make_interval(secs => %(seconds)s)
    AND (status <> 'dead_letter' OR NOT EXISTS (
        SELECT 1 FROM queue_app_deadletter AS letter
        WHERE letter.task_id = queue_app_task.id AND letter.replayed_at IS NULL AND letter.discarded_at IS NULL))
"""
# A task also stays while its idempotency key is valid.
_UNKEYED: Final = "(idempotency_key IS NULL OR created_at < statement_timestamp() - make_interval(secs => %(key)s))"
# The same statement deletes the children, because they have no foreign key that would do it. It also adds what it
# deletes to the totals of the queues, so that these count every task that was ever stored.
PURGE: Final = """
WITH doomed AS (
    SELECT id, queue, status FROM queue_app_task WHERE {which} AND {unkeyed}
    ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), payloads AS (DELETE FROM queue_app_taskpayload USING doomed WHERE task_id = doomed.id),
results AS (DELETE FROM queue_app_taskresult USING doomed WHERE task_id = doomed.id),
attempts AS (DELETE FROM queue_app_taskattempt USING doomed WHERE task_id = doomed.id),
progress AS (DELETE FROM queue_app_taskprogress USING doomed WHERE task_id = doomed.id),
logs AS (DELETE FROM queue_app_tasklog USING doomed WHERE task_id = doomed.id),
steps AS (DELETE FROM queue_app_stepresult USING doomed WHERE task_id = doomed.id),
signals AS (DELETE FROM queue_app_signal USING doomed WHERE task_id = doomed.id),
counted AS (
    SELECT queue, count(*) AS stored, count(*) FILTER (WHERE status = 'completed') AS done FROM doomed GROUP BY queue
), totals AS (
    INSERT INTO queue_app_maintenancejob AS job (name, seconds, done, error, progress)
    SELECT 'deleted', 0, 0, '', jsonb_object_agg(queue, jsonb_build_array(stored, done)) FROM counted
    HAVING count(*) > 0
    ON CONFLICT (name) DO UPDATE SET progress = job.progress || (
        SELECT jsonb_object_agg(queue, jsonb_build_array(
            stored + COALESCE((job.progress -> queue ->> 0)::bigint, 0),
            done + COALESCE((job.progress -> queue ->> 1)::bigint, 0))) FROM counted)
)
DELETE FROM queue_app_task AS t USING doomed WHERE t.id = doomed.id RETURNING t.finished_at
"""

#: Deletes ended tasks by their ids, with their dead letters.
_DELETE_ENDED: Final = PURGE.replace(
    "WHERE {which} AND {unkeyed}\n    ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED",
    "WHERE id = ANY(%(ids)s) AND finished_at IS NOT NULL AND workflow_id IS NULL ORDER BY id FOR UPDATE",
).replace(
    "DELETE FROM queue_app_task AS t USING doomed WHERE t.id = doomed.id RETURNING t.finished_at",
    ", letters AS (DELETE FROM queue_app_deadletter USING doomed WHERE task_id = doomed.id)\n"
    "DELETE FROM queue_app_task AS t USING doomed WHERE t.id = doomed.id RETURNING t.id",
)

_COUNTS: Final = """
SELECT queue, sum(enqueued)::int, sum(completed)::int, sum(failed)::int FROM (
    SELECT queue, 1 AS enqueued, 0 AS completed, 0 AS failed FROM queue_app_task
    WHERE id >= %(first_id)s AND created_at >= %(since)s AND created_at < %(until)s
    UNION ALL
    SELECT queue, 0, (status = 'completed')::int, (status IN ('failed', 'dead_letter'))::int FROM queue_app_task
    WHERE finished_at >= %(since)s AND finished_at < %(until)s
) AS events GROUP BY queue
"""

# Times in the queue and run times of ended tasks. A task that never started has neither.
_PERCENTILES: Final = """
SELECT queue, percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY waited),
    percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY ran)
FROM (
    SELECT queue, GREATEST(0, EXTRACT(EPOCH FROM started_at - queued_at))::float8 AS waited,
        GREATEST(0, EXTRACT(EPOCH FROM finished_at - started_at))::float8 AS ran
    FROM queue_app_task
    WHERE finished_at >= %s AND finished_at < %s AND started_at IS NOT NULL AND queued_at IS NOT NULL
) AS ended GROUP BY queue
"""


def percentiles(since: datetime, until: datetime) -> dict[str, dict[str, float]]:
    """Return {queue: {wait_p50, …, run_p99}} in seconds, of the tasks that ended between the two times."""
    names = [f"{what}_p{share}" for what in ("wait", "run") for share in (50, 95, 99)]
    found = fetch_all(_PERCENTILES, [since, until])
    return {queue: dict(zip(names, [*waited, *ran], strict=True)) for queue, waited, ran in found}


def count_purgeable(success_seconds: float, failure_seconds: float, key_seconds: float) -> int:
    """Return how many tasks are past their retention now."""
    count = 0
    for which, seconds in ((COMPLETED, success_seconds), (UNSUCCESSFUL, failure_seconds)):
        params = {"seconds": seconds, "key": key_seconds, "after": None}
        count += fetch_value(f"SELECT count(*) FROM queue_app_task WHERE {which} AND {_UNKEYED}", params)
    return count


def purge_tasks(
    kind: str, seconds: float, key_seconds: float, limit: int, after: datetime | None = None
) -> list[datetime]:
    """Delete at most ``limit`` tasks of a kind past their retention, oldest first; return when they ended.

    A task with an idempotency key stays for at least ``key_seconds`` after its creation.
    Tasks that ended before ``after`` are not read.
    """
    params = {"seconds": seconds, "key": key_seconds, "limit": limit, "after": after}
    return fetch_column(PURGE.format(which=kind, unkeyed=_UNKEYED), params)


_TOTALS: Final = """
WITH deleted AS (SELECT progress -> %(queue)s AS counts FROM queue_app_maintenancejob WHERE name = 'deleted')
SELECT count(*) + COALESCE((SELECT (counts ->> 0)::bigint FROM deleted), 0),
    count(*) FILTER (WHERE status = 'completed') + COALESCE((SELECT (counts ->> 1)::bigint FROM deleted), 0),
    min(queued_at) FILTER (WHERE status = 'queued'), clock_timestamp()
FROM queue_app_task WHERE queue = %(queue)s
"""


class QueueTotals(NamedTuple):
    """The tasks of a queue since it exists, also those that were deleted."""

    total_enqueued: int
    total_completed: int
    oldest_enqueued_at: datetime | None  # of the tasks that wait now
    last_updated: datetime


def totals(queue: str) -> QueueTotals:
    """Return the totals of a queue. They come from the rows alone; the cost grows with the tasks that it stores."""
    return QueueTotals(*fetch_all(_TOTALS, {"queue": queue})[0])


def delete_ended(ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
    """Delete the ended tasks among ``ids``, whatever their age; return those that were deleted."""
    return set(fetch_column(_DELETE_ENDED, {"ids": list(ids)}))


#: Table -> the rows past a retention of %s seconds; an ORDER BY names the index that finds them.
_OLD: Final = {
    "deadletter": f"expires_at < {_AGO}",
    "idempotentrequest": f"created_at < {_AGO} ORDER BY created_at",
    "operation": f"finished_at < {_AGO}",
    "queuestats": f"taken_at < {_AGO}",
    "taskstats": f"kind IN ('type', 'user', 'key') AND since < {_AGO}",  # the index begins with the kind
    "limitstep": f"stepped_at < {_AGO}",
    "scheduletick": f"at < {_AGO} ORDER BY at",
    "worker": f"""status IN ('stopped', 'dead') AND stopped_at < {_AGO}
        AND NOT EXISTS (SELECT FROM queue_app_task AS t WHERE t.worker_id = old.id AND t.status = 'executing')""",
}
_PURGE_OLD: Final = """
DELETE FROM queue_app_{0} WHERE id IN (SELECT id FROM queue_app_{0} AS old WHERE {1} LIMIT %s FOR UPDATE SKIP LOCKED)
"""


def purge_old(table: str, seconds: float, limit: int) -> int:
    """Delete at most ``limit`` rows of one of the tables ``_OLD`` past a retention; return how many."""
    return execute(_PURGE_OLD.format(table, _OLD[table]), [seconds, limit])


def purge_audit(seconds: float, limit: int) -> int:
    """Delete old entries of the audit log; their ids begin with their time."""
    oldest = _first_id(datetime.now(UTC) - timedelta(seconds=seconds))
    return execute(_PURGE_OLD.format("auditentry", "id < %s ORDER BY id"), [oldest, limit])


def count_transitions(since: datetime, until: datetime) -> dict[str, dict[str, int]]:
    """Return {queue: {enqueued, completed, failed}} between the two times, by two index scans: ids carry their time."""
    params = {"first_id": _first_id(since), "since": since, "until": until}
    return {row[0]: {"enqueued": row[1], "completed": row[2], "failed": row[3]} for row in fetch_all(_COUNTS, params)}


def _first_id(since: datetime) -> uuid.UUID:
    """Return the least id of a row made since then."""
    return first_at(since, -CLOCKS_DIFFER)


# Those that are being deleted come first. No dead letter of theirs is open.
_OLD_WORKFLOWS: Final = """
SELECT id FROM queue_app_workflow AS flow
WHERE finished_at < statement_timestamp() - make_interval(secs => CASE WHEN state = 'completed' THEN %s ELSE %s END)
    AND NOT EXISTS (
        SELECT FROM queue_app_task AS t JOIN queue_app_deadletter AS letter ON letter.task_id = t.id
        WHERE t.workflow_id = flow.id AND t.status = 'dead_letter'
            AND letter.replayed_at IS NULL AND letter.discarded_at IS NULL)
ORDER BY state <> 'deleting', finished_at LIMIT %s
"""
_BESIDE: Final = (("taskdependency", "after_id"), ("dependencycounter", "task_id"), ("workflownode", "task_id"))


def old_workflows(success_seconds: float, failure_seconds: float, limit: int) -> list[uuid.UUID]:
    """Return ended workflows past their retention whose dead letters are all closed."""
    return fetch_column(_OLD_WORKFLOWS, [success_seconds, failure_seconds, limit])


def purge_part(workflow_id: uuid.UUID, limit: int) -> tuple[int, bool]:
    """Delete at most ``limit`` tasks of an ended workflow, which the caller has alone; return how many, and if all.

    From the first part on, readers do not see the workflow, and nothing of it runs again. Its row goes with the last.
    """
    sql = "UPDATE queue_app_workflow SET state = 'deleting' WHERE id = %s AND finished_at IS NOT NULL"
    if not execute(sql, [workflow_id]):  # it runs again
        return 0, True
    sql = "SELECT id FROM queue_app_task WHERE workflow_id = %s ORDER BY id LIMIT %s"
    ids = fetch_column(sql, [workflow_id, limit])
    for table, column in _BESIDE:
        execute(f"DELETE FROM queue_app_{table} WHERE {column} = ANY(%s)", [ids])
    sql = PURGE.format(which="id = ANY(%(ids)s)", unkeyed="true").replace("SKIP LOCKED", "")
    deleted = len(fetch_all(sql, {"ids": ids, "limit": None}))
    is_last = len(ids) < limit
    if is_last:
        execute("DELETE FROM queue_app_signal WHERE workflow_id = %s", [workflow_id])
        execute("DELETE FROM queue_app_workflow WHERE id = %s", [workflow_id])
    return deleted, is_last


def expired_letters_of_workflows(limit: int) -> list[uuid.UUID]:
    """Return open dead letters past their retention whose tasks are in workflows that have not ended."""
    return fetch_column(
        "SELECT letter.id FROM queue_app_deadletter AS letter JOIN queue_app_task AS t ON t.id = letter.task_id"
        " JOIN queue_app_workflow AS flow ON flow.id = t.workflow_id AND flow.finished_at IS NULL"
        " WHERE letter.expires_at < statement_timestamp() AND letter.replayed_at IS NULL"
        " AND letter.discarded_at IS NULL LIMIT %s",
        [limit],
    )


# Ask in one round trip whether the jobs of the scheduler have work.
#
# If the answer is false, the scheduler does not run the job's own statement. So the answer must be true whenever that
# statement would find work: each question has a subset of the statement's conditions and no others.
# The questions are prepared, and planned for full tables as claims are.
#
# Questions about a state that every task passes through are timed: they also read the entries of tasks that have left
# the state, while an old snapshot keeps these in the index (``core.process``).

_ANY_ADAPTIVE: Final = " OR ".join(
    f"EXISTS (SELECT FROM {table} WHERE adaptive <> '')"
    for table in ("queue_app_queue", "queue_app_limit", "queue_app_runtimesettings")
)
_ANY_PAUSE_OVER: Final = " OR ".join(
    f"EXISTS (SELECT FROM {table} WHERE paused AND resume_at <= statement_timestamp())"
    for table in ("queue_app_queue", "queue_app_limit", "queue_app_runtimesettings", "queue_app_schedule")
)

# The order leaves only one index that needs no sort. For a minimum, PostgreSQL could choose the index of waiting tasks
# by queue while the tables are empty, and keep it.
_EARLIEST: Final = ", ".join(
    f"(SELECT run_after FROM queue_app_task WHERE {condition} {{recently}} ORDER BY run_after LIMIT 1)"
    for condition in ("status = 'scheduled'", waiting.TIMED_OUT)
)
_DUE: Final = f"""
COALESCE(EXTRACT(EPOCH FROM LEAST({_EARLIEST})) - EXTRACT(EPOCH FROM statement_timestamp()), 'Infinity')::float8
"""
# PostgreSQL puts the live workers into a hash table; a join would look up the worker of every task.
_ORPHANS: Final = """
EXISTS (SELECT FROM queue_app_task WHERE status = 'executing'
    AND worker_id NOT IN (SELECT id FROM queue_app_worker WHERE status IN ('active', 'draining')))
"""
_NEIGHBOURS: Final = f"ARRAY(SELECT pid || ' ' || process_identity FROM queue_app_worker WHERE {workers.NEIGHBOURS})"

#: {name: expression}. A question has at most one parameter, of the same name. Rooms have more (``questions``).
QUESTIONS: Final[dict[str, str]] = {
    # answers with the number, and that of the last generation in which claims read the rows
    "generation": """COALESCE((SELECT ARRAY[number, rows_number] FROM queue_app_indexgeneration WHERE id = 1),
        '{0, -1}')""",
    # answers with the seconds until a task is due; infinity: none is scheduled
    "due": _DUE.format(recently=""),
    "recently_due": _DUE.format(recently=f"AND {waiting.RECENTLY}"),
    "heartbeats": workers.HEARTBEATS,
    "neighbours": _NEIGHBOURS,  # answers with "pid identity" of each
    "orphans": _ORPHANS,
    "overdue": f"EXISTS (SELECT FROM queue_app_task AS t WHERE {workers.OVERDUE})",
    "pauses": _ANY_PAUSE_OVER,
    "startable": doctor.ANY_STARTABLE,
    # The following answer with a time, or with names; the earliest task is compared as in `due`.
    "late": """(SELECT run_after FROM (
        SELECT run_after FROM queue_app_task WHERE status = 'scheduled' ORDER BY run_after LIMIT 1
    ) AS first WHERE run_after < statement_timestamp() - make_interval(secs => %s))""",
    "overrun": f"(SELECT min(t.deadline) FROM queue_app_task AS t WHERE {workers.OVERDUE})",
    "upkeep": """ARRAY(SELECT name FROM queue_app_maintenancejob
        WHERE COALESCE(succeeded_at, '-infinity') < statement_timestamp() - make_interval(secs => %s))""",
    "adaptive": f"({_ANY_ADAPTIVE})",
    "operations": "EXISTS (SELECT FROM queue_app_operation WHERE state = 'running')",
}

TIMED: Final = frozenset({"due", "orphans", "overdue", "startable", "late", "overrun"})
#: PostgreSQL answers the questions of a statement one after the other; this is the time (s) that it has taken so far.
_SO_FAR: Final = "EXTRACT(EPOCH FROM clock_timestamp() - statement_timestamp())::float8"

_PRELUDE: Final = f"SELECT {BY_KEYS_ONLY}, set_config('enable_sort', 'off', true)"


def questions() -> dict[str, str]:
    """Return the questions of the kernel and of the rooms."""
    return rooms.named("questions") | QUESTIONS


def pending_work(asked: Collection[str], params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """Return {name: answer} of the questions, and {name: how long it took (s)} of the timed ones.

    ``params`` holds the parameters by question.
    """
    known = questions()
    names = tuple(sorted((name for name in known if name in asked), key=TIMED.__contains__))
    values = [params[name] for name in names if "%s" in known[name]]
    (row,) = fetch_prepared((_PRELUDE, []), (statement(names), values))
    plain = sum(name not in TIMED for name in names)
    answers, so_far = [*row[:plain], *row[plain + 1 :: 2]], row[plain::2]
    took = [after - before for before, after in pairwise(so_far)]
    return dict(zip(names, answers, strict=True)), dict(zip(names[plain:], took, strict=True))


@cache
def statement(names: tuple[str, ...]) -> str:
    """Return the statement for these questions; each combination has its own, as statements are prepared by text.

    The timed questions come last, each between two times.
    """
    known = questions()
    timed = [f"{known[name]}, {_SO_FAR}" for name in names if name in TIMED]
    return "SELECT " + ", ".join([*(known[name] for name in names if name not in TIMED), _SO_FAR, *timed])


def any_pause_over() -> bool:
    """Return whether the time of a pause is over."""
    return bool(fetch_value(f"SELECT {_ANY_PAUSE_OVER}"))
