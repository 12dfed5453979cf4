"""A task that passed a rate or a minimum delay starts within a second of its claim, or goes back to its place."""

import asyncio
import time
import uuid
from dataclasses import replace

import pytest

from queue_app.models import Limit, Queue, TaskAttempt
from queue_app.services.control.queues import copy_queue_limits
from queue_app.services.lifecycle import claim as claims, finish
from queue_app.services.repair.rebuild import copy_limits
from queue_app.workers import executor
from queue_app.workers.executor import Executor
from tests.support.engine import assert_index_agrees, put_many, redis_client, row
from tests.workers import chores
from tests.workers.pools.stand import opened, outcomes
from tests.workers.stage import QUICK, StillWorker, statuses
from tests.workers.test_executor import claimed

pytestmark = pytest.mark.usefixtures("engine")
RATE = {"rate_count": 3, "rate_seconds": 3600.0, "rate_burst": 3}


@pytest.fixture
def stall(clock, after):
    """Return a function that delays the next answers of PostgreSQL to grants by some seconds."""
    clock.step = 0.0001  # the loop waits for others

    def answer_later(seconds: float) -> None:
        for rows, name in ((claims.claim_rows, "claim"), (finish.finish_rows, "turn_over")):
            after(rows, name, lambda: setattr(clock, "now", clock.now + seconds))

    return answer_later


def limit(scope: str, **limits) -> None:
    """Limit the quick tasks; their bucket is full."""
    if scope == "queue":
        Queue.objects.filter(pk="default").update(**limits)
    else:
        Limit.objects.create(scope=scope, name={"type": QUICK, "key": "k"}[scope], **limits)
    copy_limits()
    fill_buckets()


def fill_buckets() -> None:
    """Let the index's clock go on by an hour."""
    index = claims.get_index()
    redis_client().hincrby(index.keys.generation, "behind", 3_600_000_000)


@pytest.mark.parametrize("scope", ["queue", "type", "key"])
@pytest.mark.parametrize("limits", [RATE, {"min_delay_seconds": 3600.0}], ids=["rate", "delay"])
@pytest.mark.parametrize("is_late", [True, False])
def test_a_grant_that_took_longer_starts_nothing(stall, scope, limits, is_late):
    limit(scope, **limits)
    ids = put_many(5, QUICK, concurrency_key="k:1", priority="critical")  # which age does not lift
    worker, most = StillWorker(concurrency=5), limits.get("rate_count", 1)
    chores.calls.clear()
    stall(1.5 if is_late else 0.0)
    worker.run_once()
    assert len(worker.pool.begun) == most
    worker.pool.finish()
    worker.run_once()
    assert len(chores.calls) == (0 if is_late else most)
    assert statuses(*ids[:most]) == ["queued" if is_late else "completed"] * most
    assert row(ids[0]).failures == TaskAttempt.objects.count() == 0
    assert_index_agrees()
    worker.pool.finish()
    worker.wake()
    worker.run_once()
    assert len(worker.pool.begun) == 0, "a token that was taken does not return"
    fill_buckets()
    stall(0.0)
    worker.wake()
    worker.run_once()
    assert len(worker.pool.begun) == (most if is_late else min(most, 5 - most)), "the next tokens start the same tasks"


def test_so_does_a_turn_over_and_tasks_without_a_rate_start_at_any_time(stall):
    Limit.objects.create(scope="type", name=QUICK, max_concurrent=1, **RATE | {"rate_burst": 2})
    Queue.objects.create(name="free", max_concurrent=1)
    copy_queue_limits("free")
    copy_limits()
    fill_buckets()
    rated, others = put_many(3, QUICK), put_many(3, QUICK.replace("quick", "slow"), queue="free")
    worker = StillWorker(concurrency=5)
    worker.run_once()
    assert len(worker.pool.begun) == 2
    worker.pool.finish()
    chores.calls.clear()
    stall(1.5)
    worker.run_once()
    worker.pool.finish()
    worker.run_once()
    assert statuses(*rated, *others) == ["completed", "queued", "queued", "completed", "completed", "executing"]
    assert len(chores.calls) == 1


@pytest.mark.parametrize("task", [chores.echo, chores.later], ids=["thread", "loop"])
def test_a_start_that_waits_for_postgresql_looks_at_the_clock_again(task, clock, after):
    """Before the function starts, results that flow into the task, or its earlier attempts, may be read."""
    held = claimed(task, 1)
    held.task = replace(held.task, start_by=clock.now + 1000)
    after(executor, "with_results", lambda: setattr(clock, "now", clock.now + 1001))
    runner = Executor(uuid.uuid4())
    outcome = asyncio.run(runner.arun(held)) if task is chores.later else runner.run(held)
    assert (outcome.is_late, outcome.is_completion, outcome.failure) == (True, False, None)


@pytest.mark.parametrize("kind", ["threads", "processes", "async"])
def test_each_pool_looks_at_the_clock_when_a_slot_starts_the_task(kind):
    """Not when it gets the task: that may wait for a slot."""
    with opened(kind) as pool:
        task = chores.later if kind == "async" else chores.echo
        late, timely = claimed(task, 1), claimed(task, 1)
        late.task = replace(late.task, start_by=time.monotonic() - 0.001)
        timely.task = replace(timely.task, start_by=time.monotonic() + 1000)
        pool.submit([late, timely])
        found = outcomes(pool, 2)
    assert [(one.is_late, one.is_completion, one.result) for one in found] == [
        (True, False, None),
        (False, True, "2" if kind == "async" else "1"),
    ]
