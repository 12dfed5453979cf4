"""Queries of ``taskqueue doctor`` and the watchdog. Their cost does not grow with the number of tasks."""

import time
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django.db import DatabaseError, connections
from django.db.migrations.loader import MigrationLoader

from queue_app import conf
from queue_app.sql.columns import cap
from queue_app.sql.database import alias, atomic, connection, fetch_all, fetch_value


class ServerState(NamedTuple):
    """How transactions on this connection begin."""

    version: tuple[int, ...]
    isolation: str
    read_only: bool
    synchronous_commit: str


def server() -> ServerState:
    """Return the state of the server as this connection sees it."""
    version = connection().get_database_version()
    [found] = fetch_all(
        "SELECT current_setting('transaction_isolation'), pg_is_in_recovery()"
        " OR current_setting('transaction_read_only')::bool, current_setting('synchronous_commit')",
        {},
    )
    return ServerState(version, *found)


def jit_above_cost() -> float | None:
    """Return the cost from which on PostgreSQL compiles a query; ``None`` for never."""
    sql = "SELECT CASE WHEN current_setting('jit')::bool THEN current_setting('jit_above_cost')::float8 ELSE -1 END"
    cost = float(fetch_value(sql))
    return None if cost < 0 else cost


_WITHOUT_REDIS: Final = """
SELECT CASE WHEN worker.id IS NOT NULL THEN format('%%s (%%s, pid %%s)', worker.name, worker.host, worker.pid)
    ELSE 'a scheduler' END
FROM queue_app_rows_lock AS vote LEFT JOIN queue_app_worker AS worker ON worker.id::text = vote.token
WHERE vote.name LIKE 'away %%' AND vote.until > statement_timestamp() ORDER BY worker.name LIMIT %s
"""
NAMED: Final = 5


def processes_without_redis() -> list[str]:
    """Return processes that cannot reach Redis now (``services.way.vote``)."""
    return [name for (name,) in fetch_all(_WITHOUT_REDIS, [NAMED])]


def has_tables() -> bool:
    """Return whether the tables of the queue exist: the others are made with that of the tasks."""
    return bool(fetch_value("SELECT to_regclass('queue_app_task') IS NOT NULL"))


def unapplied_migrations() -> list[str]:
    """Return the names of the app's migrations that the database lacks."""
    loader = MigrationLoader(connection())
    return sorted(name for app, name in loader.disk_migrations.keys() - loader.applied_migrations if app == "queue_app")


def clock_ahead() -> tuple[float, float]:
    """Return how far the server's clock is ahead of this machine's, and the error of that figure, in seconds."""
    before = time.time()
    there: float = fetch_value("SELECT EXTRACT(EPOCH FROM clock_timestamp())::float8")
    after = time.time()
    return there - (before + after) / 2, (after - before) / 2


def is_pooled() -> bool:
    """Return whether a pooler, which gives its clients process numbers of its own, stands before the server."""
    found = fetch_value("SELECT pg_backend_pid()")
    return bool(connection().connection.info.backend_pid != found)


def shares_servers_between_transactions(tries: int = 20) -> bool:
    """Return whether one server process serves two connections at once: transaction (or statement) pooling."""
    other = connections[alias()].copy()
    try:
        with connection().cursor() as mine, other.cursor() as yours:
            for _ in range(tries):
                pids = []
                for cursor in (mine, yours):
                    cursor.execute("SELECT pg_backend_pid()")
                    pids.append(cursor.fetchone()[0])
                if pids[0] == pids[1]:
                    return True
    finally:
        other.close()
    return False


class HeldSnapshot(NamedTuple):
    """A transaction that keeps vacuum from removing dead rows; ``seconds`` is its age."""

    pid: int
    application: str
    state: str
    seconds: float


def held_snapshots(seconds: float) -> list[HeldSnapshot]:
    """Return transactions of this database that are older than ``seconds``, oldest first; prepared ones have pid 0."""
    found = fetch_all(
        "SELECT pid, application_name, state, EXTRACT(EPOCH FROM clock_timestamp() - xact_start)::float8 AS age"
        " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
        " AND xact_start < statement_timestamp() - make_interval(secs => %(seconds)s)"
        " UNION ALL SELECT 0, gid, 'prepared', EXTRACT(EPOCH FROM clock_timestamp() - prepared)::float8"
        " FROM pg_prepared_xacts WHERE database = current_database()"
        " AND prepared < statement_timestamp() - make_interval(secs => %(seconds)s) ORDER BY age DESC LIMIT 20",
        {"seconds": seconds},
    )
    return [HeldSnapshot(*row) for row in found]


