"""The async pool: bounded, in order; coroutines are cancelled where they await; a blocked loop is replaced."""

import asyncio
import sys
import uuid

import pytest

from queue_app import task
from queue_app.exceptions import TaskTimeout
from queue_app.workers.pools import asynchronous
from tests.support.waiting import until
from tests.workers import chores
from tests.workers.pools.stand import INTERRUPTIONS, begun, opened, outcomes, threads_of
from tests.workers.test_executor import claimed


@pytest.fixture
def pool():
    with opened("async", 2) as made:
        yield made


def test_outcomes_and_bounds(pool):
    name = uuid.uuid4().hex
    pool.submit([claimed(chores.alate, name) for _ in range(5)])
    until(lambda: len(pool.running()) == 2, "two run")
    assert pool.unstarted == 3
    assert len(pool.take_unstarted()) == 3
    chores.gates[name].set()
    assert [outcome.result for outcome in outcomes(pool, 2)] == [f'"{name}"'] * 2
    pool.submit([claimed(chores.later, number) for number in range(50)])
    assert sorted(int(outcome.result) for outcome in outcomes(pool, 50)) == [2 * number for number in range(50)]
    pool.submit([claimed(chores.leaves)])
    assert outcomes(pool)[0].failure.exception_class == "builtins.SystemExit"
    pool.submit([claimed(chores.later, 1)])
    assert outcomes(pool)[0].result == "2", "the loop lives on"


@pytest.mark.parametrize(("kind", "reason"), INTERRUPTIONS)
def test_a_coroutine_that_waits_is_cancelled(pool, kind, reason):
    held = claimed(chores.alate, uuid.uuid4().hex)
    pool.submit([held])
    until(lambda: bool(pool.running()), "it runs")
    assert pool.interrupt(held, kind)
    assert not pool.interrupt(held, kind), "once is enough"
    assert outcomes(pool)[0].failure.reason == reason


def test_a_task_that_blocks_the_loop_keeps_its_slot_and_later_tasks_get_another_loop(pool, monkeypatch):
    monkeypatch.setattr(asynchronous, "BLOCKED_SECONDS", 0.1)
    name, first, [thread] = uuid.uuid4().hex, pool._loop, threads_of(pool)
    held = begun(pool, chores.ablocks, name)
    pool.interrupt(held, TaskTimeout)
    pool.give_up(held)
    pool.submit([claimed(chores.later, 4)])
    assert outcomes(pool)[0].result == "8"
    assert threads_of(pool) != [thread]
    assert [each for each, _ in pool.running()] == [held]
    assert pool.abandon(held, TaskTimeout()).failure.reason == "timeout", "when the process ends"
    assert pool.abandon(held, TaskTimeout()) is None
    chores.gates[name].set()
    first.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert pool.take_outcomes() == []


@task
async def breaks_loop(how: str) -> None:
    """Stop the event loop, or let a callback raise what ends it."""
    loop = asyncio.get_running_loop()
    if how == "stop":
        loop.stop()
    else:
        loop.call_soon(sys.exit)
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["stop", "exit"])
def test_a_task_that_breaks_the_loop_costs_nothing(pool, how):
    pool.submit([claimed(breaks_loop, how), claimed(chores.later, 4)])
    assert {outcome.result for outcome in outcomes(pool, 2)} == {None, "8"}
