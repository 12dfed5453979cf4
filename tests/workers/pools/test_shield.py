"""A shield delays an interruption to its end, in every kind of pool."""

import asyncio
import time
import uuid
from pathlib import Path

import pytest

from queue_app import task
from queue_app.exceptions import TaskCancelled
from queue_app.workers.executor import Executor
from queue_app.workers.pools.asynchronous import AsyncPool
from queue_app.workers.pools.processes import ProcessPool
from queue_app.workers.pools.threads import ThreadPool
from queue_app.workers.rlimits import ResourceLimits
from tests.integration.processes import eventually
from tests.workers.test_executor import claimed

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@task(takes_context=True)
def shielded(context, folder: str) -> None:
    """Do something that must not be left half done, and something else."""
    log = Path(folder)
    with context.shield():
        with context.shield():
            (log / "begun").touch()
            while not (log / "gate").exists():
                time.sleep(0.005)
        (log / "done").write_text(str(context.cancelled))
    (log / "after").touch()


@task(takes_context=True)
async def shielded_coroutine(context, folder: str) -> None:
    """Do the same on an event loop."""
    log = Path(folder)
    with context.shield():
        (log / "begun").touch()
        while not (log / "gate").exists():  # noqa: ASYNC110 - the gate is opened by another thread
            await asyncio.sleep(0.005)
        (log / "done").write_text(str(context.cancelled))
    (log / "after").touch()


@pytest.fixture(params=["threads", "processes", "async"])
def pool(request):
    executor = Executor(uuid.uuid4())
    made = {
        "threads": lambda: ThreadPool(1, executor, lambda: None),
        "processes": lambda: ProcessPool(1, executor, lambda: None, ResourceLimits()),
        "async": lambda: AsyncPool(1, executor, lambda: None),
    }[request.param]()
    made.start()
    yield made
    made.stop()


def test_the_block_ends_and_then_the_attempt(pool, tmp_path):
    held = claimed(shielded_coroutine if pool.name == "async" else shielded, str(tmp_path))
    pool.submit([held])
    eventually((tmp_path / "begun").exists, "the block begins")
    if pool.name == "processes":  # else the signal would follow later
        eventually(lambda: all(slot.pid for slot in pool._slots), "the pool knows its process")
    assert pool.interrupt(held, TaskCancelled)
    time.sleep(0.05)  # one that is not put off would arrive
    assert pool.take_outcomes() == []
    (tmp_path / "gate").touch()
    outcomes = []
    eventually(lambda: outcomes.extend(pool.take_outcomes()) or outcomes, "the outcome")
    assert outcomes[0].failure.reason == "cancelled"
    assert (tmp_path / "done").read_text() == "True", "the block went on to its end, and could know"
    assert not (tmp_path / "after").exists()