class TableLock(NamedTuple):
    """A lock of a whole table of the queue that a session holds or waits for; ``seconds`` is the transaction's age.

    From a role without ``pg_read_all_stats``, PostgreSQL hides what other roles do: then the age is ``None``.
    """

    table: str
    pid: int
    application: str | None
    state: str | None
    statement: str
    seconds: float | None
    is_granted: bool
    blocks_reads: bool
    blocked_by: list[int]


def table_locks(seconds: float) -> list[TableLock]:
    """Return locks beside which other sessions cannot write the queue's tables, of transactions older than ``seconds``.

    A lock that is only waited for counts too, as later sessions wait behind it. Reads no table of the queue.
    """
    found = fetch_all(
        "SELECT DISTINCT ON (a.pid) l.relation::regclass::text, a.pid, a.application_name, a.state, a.query,"
        " EXTRACT(EPOCH FROM clock_timestamp() - a.xact_start)::float8 AS age, l.granted,"
        " l.mode = 'AccessExclusiveLock', CASE WHEN l.granted THEN '{}' ELSE pg_blocking_pids(a.pid) END"
        " FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) JOIN pg_class AS c ON c.oid = l.relation"
        " WHERE l.locktype = 'relation' AND a.pid <> pg_backend_pid()"
        " AND COALESCE(a.backend_type, 'client backend') = 'client backend'"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
        " AND c.relkind IN ('r', 'p') AND c.relname LIKE 'queue\\_app\\_%%'"
        " AND COALESCE(a.xact_start < statement_timestamp() - make_interval(secs => %(seconds)s), true)"
        " ORDER BY a.pid, l.mode = 'AccessExclusiveLock' DESC, c.relname LIMIT 20",
        {"seconds": seconds},
    )
    return sorted((TableLock(*row) for row in found), key=lambda lock: -(lock.seconds or 0.0))


class TableState(NamedTuple):
    """A table: PostgreSQL's estimates of its live and dead rows, and its bytes with indexes."""

    name: str
    live: int
    dead: int
    size: int
    autovacuum_off: bool


def tables() -> list[TableState]:
    """Return the state of every table of the queue."""
    found = fetch_all(
        "SELECT s.relname, s.n_live_tup, s.n_dead_tup, pg_total_relation_size(s.relid),"
        " COALESCE('autovacuum_enabled=false' = ANY(c.reloptions), false) OR current_setting('autovacuum') = 'off'"
        " FROM pg_stat_user_tables AS s JOIN pg_class AS c ON c.oid = s.relid"
        " WHERE s.relname LIKE 'queue\\_app\\_%%' AND s.schemaname = ANY(current_schemas(false))",
        {},
    )
    return [TableState(*row) for row in found]


def counts_to_compare(limit: int) -> tuple[int, int]:
    """Return the numbers of queued tasks (at most ``limit``) and of executing tasks, by their rows."""
    queued = fetch_value(
        "SELECT count(*) FROM (SELECT 1 FROM queue_app_task WHERE status = 'queued' LIMIT %s) AS counted", [limit]
    )
    return queued, fetch_value("SELECT count(*) FROM queue_app_task WHERE status = 'executing'")


class Silent(NamedTuple):
    """A worker whose heartbeat is late by ``seconds``."""

    name: str
    host: str
    pid: int
    seconds: float


def silent_workers(missed_heartbeats: int) -> list[Silent]:
    """Return live workers that have missed more than ``missed_heartbeats`` heartbeats."""
    found = fetch_all(
        "SELECT name, host, pid, EXTRACT(EPOCH FROM clock_timestamp() - last_heartbeat_at)::float8"
        " FROM queue_app_worker WHERE status IN ('active', 'draining')"
        " AND last_heartbeat_at < statement_timestamp() - make_interval(secs => heartbeat_seconds * %s) LIMIT 100",
        [missed_heartbeats],
    )
    return [Silent(*row) for row in found]


def overdue_tasks(seconds: float) -> list[tuple[uuid.UUID, str, float]]:
    """Return (id, task type, seconds overdue) of executing tasks whose deadline passed more than ``seconds`` ago."""
    found = fetch_all(
        "SELECT id, task_type, EXTRACT(EPOCH FROM clock_timestamp() - deadline)::float8 FROM queue_app_task"
        " WHERE status = 'executing' AND deadline < statement_timestamp() - make_interval(secs => %s)"
        " ORDER BY deadline LIMIT 100",
        [seconds],
    )
    return [(task_id, task_type, late) for task_id, task_type, late in found]


