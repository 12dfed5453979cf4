"""Read the rows that the index must agree with: tasks, limits and the generation."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from django.db import OperationalError
from psycopg.errors import LockNotAvailable

from queue_app.core.limits import EVERYTHING, Limits, gate_of, lane_name
from queue_app.core.priorities import Band
from queue_app.core.records import Lease, PackedLane, TaskRef
from queue_app.core.states import Status
from queue_app.sql import database
from queue_app.sql.columns import LANE, REF, cap
from queue_app.sql.database import (
    BY_KEYS_ONLY,
    GENERATION_LOCK,
    atomic,
    bound_transaction,
    execute,
    fetch_all,
    fetch_prepared,
    fetch_together,
    fetch_value,
)
from queue_app.sql.prepared import Row

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


class Way(NamedTuple):
    """The generation that claims must belong to, and whether they read the rows, since when and why."""

    number: int  # 0 before the first rebuild
    is_rows: bool
    since: datetime | None = None  # the last change, if there was one
    because: str = ""


def way() -> Way:
    """Return which way is in force."""
    sql = "SELECT number, rows_number = number, way_since, way_because FROM queue_app_indexgeneration WHERE id = 1"
    found = fetch_all(sql)
    return Way(*found[0]) if found else Way(0, is_rows=False)


def raise_generation(above: int = 0, *, rows_because: str | None = None) -> int:
    """Begin a new generation; return its number, which is also above ``above``, that of the index.

    With ``rows_because`` its claims read the rows (empty: for the known reason). Without it, claims that read the rows
    go on under the new number.
    After a failover to a standby that lacks commits, the rows may be of an earlier generation than the index. A number
    that is a million ahead is damaged, and ignored.
    Waits for the claims that are being committed, so that the caller can then read every
    grant of an earlier generation.
    """
    with atomic():
        _lock_generation()
        before = way()
        number = 1 + (above if before.number <= above <= before.number + 1_000_000 else before.number)
        is_rows = before.is_rows or rows_because is not None
        since = "clock_timestamp()" if is_rows and not before.is_rows else "g.way_since"
        execute(
            "INSERT INTO queue_app_indexgeneration AS g"
            " (id, database, number, started_at, tasks, leases, rows_number, way_since, way_because)"
            " VALUES (1, gen_random_uuid(), %(number)s, clock_timestamp(), 0, 0, %(rows)s, clock_timestamp(), %(why)s)"
            " ON CONFLICT (id) DO UPDATE SET number = EXCLUDED.number, rows_number = EXCLUDED.rows_number,"
            " abandoned_until = 0, damaged_at = NULL, started_at = clock_timestamp(), ready_at = NULL,"
            f" way_since = {since}, way_because = COALESCE(NULLIF(EXCLUDED.way_because, ''), g.way_because)",
            {"number": number, "rows": number if is_rows else -1, "why": (rows_because or "")[:300]},
        )
        if is_rows and rows_because is None:
            execute("UPDATE queue_app_rows_state SET number = %s WHERE number = %s", [number, before.number])
    return number


def leave_rows(number: int) -> bool:
    """Let claims use Redis from now on, if they read the rows in this generation; return whether they did.

    Waits for the claim from rows that is being committed.
    """
    with atomic():
        _lock_generation()
        left = execute(
            "UPDATE queue_app_indexgeneration SET rows_number = -1, way_since = clock_timestamp(), way_because = ''"
            " WHERE number = %s AND rows_number = number",
            [number],
        )
        if left:
            execute("UPDATE queue_app_rows_state SET number = 0")
    return bool(left)


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


def condemn(because: str, *, is_rows: bool = False) -> bool:
    """Raise the generation, so that the present index is rebuilt; return false if it is too early to do so again.

    Does nothing if that index, in Redis unless ``is_rows``, is not the one that claims use.
    """
    if way().is_rows != is_rows:
        return False
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
                " rows_number = CASE WHEN rows_number = number THEN number + 1 ELSE -1 END,"
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


@contextmanager
def without_claims() -> Iterator[None]:
    """Run a block in one transaction, in which no claim is under way."""
    with atomic():
        _lock_generation()
        yield


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


# Read the queued rows as the index takes them: packed by PostgreSQL, lane by lane.
#
# Otherwise a comparison of a million rows would make a million Python records.

type Cursor = tuple[datetime, uuid.UUID]
_NIL: Final = uuid.UUID(int=0)

# Reads the index only. The conditions on queued_at alone change no result; they let the planner estimate row counts.
_END: Final = """
SELECT queued_at, id FROM queue_app_task WHERE status = 'queued' AND {after}
ORDER BY queued_at, id OFFSET %(limit)s - 1 LIMIT 1
"""
_OLDEST_OF_NEWEST: Final = _END.replace("ORDER BY queued_at, id", "ORDER BY queued_at DESC, id DESC")

# The user, if the queue keeps users apart. In other queues every user would make a lane here for no purpose.
_USER_THAT_MATTERS: Final = """CASE WHEN queue = ANY(ARRAY(
    SELECT name FROM queue_app_queue WHERE "order" = 'fair' OR max_concurrent_per_user IS NOT NULL
)) THEN "user" ELSE '' END"""
# The score equals that of core.lanes.score to the last bit: whole milliseconds are exact in a double, so only the last
# addition rounds. A time as a double is exact after rounding to microseconds, until the year 2106.
# PostgreSQL aggregates ids and scores of a lane in one pass, so both are in the same order.
PACKED: Final = """
SELECT queue, task_type, capabilities, {user}, concurrency_key, weight,
    string_agg(uuid_send(id), ''::bytea),
    string_agg(float8send(priority * 1e13::float8 + us / 1000 + (us %% 1000) / 1e3::float8), ''::bytea)
