"""Read the rows that the index must agree with: tasks, limits and the generation."""

import json
import uuid
from collections.abc import Sequence
from typing import Any, Final

from django.db import OperationalError
from psycopg.errors import LockNotAvailable

from queue_app.core.lanes import lane_name
from queue_app.core.limit_values import EVERYTHING, Limits, gate_of
from queue_app.core.records import Lease, TaskRef
from queue_app.core.states import Status
from queue_app.sql import database
from queue_app.sql.columns import LANE, REF, cap
from queue_app.sql.database import (
    GENERATION_LOCK,
    atomic,
    bound_transaction,
    execute,
    fetch_all,
    fetch_prepared,
    fetch_value,
)

#: How long grants must wait, at most, for the one that changes the generation: they queue behind it.
LOCK_WAIT: Final = "5s"


def queued_estimate() -> int:
    """Return PostgreSQL's estimate of the number of queued tasks, as of the last vacuum; it reads no task."""
    found = fetch_value(
        "SELECT GREATEST(c.reltuples, 0)::bigint FROM pg_class AS c WHERE c.oid = to_regclass('taskqueue_waiting')"
    )
    return int(found or 0)


def executing(ids: Sequence[uuid.UUID] | None = None) -> list[Lease]:
    """Return the leases of all executing tasks, or of the executing tasks among ``ids``."""
    among, params = ("", []) if ids is None else (" AND id = ANY(%s)", [list(ids)])
    found = fetch_all(f"SELECT {_LEASE} FROM queue_app_task AS t WHERE status = 'executing'{among}", params)
    return [lease_of(row) for row in found]


def leases(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, tuple[Status, Lease]]:
    """Return the status of each task that exists, and the lease that it was granted under last."""
    sql = f"SELECT t.status, {_LEASE} FROM queue_app_task AS t WHERE id = ANY(%s)"
    found = fetch_all(sql, [list(ids)]) if ids else []
    return {row[0]: (Status(status), lease_of(row)) for status, *row in found}


_LEASE: Final = f"t.id, COALESCE(t.leased_at, 0), {LANE}"


def lease_of(row: Sequence[Any]) -> Lease:
    """Return the lease of a row: the task's id, the stamp, and its lane."""
    task_id, leased_at, *lane = row
    return Lease(task_id, lane_name(*lane), leased_at)


_OF_EVERYTHING: Final = ("", "")  # scope and name
_PACE: Final = "paused, rate_count, rate_seconds, rate_burst, min_delay_seconds, throttled_until"
# The row of everything has, of all paces, only `paused`.
_LIMITS: Final = f"""
SELECT * FROM (
    SELECT 'queue' AS scope, name, max_concurrent_per_user AS per_user,
        CASE WHEN "order" = 'fair' THEN fair_by END AS fair, fair_weights, "order" = 'arrival' AS by_arrival,
        {cap()} AS cap, {_PACE} FROM queue_app_queue
    UNION ALL SELECT scope, name, NULL, NULL, NULL, false, {cap()}, {_PACE} FROM queue_app_limit
    UNION ALL SELECT '', '', NULL, NULL, NULL, false, {cap()}, paused, NULL, NULL, NULL, NULL, NULL
    FROM queue_app_runtimesettings WHERE id = 1
) AS limits
"""


# Most queues have no limit.
_SET: Final = f"""
{_LIMITS} WHERE scope <> 'queue' OR paused OR by_arrival
    OR COALESCE(cap, per_user, rate_count) IS NOT NULL OR COALESCE(fair, '') <> ''
    OR min_delay_seconds IS NOT NULL OR throttled_until IS NOT NULL
"""


def limits() -> dict[str, Limits]:
    """Return {gate: its limits} for everything, for every type and key that has a row, and every queue with limits."""
    found = {(row[0], row[1]): _limits(row) for row in fetch_prepared((_SET, []))}
    return {EVERYTHING: found.pop(_OF_EVERYTHING, Limits())} | {gate_of(*row): limits for row, limits in found.items()}


def global_limits() -> Limits:
    """Return the limits over everything."""
    return limits_of(*_OF_EVERYTHING) or Limits()


