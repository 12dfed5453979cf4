"""The stack of a running attempt: where its thread, coroutine or process is now, without values."""

import asyncio
import os
import signal
import time

import psutil
import pytest

from queue_app import task
from queue_app.workers.pools.processes import ProcessPool
from tests.support.waiting import until
from tests.workers.pools.stand import opened, outcomes
from tests.workers.test_executor import claimed

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@task
def counts(until_file: str) -> None:
    """Wait for a file in a call of a call."""
    secret_value = "hunter2"
    waits_for(until_file, secret_value)


def waits_for(path: str, _value: str) -> None:
    """Wait for a file."""
    while not os.path.exists(path):  # noqa: PTH110 - without more calls
        time.sleep(0.01)


@task
async def acounts(until_file: str) -> None:
    """Wait for a file in a coroutine of a coroutine."""
    await await_for(until_file)


async def await_for(path: str) -> None:
    """Wait for a file."""
    while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240, PTH110 - a file of the test
        await asyncio.sleep(0.01)


@task
async def spins(until_file: str) -> None:
    """Block the event loop until there is a file."""
    waits_for(until_file, "")


@pytest.mark.parametrize(
    ("kind", "function", "innermost"),
    [
        ("threads", counts, "waits_for"),
        ("processes", counts, "waits_for"),
        ("async", acounts, "await_for"),
        ("async", spins, "waits_for"),
    ],
)
def test_the_stack_begins_with_the_function_of_the_task(tmp_path, kind, function, innermost):
    gate = tmp_path / "gate"
    with opened(kind) as pool:
        held, second = claimed(function, str(gate)), claimed(function, str(gate))
        pool.submit([held])
        until(lambda: innermost in pool.stack(held), "the call in the task")
        lines = pool.stack(held).split("\n")
        pool.submit([second])
        assert "hunter2" not in pool.stack(held)
        gate.touch()
        outcomes(pool, 2)
        assert pool.stack(held) == "waiting", "it runs no more"
    first, source = lines[:2]
    assert first.startswith("tests/workers/test_stacks.py:")
    assert first.endswith(f" {function.func.__name__}"), lines
    assert source.strip().startswith(("waits_for(until_file", "await await_for(until_file)"))
    assert any(line.endswith(f" {innermost}") for line in lines)


def test_a_process_that_is_frozen_is_said(tmp_path):
    with opened("processes") as pool:
        assert isinstance(pool, ProcessPool)
        held = claimed(counts, str(tmp_path / "gate"))
        pool.submit([held])
        until(lambda: "waits_for" in pool.stack(held), "the call in the task")
        process = psutil.Process(pool.pids[0])
        process.send_signal(signal.SIGSTOP)
        until(lambda: process.status() == psutil.STATUS_STOPPED, "that it stops")
        assert pool.stack(held) == "silent"
        process.send_signal(signal.SIGCONT)
        until(lambda: "waits_for" in pool.stack(held), "the call, once it goes on")
        (tmp_path / "gate").touch()
        assert outcomes(pool)[0].failure is None
