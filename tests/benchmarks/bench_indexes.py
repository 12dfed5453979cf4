"""What the indexes that only the API's filters need cost: enqueueing and draining with and without each, in turn.

Each line also has the processor time of PostgreSQL, which says more than rates on a busy machine.
"""

from statistics import median
from typing import NamedTuple

from bench import Table, analyze, drain, reset, timed
from bench_app.tasks import noop
from bench_rows import fill
from django.db import connection
from django.db.models import Index, Model
from growth import postgresql_seconds, wal

from queue_app.core.records import NewTask
from queue_app.models import Task, TaskPayload
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many

FILLED = 100_000
TASKS = 10_000
ROUNDS = 6
INDEXES = {
    "taskqueue_parameters": TaskPayload, "taskqueue_by_type": Task, "taskqueue_by_key": Task,
    "taskqueue_ended_pages": Task,
}  # fmt: skip

_PURGE = "DELETE FROM queue_app_task WHERE id IN (SELECT id FROM queue_app_task ORDER BY id LIMIT %s)"


class Round(NamedTuple):
    """Tasks a second, PostgreSQL's processor time for one, in µs, and the WAL of one, in bytes."""

    enqueued: float
    drained: float
    enqueue_time: float
    drain_time: float
    wal: float


def run(table: Table) -> None:
    """Take rounds with and without each index in turn, the one that comes first changing."""
    reset()
    fill(table.sized(FILLED))
    analyze()
    n = table.sized(TASKS)
    for name, model in INDEXES.items():
        index = next(index for index in model._meta.indexes if index.name == name)
        found: dict[bool, list[Round]] = {True: [], False: []}
        for number in range(ROUNDS):
            for there in (number % 2 == 0, number % 2 == 1):
                _remake(model, index, n, there=there)
                found[there].append(_round(n))
        _remake(model, index, 0, there=True)
        for i, what in enumerate(("enqueue_many", "drain")):
            rates, times = ([[one[i + of] for one in found[there]] for there in (True, False)] for of in (0, 2))
            table.add(f"{what} with {name} / without", "≥ 0.95", f"{median(rates[0]) / median(rates[1]):.2f}")
            table.add(
                f"{what}, processor time of PostgreSQL, µs a task, with {name} / without", "-",
                f"{median(times[0]):.1f} / {median(times[1]):.1f}",
            )  # fmt: skip
        written = [median(one.wal for one in found[there]) for there in (True, False)]
        table.add(f"WAL, bytes a task, with {name} / without", "-", f"{written[0]:,.0f} / {written[1]:,.0f}")
    reset()


def _remake(model: type[Model], index: Index, n: int, *, there: bool) -> None:
    """Build the index, so that both kinds of round begin with the same work behind them, and drop it again or not."""
    with connection.schema_editor() as editor:
        editor.execute(f"DROP INDEX IF EXISTS {index.name}")
        editor.add_index(model, index)
        if not there:
            editor.remove_index(model, index)
    with connection.cursor() as cursor:  # the next tasks go to pages of purged ones, as they do after some days
        cursor.execute(_PURGE, [n])
        cursor.execute("VACUUM queue_app_task")
        cursor.execute("CHECKPOINT")


def _round(n: int) -> Round:
    """Enqueue and drain ``n`` tasks with parameters of their own, of a hundred concurrency keys."""
    calls = [
        NewTask(task_type=type_of(noop), parameters={"number": number}, concurrency_key=f"account:{number % 100}")
        for number in range(n)
    ]
    results = []
    began, written = postgresql_seconds(), wal()
    enqueued = n / timed(lambda: results.extend(enqueue_many(calls)))
    stored = postgresql_seconds()
    rate = drain(n, since=min(result.id for result in results))
    drained, written = postgresql_seconds(), wal() - written
    micro = 1e6 / n
    return Round(enqueued, rate, (stored - began) * micro, (drained - stored) * micro, written / n)