class Deaths(NamedTuple):
    """The number of tasks of a type that died of the same exception; without one, of the same reason."""

    task_type: str
    cause: str
    number: int


def deaths(seconds: float) -> list[Deaths]:
    """Return the dead letters of the last ``seconds`` by type and cause, the most first."""
    found = fetch_all(
        "SELECT task_type, COALESCE(NULLIF(exception_class, ''), reason) AS cause, count(*) FROM queue_app_deadletter"
        " WHERE died_at > statement_timestamp() - make_interval(secs => %s)"
        " GROUP BY task_type, cause ORDER BY count(*) DESC, task_type, cause",
        [seconds],
    )
    return [Deaths(*row) for row in found]


def workers_dead_within(seconds: float) -> int:
    """Return how many workers were declared dead within the last ``seconds``."""
    sql = (
        "SELECT count(*) FROM queue_app_worker"
        " WHERE status = 'dead' AND stopped_at > statement_timestamp() - make_interval(secs => %s)"
    )
    return int(fetch_value(sql, [seconds]))


# What tells this database from others, also from a copy of it; an index is bound to one database.

#: A standby and its primary have the same identity, so a failover keeps the index. A dump that was restored lies in
#: another cluster or under another name, so a copy has an identity of its own.
_CLUSTER: Final = "SELECT system_identifier FROM pg_control_system()"
_ROW: Final = "SELECT database FROM queue_app_indexgeneration WHERE id = 1"
#: The schema is that of the tables: a project with a schema for each tenant puts another one first in its search path.
_PLACE: Final = """
SELECT current_database() || '/' || COALESCE((
    SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE pg_class.oid = to_regclass('queue_app_indexgeneration')
), current_schema())
"""


def database_identity() -> str:
    """Return "cluster/database/schema"; the first is the cluster's system identifier.

    Where a service hides that number, a random one takes its place. It came with the migrations; a copy has the same.
    """
    database = connection()
    database.ensure_connection()
    known = _known.get(database.connection)
    if known is None:
        known = _known[database.connection] = f"{_cluster()}/{fetch_value(_PLACE)}"
    return known


#: By the connection: the next one may lead to another server.
_known: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _cluster() -> str:
    try:
        with atomic():
            return str(fetch_value(_CLUSTER))
    except DatabaseError:
        return str(fetch_value(_ROW))


# Find queued tasks that could run now, by the rows alone: the index, which decides who runs next, may be wrong.
#
# A task could run if no pause, cap or throttle in the rows stops it, and an active worker said with its last heartbeat
# that its last claim left slots free. The rows do not tell how much of a rate is used up, or whether a cap was full a
# moment ago. So the caller also asks whether anything passed the limited gates (``started_since``).

#: Time without progress after which the watchdog reports a stall.
STALL_SECONDS: Final = 10.0
#: Name of the job whose row holds the stalls.
WATCHDOG: Final = "watchdog"
#: Age (s) of the last record after which no watchdog counts as running. It checks each second and writes each 15 s.
CHECK_IS_OLD: Final = 60.0
#: Maximum number of kinds (queue, task type, capabilities, weight) that one check reports, the oldest tasks first.
MOST_KINDS: Final = 50

#: Condition for workers that want tasks. One that is full, draining or near its last task reports no free slots.
_WANTS: Final = "status = 'active' AND drain_requested_at IS NULL AND free_slots > 0"
#: Whether the check is worth its cost: a worker wants tasks, and a task waits.
ANY_STARTABLE: Final = f"""
(EXISTS (SELECT FROM queue_app_worker WHERE {_WANTS})
    AND (SELECT queued_at FROM queue_app_task WHERE status = 'queued' ORDER BY queued_at LIMIT 1) IS NOT NULL)
"""


def _serves(lane: str) -> str:
    return (
        f"(worker.queues = '{{}}' OR {lane}.queue = ANY(worker.queues))"
        f" AND {lane}.task_type = ANY(worker.task_types) AND {lane}.capabilities <@ worker.capabilities"
    )


def _running(condition: str) -> str:
    return f"(SELECT COALESCE(sum(tasks), 0) FROM running AS r WHERE {condition})"


def _limits(table: str, used: str) -> str:
    """Whether the limits of a row may have stopped a task between two checks; not if its cap is far above what runs."""
    return (
        f"COALESCE({cap(table)} < 4 * {used} + 20, false)"
        f" OR num_nonnulls({table}.rate_count, {table}.min_delay_seconds) > 0"
    )


