"""Queries of ``taskqueue doctor``. Their cost does not grow with the number of tasks."""

import time
import uuid
from typing import NamedTuple

from django.db import connections
from django.db.migrations.loader import MigrationLoader

from queue_app.sql.database import alias, connection, fetch_all, fetch_value


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