def limits_of(scope: str, name: str) -> Limits | None:
    """Return the limits of a queue, a task type or a key; ``None`` when it has no row."""
    found = fetch_all(f"{_LIMITS} WHERE scope = %s AND name = %s", [scope, name])
    return _limits(found[0]) if found else None


def _limits(row: Sequence[Any]) -> Limits:
    _scope, _name, per_user, fair_by, weights, by_arrival, *others = row
    shares = (json.loads(weights) if isinstance(weights, str) else weights) if fair_by else {}
    paces = dict(zip(("max_concurrent", *_PACE.split(", ")), others, strict=True))
    return Limits(**paces, max_concurrent_per_user=per_user, fair_by=fair_by, shares=shares, by_arrival=by_arrival)


def abandon(leased_at: int, unless: str = "false") -> bool:
    """Refuse from now on every claim whose stamp is not later than ``leased_at``; return false if ``unless`` holds.

    Waits for the grants that are being committed. A task that is queued when this returns is never claimed under such a
    stamp.
    """
    with atomic():
        _lock_generation()
        return bool(
            execute(
                "UPDATE queue_app_indexgeneration SET abandoned_until = GREATEST(abandoned_until, %s)"
                f" WHERE id = 1 AND NOT ({unless})",
                [leased_at],
            )
        )


def refs(ids: list[uuid.UUID]) -> list[TaskRef]:
    """Return the queued tasks among ``ids``."""
    found = fetch_all(f"SELECT {REF} FROM queue_app_task AS t WHERE id = ANY(%s) AND status = 'queued'", [ids])
    return [TaskRef.from_row(row) for row in found]


def types_of(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, str]:
    """Return the task type of each task that exists."""
    return dict(fetch_all("SELECT id, task_type FROM queue_app_task WHERE id = ANY(%s)", [list(ids)]))


def raise_generation(above: int = 0) -> int:
    """Begin a new generation; return its number, which is also above ``above``, that of the index.

    After a failover to a standby that lacks commits, the rows may be of an earlier generation than the index. A number
    that is a million ahead is damaged, and ignored.
    Waits for the claims that are being committed, so that the caller can then read every
    grant of an earlier generation.
    """
    with atomic():
        _lock_generation()
        number: int = fetch_value(
            "INSERT INTO queue_app_indexgeneration (id, database, number, started_at, tasks, leases)"
            " VALUES (1, gen_random_uuid(), 1, clock_timestamp(), 0, 0)"
            " ON CONFLICT (id) DO UPDATE SET number = 1 + CASE"
            " WHEN %(above)s BETWEEN queue_app_indexgeneration.number AND queue_app_indexgeneration.number + 1000000"
            " THEN %(above)s ELSE queue_app_indexgeneration.number END,"
            " abandoned_until = 0, damaged_at = NULL, started_at = clock_timestamp(), ready_at = NULL RETURNING number",
            {"above": above},
        )
    return number


#: Whether the last rebuild helped: damage was found only some seconds later, or a task has started since.
_HELPED: Final = """
(COALESCE(damaged_at, statement_timestamp()) > g.started_at + interval '3 seconds'
    OR EXISTS (SELECT FROM queue_app_task AS t WHERE status = 'executing' AND t.started_at > g.started_at)
    OR EXISTS (SELECT FROM queue_app_task AS t WHERE finished_at > g.started_at AND t.started_at > g.started_at))
"""
#: The first condemnation is accepted at once; the one after n others comes at least 2^n - 1 s after the last. Where the
#: last rebuild has helped, 7 s are enough.
_MAY_CONDEMN: Final = f"""
id = 1
AND (ready_at IS NOT NULL OR started_at < statement_timestamp() - interval '1 minute')
AND (condemned_at IS NULL OR condemned_at NOT BETWEEN
     statement_timestamp() - LEAST(2 ^ condemned - 1, CASE WHEN {_HELPED} THEN 7 ELSE 300 END) * interval '1 second'
     AND statement_timestamp())
"""