_OVERALL: Final = _running("true")
_IN_QUEUE: Final = _running("r.queue = q.name")
_PACES: Final = ", ".join(
    f"{table}.rate_seconds / {table}.rate_count, {table}.min_delay_seconds" for table in ("q", "t", "k")
)
# The row whose numbers apply to a key: its own, unless it has none, else that of its family.
_OF_KEY: Final = """
LEFT JOIN queue_app_limit AS own ON own.scope = 'key' AND own.name = {key}
LEFT JOIN queue_app_limit AS family
    ON family.scope = 'key' AND {key} LIKE '%%:%%' AND family.name = split_part({key}, ':', 1)
LEFT JOIN queue_app_limit AS k ON k.id = CASE
    WHEN num_nonnulls(own.max_concurrent, own.rate_count, own.min_delay_seconds) > 0 THEN own.id ELSE family.id END
"""
# Whether only a rate or the queue may hold a task back. Running tasks and the rows of limits, which are few, tell which
# gates are closed, so a task costs some look-ups in hash tables. A key stops by its own pause or that of its family.
_PASSES: Final = """
task_type IN (SELECT unnest(task_types) FROM worker) AND task_type NOT IN (SELECT name FROM closed_type)
AND (concurrency_key = '' OR (concurrency_key NOT IN (SELECT name FROM closed_key)
    AND split_part(concurrency_key, ':', 1) NOT IN (SELECT name FROM stopped WHERE scope = 'key')))
AND ("user" = '' OR (queue, "user") NOT IN (SELECT queue, "user" FROM closed_user))
"""
# `kind` reads the waiting tasks once; its cost does not grow with the number of lanes. `running` has a row per kind
# of executing task. A worker that keeps slots free for a heavier task (`heavy`) takes no other one.
_STARTABLE: Final = f"""
WITH running AS MATERIALIZED (
    SELECT queue, task_type, concurrency_key, "user", count(*) AS tasks FROM queue_app_task
    WHERE status = 'executing' GROUP BY 1, 2, 3, 4
), worker AS MATERIALIZED (
    SELECT name, queues, task_types, capabilities, concurrency, free_slots,
        EXTRACT(EPOCH FROM statement_timestamp() - last_heartbeat_at)::float8 AS heard
    FROM queue_app_worker AS w WHERE {_WANTS}
        AND last_heartbeat_at BETWEEN
            statement_timestamp() - make_interval(secs => heartbeat_seconds * %(missed)s) AND statement_timestamp()
        AND NOT EXISTS (SELECT FROM queue_app_workertoken AS token WHERE token.id = w.token_id AND max_in_flight <= (
            SELECT count(*) FROM queue_app_task AS t JOIN queue_app_worker AS other ON other.id = t.worker_id
            WHERE t.status = 'executing' AND other.token_id = token.id))
), overall AS MATERIALIZED (
    SELECT * FROM queue_app_runtimesettings WHERE id = 1
), stopped AS MATERIALIZED (
    SELECT scope, name FROM queue_app_limit WHERE paused OR throttled_until > statement_timestamp()
), closed_type AS MATERIALIZED (
    SELECT name FROM stopped WHERE scope = 'type'
    UNION SELECT name FROM queue_app_limit AS l
    WHERE scope = 'type' AND {cap("l")} <= {_running("r.task_type = l.name")}
), closed_key AS MATERIALIZED (
    SELECT name FROM stopped WHERE scope = 'key'
    UNION SELECT used.name FROM (
        SELECT concurrency_key AS name, sum(tasks) AS tasks FROM running WHERE concurrency_key <> '' GROUP BY 1
    ) AS used {_OF_KEY.format(key="used.name")} WHERE {cap("k")} <= used.tasks
), closed_user AS MATERIALIZED (
    SELECT r.queue, r."user" FROM running AS r JOIN queue_app_queue AS q ON q.name = r.queue
    GROUP BY 1, 2, q.max_concurrent_per_user HAVING q.max_concurrent_per_user <= sum(r.tasks)
), kind AS MATERIALIZED (
    SELECT queue, task_type, capabilities, weight, count(*) AS tasks, min(queued_at) AS oldest FROM queue_app_task
    WHERE status = 'queued' AND EXISTS (SELECT FROM worker)
        AND NOT EXISTS (SELECT FROM overall WHERE paused OR {cap()} <= {_OVERALL})
        AND queue = ANY(ARRAY(SELECT name FROM queue_app_queue AS q
            WHERE NOT q.paused AND (q.throttled_until IS NULL OR q.throttled_until <= statement_timestamp())
                AND (q.max_concurrent IS NULL OR {cap("q")} > {_IN_QUEUE})))
        AND {_PASSES}
    GROUP BY 1, 2, 3, 4
), heavy AS MATERIALIZED (
    SELECT * FROM kind WHERE weight > 1
)
SELECT first.id, kind.queue, kind.task_type, kind.capabilities, kind.weight, first.concurrency_key, first."user",
    kind.tasks, kind.oldest, able.name, able.free_slots, able.heard,
    array_remove(ARRAY[
        CASE WHEN (SELECT COALESCE({cap()} < 4 * {_OVERALL} + 20, false) FROM overall) THEN 'everything' END,
        CASE WHEN {_limits("q", _IN_QUEUE)} THEN 'queue' END,
        CASE WHEN {_limits("t", _running("r.task_type = kind.task_type"))} THEN 'type' END,
        CASE WHEN {_limits("k", _running("r.concurrency_key = first.concurrency_key"))} THEN 'key' END,
        CASE WHEN q.max_concurrent_per_user IS NOT NULL AND first."user" <> '' THEN 'user' END
    ], NULL),
    GREATEST(0, {_PACES})::float8, GREATEST(q.updated_at, t.updated_at, own.updated_at, family.updated_at),
    statement_timestamp()
FROM kind JOIN queue_app_queue AS q ON q.name = kind.queue
CROSS JOIN LATERAL (
    SELECT name, free_slots, heard FROM worker
    WHERE {_serves("kind")} AND free_slots >= kind.weight AND NOT EXISTS (
        SELECT FROM heavy WHERE heavy.weight > worker.free_slots AND heavy.weight <= worker.concurrency
            AND {_serves("heavy")})
    ORDER BY heard LIMIT 1
) AS able
CROSS JOIN LATERAL (
    SELECT id, concurrency_key, "user" FROM queue_app_task
    WHERE status = 'queued' AND queued_at = kind.oldest AND queue = kind.queue AND task_type = kind.task_type
        AND capabilities = kind.capabilities AND weight = kind.weight AND {_PASSES}
    ORDER BY id LIMIT 1
) AS first
LEFT JOIN queue_app_limit AS t ON t.scope = 'type' AND t.name = kind.task_type
{_OF_KEY.format(key="first.concurrency_key")}
ORDER BY kind.oldest LIMIT {MOST_KINDS}
"""


