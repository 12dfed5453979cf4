"""What the benchmarks share: the table, empty rows and index, tasks put straight into the index."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection
from django_redis import get_redis_connection

from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.index import Profile, get_index
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.repair.rebuild import rebuild
from tests.support.rows import forget_known_queues

ROOT = Path(__file__).resolve().parent.parent.parent


class Table:
    """The figures: what was asked, what was measured."""

    def __init__(self, scale: int) -> None:
        self.scale = scale
        self.rows: list[tuple[str, str, str]] = []

    def sized(self, n: int) -> int:
        """Return a size, smaller in a quick run."""
        return max(1, n // self.scale)

    def add(self, what: str, asked: str, got: str) -> None:
        """Add a figure, and print it at once."""
        self.rows.append((what, asked, got))
        print(f"{what}: {got} (asked: {asked})", flush=True)

    def render(self) -> str:
        """Return all figures as a Markdown table."""
        lines = ["", "| figure | asked | measured |", "|---|---|---|"]
        return "\n".join(lines + [f"| {' | '.join(row)} |" for row in self.rows])


class Clock:
    """Adds up the time of all statements, as a wrapper of a connection."""

    seconds = 0.0
    statements = 0
    slowest = (0.0, "")

    def __call__(self, execute, sql, params, many, context):
        began = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            took = time.perf_counter() - began
            self.statements += 1
            self.seconds += took
            self.slowest = max(self.slowest, (took, sql))


def reset() -> None:
    """Empty the tables of tasks and the index, and open a generation."""
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE queue_app_task, queue_app_taskpayload, queue_app_taskresult, queue_app_taskattempt,"
            " queue_app_deadletter, queue_app_worker"
        )
    get_redis_connection("default").flushdb()
    forget_known_queues()
    rebuild()


def analyze() -> None:
    """Give the planner the statistics that autovacuum would soon have."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE queue_app_task")
        cursor.execute("VACUUM ANALYZE queue_app_taskpayload")


def fill(n: int, *, types: int = 1, capabilities: tuple[str, ...] = (), band: Band = Band.NORMAL) -> None:
    """Store n queued tasks of ``types`` task types, in order."""
    for start in range(0, n, 10_000):
        enqueue_many(
            NewTask(
                task_type=f"bench.type{number % types}",
                parameters={"number": number},
                capabilities=capabilities,
                priority=band,
            )
            for number in range(start, min(n, start + 10_000))
        )


def register(types: int = 1) -> tuple[Profile, uuid.UUID]:
    """Register a worker that knows ``types`` task types."""
    profile, worker_id = Profile.of([], [f"bench.type{number}" for number in range(types)], []), uuid.uuid4()
    get_index().register(profile, worker_id)
    return profile, worker_id


def timed(function: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def rate_of_ended(count: int) -> float:
    """Return the tasks a second from the first start to the last end; all ``count`` of them must be completed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), EXTRACT(EPOCH FROM max(finished_at) - min(started_at))"
            " FROM queue_app_task WHERE status = 'completed'"
        )
        done, seconds = cursor.fetchone()
    assert done == count, f"{done} of {count} were completed"
    return count / float(seconds)


def drain(count: int, *options: str) -> float:
    """Let one worker run what waits, and return the tasks a second."""
    with process("runworker", "--burst", *options) as worker:
        worker.wait(timeout=300)
    return rate_of_ended(count)


def peer_rates(peer: str) -> dict[str, float]:
    """Return {what: steps/s} of Celery or DBOS, if ``PEER_PYTHON`` names an interpreter that has it."""
    python = os.environ.get("PEER_PYTHON")
    if not python:
        return {}
    not_the_peers = {"PYTHONPATH", "VIRTUAL_ENV", "DJANGO_SETTINGS_MODULE"}  # Celery reads the last, if it has Django
    environment = {key: value for key, value in os.environ.items() if key not in not_the_peers}
    script = Path(__file__).with_name("peer_flows.py")
    done = subprocess.run([python, script, peer], env=environment, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout or "{}") if done.returncode == 0 else {}


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a manage.py command beside this process, and stop it at the end."""
    child = subprocess.Popen(
        [sys.executable, "manage.py", *arguments], cwd=ROOT, env=os.environ | environment, start_new_session=True
    )
    try:
        yield child
    finally:
        child.terminate()
        child.wait(timeout=60)
