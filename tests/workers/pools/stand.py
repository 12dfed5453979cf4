"""Pools of each kind, started for a test, and what their tasks bring."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from queue_app.core.records import Outcome
from queue_app.exceptions import TaskCancelled, TaskTimeout
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.executor import Executor
from queue_app.workers.pools.asynchronous import AsyncPool
from queue_app.workers.pools.base import Pool
from queue_app.workers.pools.processes import ProcessPool
from queue_app.workers.pools.threads import ThreadPool
from queue_app.workers.progress import ProgressReports
from queue_app.workers.resources import ResourceLimits
from tests.support.waiting import until
from tests.workers import chores
from tests.workers.test_executor import claimed

KINDS = ("threads", "processes", "async")
#: The interruptions, and the reasons that their failures name.
INTERRUPTIONS = ((TaskTimeout, "timeout"), (TaskCancelled, "cancelled"))


@contextmanager
def opened(
    kind: str, slots: int = 1, *, reports: Any = None, notify: Callable[[], object] = lambda: None, **limits: Any
) -> Iterator[Pool]:
    """Start a pool; at the end open the gates of its tasks, stop it, and see that its threads have ended."""
    executor = Executor(uuid.uuid4(), reports or ProgressReports(lambda: None))
    pool: Any
    if kind == "processes":
        pool = ProcessPool(slots, executor, notify, ResourceLimits(**limits))
    else:
        pool = {"threads": ThreadPool, "async": AsyncPool}[kind](slots, executor, notify)
    pool.start()
    try:
        yield pool
    finally:
        for gate in chores.gates.values():
            gate.set()
        pool.stop()
        for thread in threads_of(pool):
            thread.join(60)
            assert not thread.is_alive()


def threads_of(pool: Any) -> list[threading.Thread]:
    """Return the threads in which a pool runs tasks."""
    return {"threads": lambda: pool._threads, "async": lambda: [pool._loop._thread]}.get(pool.name, list)()


def outcomes(pool: Pool, count: int = 1) -> list[Outcome]:
    """Wait for ``count`` outcomes, and take them."""
    found: list[Outcome] = []
    until(lambda: bool(found.extend(pool.take_outcomes()) or len(found) >= count), "the outcomes")
    assert len(found) == count
    return found


def begun(pool: Pool, task: Any, *args: Any) -> ClaimedAttempt:
    """Submit a task that says with its first argument, a name, that it has begun; wait for that."""
    held = claimed(task, *args)
    pool.submit([held])
    assert chores.begun[args[0]].wait(60)
    return held
