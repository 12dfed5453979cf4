"""Attempts of coroutine functions: blocking calls run in a thread, never on the event loop."""

import asyncio
import threading

from asgiref.sync import sync_to_async
from django.db import connections
from django.tasks.signals import task_finished, task_started

from queue_app import task
from queue_app.core.states import Status
from queue_app.exceptions import TaskTimeout
from queue_app.models import Task
from queue_app.services.lifecycle.finish import finish
from queue_app.services.upkeep.promote import make_due
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.executor import Executor
from tests.support.engine import take
from tests.workers.pools.stand import opened, outcomes
from tests.workers.test_executor import claimed

counted = []
begun, go_on = threading.Event(), threading.Event()


def by_rows(_exception, task_result):
    """Ask the database, as a project may."""
    counted.append(Task.objects.count())
    return 30 if task_result.attempts < 2 else 60


@task(backoff=by_rows, max_attempts=3, takes_context=True)
async def asks(context) -> list[object]:
    if context.attempt < 3:
        raise KeyError(context.attempt)
    return [context.attempt, len(context.task_result.errors), len(context.task_result.worker_ids)]


def by_slow_function(_exception, _result):
    """Take its time."""
    begun.set()
    assert go_on.wait(30)
    return 5


@task(backoff=by_slow_function)
async def fails() -> None:
    raise KeyError


def attempt(hand):
    """Run one attempt on a new event loop."""

    async def run():
        try:
            return await Executor(hand.id).arun(ClaimedAttempt(claim, 0.0))
        finally:
            await sync_to_async(connections.close_all)()

    [claim] = take(hand)
    outcome = asyncio.run(run(), debug=True)
    finish([outcome])
    return outcome


def test_history_listeners_and_backoff_may_use_the_database(engine):
    """Django refuses such calls on an event loop, so their success shows that they ran in a thread."""
    heard = []

    def listener(task_result, **_):
        heard.append((task_result.status.value, Task.objects.count()))

    for signal in (task_started, task_finished):
        signal.connect(listener)
    try:
        hand = engine.worker(f"{__name__}.asks")
        result = asks.enqueue()
        ended = []
        for _ in range(3):
            ended.append(attempt(hand))
            Task.objects.filter(status="scheduled").update(run_after="2026-01-01T00:00Z")
            make_due()
    finally:
        for signal in (task_started, task_finished):
            signal.disconnect(listener)
    assert [outcome.failure and outcome.failure.retry_after for outcome in ended] == [30, 60, None]
    assert counted == [1, 1]
    assert heard == [("RUNNING", 1), ("FAILED", 1), ("RUNNING", 1), ("FAILED", 1), ("RUNNING", 1), ("SUCCESSFUL", 1)]
    result.refresh()
    assert result.return_value == [3, 2, 3], "the third sees the errors and workers of the first two"
    assert Task.objects.get().status == Status.COMPLETED


def test_a_timeout_that_comes_after_the_end_keeps_no_outcome_back():
    """The coroutine has failed, and its backoff takes long: the slot must not be lost."""
    begun.clear()
    go_on.clear()
    with opened("async") as pool:
        held = claimed(fails)
        pool.submit([held])
        assert begun.wait(30)
        assert pool.interrupt(held, TaskTimeout)
        go_on.set()
        [outcome] = outcomes(pool)
        assert (outcome.failure.exception_class, outcome.failure.retry_after) == ("builtins.KeyError", 5)
        assert pool.running() == []