class Startable(NamedTuple):
    """The oldest task of a kind that could run now, and the worker that wants one."""

    id: uuid.UUID
    queue: str
    task_type: str
    capabilities: list[str]
    weight: int
    key: str
    user: str
    tasks: int  # of this kind that could run
    oldest: datetime  # when the task was queued
    worker: str
    free_slots: int
    heard: float  # seconds since the worker said so
    limited: list[str]  # gates whose limits may have stopped the task since the last check
    pace: float  # seconds from one start to the next, by the slowest of its rates
    edited_at: datetime  # when its limits were last changed
    at: datetime  # when it was found

    @property
    def kind(self) -> tuple[Any, ...]:
        """What tells its kind from others."""
        return self.queue, self.task_type, tuple(self.capabilities), self.weight


def startable() -> list[Startable]:
    """Return the oldest task of each kind that could run now."""
    found = fetch_all(_STARTABLE, {"missed": conf.get().worker.missed_heartbeats})
    return [Startable(*row) for row in found]


_CONDITIONS: Final = {
    "everything": "true",
    "queue": "queue = %(queue)s",
    "type": "task_type = %(task_type)s",
    "key": "concurrency_key = %(key)s",
    "user": 'queue = %(queue)s AND "user" = %(user)s',
}


def started_since(since: datetime, task: Startable, gates: Iterable[str]) -> bool:
    """Whether a task that passes one of these gates of ``task`` has started since then."""
    passes = " OR ".join(f"({_CONDITIONS[gate]})" for gate in sorted(gates))
    started = f"started_at >= %(since)s AND ({passes})"
    sql = (
        f"SELECT EXISTS (SELECT FROM queue_app_task WHERE status = 'executing' AND {started})"
        f" OR EXISTS (SELECT FROM queue_app_task WHERE finished_at >= %(since)s AND {started})"
    )
    return bool(passes and fetch_value(sql, {"since": since, **task._asdict()}))


def waits_unlocked(task_id: uuid.UUID) -> bool:
    """Whether the task is still queued, and no other transaction keeps its row locked."""
    sql = "SELECT FROM queue_app_task WHERE id = %s AND status = 'queued' FOR UPDATE SKIP LOCKED"
    return bool(fetch_all(sql, [task_id]))