FROM {task}, LATERAL (SELECT round(date_part('epoch', queued_at) * 1e6)::bigint) AS at (us)
GROUP BY 1, 2, 3, 4, 5, 6
"""
_PACKED: Final = PACKED.format(
    user=_USER_THAT_MATTERS,
    task="(SELECT * FROM queue_app_task WHERE status = 'queued' AND {after} AND {until}) AS task",
)


class RowPage(NamedTuple):
    """Queued rows by lane; ``end`` is the cursor (queued_at, id) of the last row, ``None`` when none follow."""

    lanes: list[PackedLane]
    end: Cursor | None

    @property
    def size(self) -> int:
        return sum(lane.size for lane in self.lanes)


def packed_page(after: Cursor | None, limit: int) -> RowPage:
    """Return about ``limit`` queued tasks that follow the cursor, oldest first."""
    queued_at, task_id = after or ("-infinity", _NIL)
    follows, until = "queued_at >= %(queued_at)s AND (queued_at, id) > (%(queued_at)s, %(id)s)", "true"
    parameters: dict[str, Any] = {"queued_at": queued_at, "id": task_id}
    ends = fetch_all(_END.format(after=follows), parameters | {"limit": limit})
    if ends:
        until = "queued_at <= %(end_at)s AND (queued_at, id) <= (%(end_at)s, %(end_id)s)"
        parameters |= {"end_at": ends[0][0], "end_id": ends[0][1]}
    return RowPage(_lanes(follows, until, parameters), (ends[0][0], ends[0][1]) if ends else None)


def packed_recent(seconds: float, limit: int) -> RowPage:
    """Return the tasks that became queued within the last ``seconds``, but only about the ``limit`` newest ones."""
    recent = "queued_at > statement_timestamp() - make_interval(secs => %(seconds)s)"
    parameters: dict[str, Any] = {"seconds": seconds}
    first = fetch_all(_OLDEST_OF_NEWEST.format(after=recent), parameters | {"limit": limit})
    if first:
        recent = "queued_at >= %(queued_at)s AND (queued_at, id) >= (%(queued_at)s, %(id)s)"
        parameters = {"queued_at": first[0][0], "id": first[0][1]}
    return RowPage(_lanes(recent, "true", parameters), None)


def _lanes(after: str, until: str, parameters: dict[str, Any]) -> list[PackedLane]:
    return packed_lanes(fetch_all(_PACKED.format(after=after, until=until), parameters))


def packed_lanes(found: list[Row]) -> list[PackedLane]:
    """Return the lanes of rows as ``PACKED`` selects them."""
    return [PackedLane(lane_name(*row[:6]), bytes(row[6]), bytes(row[7])) for row in found]


# Read the queued rows for a rebuild, part by part: a part holds the tasks of one queue and band, oldest first.

#: A queue and a band.
type Part = tuple[str, Band]


class ReadPosition(NamedTuple):
    """How far a part has been read."""

    queued_at: datetime
    id: uuid.UUID
    is_last: bool = False  # no queued row followed when the place was looked up


BEGINNING: Final = ReadPosition(datetime(1, 1, 1, tzinfo=UTC), uuid.UUID(int=0))
END: Final = ReadPosition(datetime(9999, 12, 31, tzinfo=UTC), uuid.UUID(int=2**128 - 1))

# Reads the index taskqueue_length only, in as many steps as there are parts.
_PARTS: Final = """
WITH RECURSIVE part (queue, priority) AS (
    (SELECT queue, priority FROM queue_app_task WHERE status IN ('scheduled', 'queued')
     ORDER BY queue, priority LIMIT 1)
    UNION ALL
    SELECT next.queue, next.priority FROM part, LATERAL (
        SELECT queue, priority FROM queue_app_task
        WHERE status IN ('scheduled', 'queued') AND (queue, priority) > (part.queue, part.priority)
        ORDER BY queue, priority LIMIT 1
    ) AS next
)
SELECT queue, priority FROM part
"""
_KINDS: Final = ("text", "smallint", "timestamptz", "uuid", "timestamptz", "uuid")
# Each column as one text: psycopg takes 10 µs for each item of a list, and there may be thousands of queues.
_SEPARATOR: Final = "\x1f"
_ASKED: Final = f"""
unnest({", ".join(f"string_to_array(%s, chr(31))::{kind}[]" for kind in _KINDS)})
    AS asked (queue, priority, queued_at, id, until_at, until_id)