def condemn(because: str) -> bool:
    """Raise the generation, so that the present index is rebuilt; return false if it is too early to do so again."""
    if not fetch_all(f"SELECT FROM queue_app_indexgeneration AS g WHERE {_MAY_CONDEMN}"):
        execute(  # without the lock, for which every grant would have to wait
            "UPDATE queue_app_indexgeneration SET damaged_at = clock_timestamp()"
            " WHERE id = 1 AND damaged_at IS NULL AND ready_at IS NOT NULL"
        )
        return False
    with atomic():
        _lock_generation()
        return bool(
            execute(
                "UPDATE queue_app_indexgeneration AS g SET number = number + 1, abandoned_until = 0, damaged_at = NULL,"
                " started_at = clock_timestamp(), ready_at = NULL, condemned_because = %s,"
                " condemned = CASE WHEN condemned_at > statement_timestamp() - interval '10 minutes'"
                f" THEN LEAST(condemned + 1, CASE WHEN {_HELPED} THEN 3 ELSE 10 END) ELSE 1 END,"
                " condemned_at = clock_timestamp()"
                f" WHERE {_MAY_CONDEMN}",
                [because],
            )
        )


#: Ends the sessions that hold the lock and whose process has sent nothing for a while: PostgreSQL waits for it.
#: Returns all that hold it: whether this role may look at them and end them, their processes and roles, and this role.
#: What ends them stands in the list of columns: PostgreSQL may evaluate a condition for other sessions, too.
_END_FROZEN_GRANTS: Final = """
SELECT pg_has_role(activity.usesysid, 'USAGE'), activity.pid, activity.usename, current_user,
    CASE WHEN pg_has_role(activity.usesysid, 'USAGE') AND activity.wait_event = 'ClientRead'
        AND activity.state_change < statement_timestamp() - %s::interval THEN pg_terminate_backend(activity.pid) END
FROM pg_locks AS lock JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
WHERE lock.locktype = 'advisory' AND lock.objsubid = 1 AND lock.granted AND activity.datname = current_database()
    AND (lock.classid::bigint << 32) | lock.objid::bigint = %s
"""


def _lock_generation() -> None:
    """Wait for the grants that are being committed; end the sessions whose process is gone or frozen.

    Raises ``OperationalError`` if that takes longer than ``LOCK_WAIT``; the caller tries again at its next turn. The
    error names a session that another role holds: it may be frozen, and this role may not end it.
    """
    bound_transaction()  # every grant waits for this lock
    holders = fetch_all(_END_FROZEN_GRANTS, [f"{database.FROZEN_SECONDS} s", GENERATION_LOCK])
    foreign = [holder for is_ours, *holder, _ in holders if not is_ours]
    try:
        fetch_all(
            "SELECT set_config('lock_timeout', %s, true), pg_advisory_xact_lock(%s)", [LOCK_WAIT, GENERATION_LOCK]
        )
    except OperationalError as error:
        if not (foreign and isinstance(error.__cause__, LockNotAvailable)):
            raise
        pid, role, own = foreign[0]
        raise OperationalError(
            f"The session {pid} of the role {role} keeps the lock that claims share, perhaps because its process is"
            f" frozen. This role, {own}, may not end it. Let it: GRANT {role} TO {own}"
        ) from error.__cause__


def accepts(number: int, leased_at: int) -> bool:
    """Whether a proposal of this generation and stamp can still be granted."""
    return bool(
        fetch_all(
            "SELECT FROM queue_app_indexgeneration WHERE id = 1 AND number = %s AND abandoned_until < %s",
            [number, leased_at],
        )
    )


def generation() -> int:
    """Return the generation that claims must belong to; 0 before the first rebuild."""
    return int(fetch_value("SELECT number FROM queue_app_indexgeneration WHERE id = 1") or 0)


def record_ready(number: int, tasks: int, leases: int) -> None:
    """Record that workers can claim from a generation."""
    execute(
        "UPDATE queue_app_indexgeneration SET ready_at = clock_timestamp(), tasks = %s, leases = %s"
        " WHERE id = 1 AND number = %s",
        [tasks, leases, number],
    )
