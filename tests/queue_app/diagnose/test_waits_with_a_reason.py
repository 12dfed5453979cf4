"""The watchdog takes no wait with a reason for a stall."""

import uuid
from datetime import timedelta

import pytest
from django.db import connections
from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.index import get_index
from queue_app.models import Limit, Queue, RuntimeSettings, Task, Worker, WorkerToken
from queue_app.services.control.pause import pause, pause_everything, pause_key, pause_type
from queue_app.services.repair.rebuild import copy_limits
from queue_app.services.worker.registration import request_drain
from queue_app.sql import snapshot
from tests.support.engine import REFUSALS, index_away, index_refusing, put, put_many


def limit(scope: str, name: str, **limits) -> None:
    Limit.objects.create(scope=scope, name=name, **limits)
    copy_limits()


def limit_queue(**limits) -> None:
    queue = Queue.objects.get(pk="default")
    for field, value in limits.items():
        setattr(queue, field, value)
    queue.save()
    copy_limits()


def limit_everything() -> None:
    RuntimeSettings.objects.update(max_concurrent=1)
    copy_limits()


def put_unnoticed(**options) -> uuid.UUID:
    with index_away("push"):
        return put(**options)


def hold(yard, count: int, **options) -> None:
    """Let the worker keep what it takes of some tasks."""
    yard.workers[0].holds = True
    put_many(count, **options)


def urgent_tasks_pass(yard, **options):
    """At every look the only slot of the cap is free, and urgent tasks have passed it since the last look."""
    put_unnoticed(priority=Band.LOW, **options)  # as if it always came too late

    def more():
        put(priority=Band.CRITICAL, **options)
        yard.workers[0].work()

    yard.each_look = more


def limit_that_was_edited_lately(yard):
    limit_queue(max_concurrent=1)
    put_unnoticed()
    yard.each_look = lambda: Queue.objects.get(pk="default").save()


def a_worker_of_other_queues(yard):
    yard.workers.clear()
    Worker.objects.all().delete()
    yard.hire(queues=["mail"])
    put()


def a_report_from_before_the_task_came(yard):
    """Since its last heartbeat the worker may have taken other tasks."""
    began = yard.now
    yard.workers.clear()
    put_unnoticed()
    yard.each_look = lambda: Worker.objects.update(
        last_heartbeat_at=timezone.now() - timedelta(seconds=yard.now - began)
    )


def a_worker_that_drains(yard):
    put_unnoticed()
    yard.each_look = lambda: Worker.objects.update(status="draining")


def a_heavy_head_for_which_the_worker_drains(yard):
    yard.workers[0].holds = True
    put()
    yard.look()
    put(weight=2)
    put()


def a_fair_queue_whose_worker_is_busy(yard):
    limit_queue(order="fair")
    yard.workers[0].holds = True
    for user in ("ada", "bob"):
        put_many(3, user=user)


def a_token_at_its_limit(yard):
    token = WorkerToken.objects.create(name="t", digest="d", hint="h", max_in_flight=1, created_at=timezone.now())
    holder = yard.hire(token_id=token.id)
    yard.workers = [holder]
    Worker.objects.exclude(pk=holder.id).delete()
    holder.holds = True
    put()
    yard.look()
    put_unnoticed()


def a_locked_row(yard):
    task_id = put_unnoticed()
    other = connections["default"].copy()
    other.set_autocommit(False)
    other.cursor().execute("SELECT FROM queue_app_task WHERE id = %s FOR UPDATE", [task_id])
    yard.on_end = [other.rollback, other.close]


REASONS = {
    "the queue is paused": lambda _: (pause("default"), put()),
    "everything is paused": lambda _: (pause_everything(), put()),
    "the type is paused": lambda _: (pause_type("a"), put()),
    "the family of keys is paused": lambda _: (pause_key("customer"), put(concurrency_key="customer:7")),
    "throttled": lambda _: (limit_queue(throttled_until=timezone.now() + timedelta(hours=1)), put()),
    "the queue is full": lambda yard: (limit_queue(max_concurrent=1), hold(yard, 2)),
    "full for everything": lambda yard: (limit_everything(), hold(yard, 2)),
    "the type is full": lambda yard: (limit("type", "a", max_concurrent=1), hold(yard, 2)),
    "the key is full": lambda yard: (
        limit("key", "customer", max_concurrent=1), hold(yard, 2, concurrency_key="customer:7")
    ),
    "the user is full": lambda yard: (limit_queue(max_concurrent_per_user=1), hold(yard, 2, user="ada")),
    "short tasks pass the cap of the queue": lambda yard: (limit_queue(max_concurrent=1), urgent_tasks_pass(yard)),
    "short tasks pass the cap of everything": lambda yard: (limit_everything(), urgent_tasks_pass(yard)),
    "short tasks pass the cap of the type": lambda yard: (
        limit("type", "a", max_concurrent=1), urgent_tasks_pass(yard)
    ),
    "short tasks pass the cap of the family": lambda yard: (
        limit("key", "customer", max_concurrent=1), urgent_tasks_pass(yard, concurrency_key="customer:7")
    ),
    "short tasks pass the cap of the user": lambda yard: (
        limit_queue(max_concurrent_per_user=1), urgent_tasks_pass(yard, user="ada")
    ),
    "a task that is new at every look": lambda yard: setattr(yard, "each_look", put),
    "the rate is used up": lambda _: (
        limit("type", "a", rate_count=2, rate_seconds=60, rate_burst=1), put_many(2)
    ),
    "the limit was edited lately": limit_that_was_edited_lately,
    "no worker has the capability": lambda _: put(capabilities=["gpu"]),
    "no worker knows the type": lambda _: put("b"),
    "a worker of other queues": a_worker_of_other_queues,
    "a worker at its concurrency": lambda yard: hold(yard, 3),
    "a report from before the task came": a_report_from_before_the_task_came,
    "a worker that drains": a_worker_that_drains,
    "a worker that was asked to drain": lambda yard: (request_drain(yard.workers[0].id, by="ada"), put_unnoticed()),
    "a heavy head for which the worker drains": a_heavy_head_for_which_the_worker_drains,
    "a fair queue whose worker is busy": a_fair_queue_whose_worker_is_busy,
    "a token at its limit": a_token_at_its_limit,
    "a locked row": a_locked_row,
    "an index that is rebuilt right now": lambda _: (
        put(), get_index().begin_generation(snapshot.raise_generation())
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_a_wait_with_a_reason_is_no_stall(yard, reason, caplog):
    yard.on_end = []
    yard.hire()
    try:
        REASONS[reason](yard)
        before = snapshot.generation()
        yard.wait(40)
        assert Task.objects.filter(status="queued").exists(), "something waits"
        assert (yard.kinds, snapshot.generation()) == ([], before)
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
    finally:
        for action in yard.on_end:
            action()


def test_nothing_is_said_while_redis_is_away(yard):
    yard.hire()
    put_many(3)
    with index_away():
        yard.wait(30)
        assert yard.kinds == []
    yard.workers.clear()  # their free slots are those of the last heartbeat, from before the outage
    yard.wait(5)
    assert yard.kinds == [], "the wait counts from the end of the outage"


@pytest.mark.parametrize("cause", REFUSALS)
def test_redis_that_refuses_writes_does_not_condemn_the_index(yard, cause):
    """No repair can be written, and nothing damages the index."""
    yard.hire()
    put_many(3)
    before = snapshot.generation()
    with index_refusing(cause):
        yard.wait(30)
        assert (yard.kinds, snapshot.generation()) == ([], before)
