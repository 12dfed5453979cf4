"""What the servers hold and have written: sizes of tables and indexes, dead rows, WAL, memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from django.db import connection
from django_redis import get_redis_connection

from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.registry import type_of

MB = 1024 * 1024
_SIZES = """
SELECT c.relname, pg_table_size(c.oid) - COALESCE(pg_total_relation_size(NULLIF(c.reltoastrelid, 0)), 0),
    COALESCE(pg_total_relation_size(NULLIF(c.reltoastrelid, 0)), 0), pg_indexes_size(c.oid)
FROM pg_class AS c WHERE c.relkind = 'r' AND c.relname LIKE 'queue\\_app\\_%%'
"""
_INDEXES = """
SELECT i.relname, pg_relation_size(i.oid) FROM pg_class AS c JOIN pg_index AS x ON x.indrelid = c.oid
JOIN pg_class AS i ON i.oid = x.indexrelid WHERE c.relname = ANY(%s) ORDER BY 2 DESC
"""
_TABLES = """
SELECT sum(n_dead_tup), sum(autovacuum_count), sum(n_tup_hot_upd), sum(n_tup_upd) FROM pg_stat_user_tables
WHERE relname LIKE 'queue\\_app\\_task%%'
"""


@dataclass(frozen=True)
class Size:
    """Bytes of one table."""

    heap: int
    toast: int
    indexes: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.heap + self.toast + self.indexes


def ask(statement: str, params: Sequence[object] = ()) -> list[tuple]:
    """Return the rows of a question."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall()


def sizes() -> dict[str, Size]:
    """Return {table: its size}."""
    return {name: Size(int(heap), int(toast), int(indexes)) for name, heap, toast, indexes in ask(_SIZES)}


def index_sizes(*tables: str) -> dict[str, int]:
    """Return {index: bytes} of tables, the largest first."""
    return {name: int(size) for name, size in ask(_INDEXES, [list(tables)])}


def wal() -> int:
    """Return how many bytes of WAL have been written since the server was made."""
    return int(ask("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")[0][0])


def upkeep() -> tuple[int, int, int, int]:
    """Return dead rows now, runs of autovacuum, and updates: within a page (HOT), and all."""
    dead, runs, hot, updates = ask(_TABLES)[0]
    return int(dead), int(runs), int(hot), int(updates)


def valkey_memory() -> float:
    """Return what the index's server uses, in MB."""
    return get_redis_connection("default").info("memory")["used_memory"] / MB


def resident(pid: int) -> float:
    """Return the memory of a process and its children, shared pages counted once (PSS), in MB."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(process.memory_full_info().pss for process in family) / MB


def processor_seconds(*pids: int) -> float:
    """Return what processes, their children, and both servers have used of the processors so far."""
    return postgresql_seconds() + valkey_seconds() + _seconds(map(psutil.Process, pids))


def postgresql_seconds() -> float:
    """Return the processor time of all processes of PostgreSQL so far."""
    return _seconds([psutil.Process(ask("SELECT pg_backend_pid()")[0][0]).parent()])


def backend_seconds() -> float:
    """Return the processor time of the server process behind Django's connection, which Linux counts in nanoseconds."""
    pid = ask("SELECT pg_backend_pid()")[0][0]
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def valkey_seconds() -> float:
    """Return the processor time of the index's server so far."""
    return _seconds([psutil.Process(get_redis_connection("default").info("server")["process_id"])])


def _seconds(processes: Iterable[psutil.Process]) -> float:
    found = list(processes)
    found += [child for process in found for child in process.children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in found)  # of children that have ended too


def ordinary_tasks(first: int, count: int) -> Iterator[NewTask]:
    """Make tasks as a project has them: small parameters and results, all bands, some users and keys."""
    from bench_app.tasks import ordinary  # noqa: PLC0415 - needs Django

    for number in range(first, first + count):
        yield NewTask(
            task_type=type_of(ordinary),
            args=(number, "some words for a task"),
            parameters={},
            queue=f"queue-{number % 4}",
            priority=list(Band)[number % len(Band)],
            user=f"user-{number % 1000}" if number % 2 else "",
            idempotency_key=f"key-{number}" if number % 10 == 0 else None,
            max_retries=0 if number % 1000 == 0 else 3,
            retry_delay=1.0,
        )