"""
_FOLLOWS: Final = """
t.queue = asked.queue AND t.priority = asked.priority AND (t.queued_at, t.id) > (asked.queued_at, asked.id)
"""
# The last row of the next ``limit`` ones; the present time if fewer follow. Reads the index only.
_ENDS: Final = f"""
SELECT asked.queue, asked.priority, COALESCE(last.queued_at, clock_timestamp()), COALESCE(last.id, asked.until_id),
    last.id IS NULL
FROM {_ASKED} LEFT JOIN LATERAL (
    SELECT t.queued_at, t.id FROM queue_app_task AS t WHERE t.status IN ('scheduled', 'queued') AND {_FOLLOWS}
    ORDER BY t.queued_at, t.id OFFSET %s - 1 LIMIT 1
) AS last ON true
"""
# The statistics of PostgreSQL may be of a time when nothing waited. So the rows of each part are read alone (OFFSET),
# and the `|| ''` hides other indexes of waiting rows from the planner.
_BETWEEN: Final = PACKED.format(
    user='"user"',  # always: the limits that say whether it matters may change during the rebuild
    task=f"""(
        SELECT waiting.* FROM {_ASKED}, LATERAL (
            SELECT t.* FROM queue_app_task AS t
            WHERE t.status IN ('scheduled', 'queued') AND t.status || '' = 'queued'
                AND {_FOLLOWS} AND (t.queued_at, t.id) <= (asked.until_at, asked.until_id) OFFSET 0
        ) AS waiting
    ) AS task""",
)
_BY_INDEX: Final = (f"SELECT {BY_KEYS_ONLY}, set_config('enable_bitmapscan', 'off', true)", ())


def parts() -> list[Part]:
    """Return the queues and bands in which tasks may wait, most urgent band first."""
    found = fetch_together(_BY_INDEX, (_PARTS, ()))
    return sorted(((queue, Band(priority)) for queue, priority in found), key=lambda part: (part[1], part[0]))


def ends(after: Mapping[Part, ReadPosition], limit: int) -> dict[Part, ReadPosition]:
    """Return where the next ``limit`` rows of each part end; the present time if fewer follow."""
    found = fetch_together(_BY_INDEX, (_ENDS, [*_asked(after, dict.fromkeys(after, END)), limit]))
    return {(queue, Band(priority)): ReadPosition(*place) for queue, priority, *place in found}


def between(after: Mapping[Part, ReadPosition], until: Mapping[Part, ReadPosition]) -> list[PackedLane]:
    """Return the queued tasks of each part behind one place, up to the other."""
    return packed_lanes(fetch_together(_BY_INDEX, (_BETWEEN, _asked(after, until))))


def _asked(after: Mapping[Part, ReadPosition], until: Mapping[Part, ReadPosition]) -> list[str]:
    ends = [until[part] for part in after]
    columns: Iterable[Iterable[str]] = (
        (queue for queue, _ in after),
        (str(int(band)) for _, band in after),
        (place.queued_at.isoformat() for place in after.values()),
        (str(place.id) for place in after.values()),
        (place.queued_at.isoformat() for place in ends),
        (str(place.id) for place in ends),
    )
    return [_SEPARATOR.join(column) for column in columns]
