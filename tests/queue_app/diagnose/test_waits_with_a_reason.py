"""The watchdog takes no wait with a reason for a stall."""

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


def paused_queue(yard):
    pause("default")
    put()


def paused_everything(yard):
    pause_everything()
    put()


def paused_type(yard):
    pause_type("a")
    put()


def paused_family_of_keys(yard):
    pause_key("customer")
    put(concurrency_key="customer:7")


def throttled_queue(yard):
    limit_queue(throttled_until=timezone.now() + timedelta(hours=1))
    put()


def full_queue(yard):
    limit_queue(max_concurrent=1)
    yard.workers[0].holds = True
    put_many(2)


def full_for_everything(yard):
    RuntimeSettings.objects.update(max_concurrent=1)
    copy_limits()
    yard.workers[0].holds = True
    put_many(2)


def full_key(yard):
    limit("key", "customer", max_concurrent=1)
    yard.workers[0].holds = True
    put_many(2, concurrency_key="customer:7")


def full_user(yard):
    limit_queue(max_concurrent_per_user=1)
    yard.workers[0].holds = True
    put_many(2, user="ada")


def full_type(yard):
    limit("type", "a", max_concurrent=1)
    yard.workers[0].holds = True
    put_many(2)


def urgent_tasks_pass(yard, **options):
    """At every look the only slot of the cap is free, and urgent tasks have passed it since the last look."""
    with index_away("push"):  # as if it always came too late
        put(priority=Band.LOW, **options)

    def more():
        put(priority=Band.CRITICAL, **options)
        yard.workers[0].work()

    yard.each_look = more


def short_tasks_pass_the_cap_of_the_queue(yard):
    limit_queue(max_concurrent=1)
    urgent_tasks_pass(yard)


def short_tasks_pass_the_cap_of_everything(yard):
    RuntimeSettings.objects.update(max_concurrent=1)
    copy_limits()
    urgent_tasks_pass(yard)


def short_tasks_pass_the_cap_of_the_type(yard):
    limit("type", "a", max_concurrent=1)
    urgent_tasks_pass(yard)


def short_tasks_pass_the_cap_of_the_family(yard):
    limit("key", "customer", max_concurrent=1)
    urgent_tasks_pass(yard, concurrency_key="customer:7")


def short_tasks_pass_the_cap_of_the_user(yard):
    limit_queue(max_concurrent_per_user=1)
    urgent_tasks_pass(yard, user="ada")


def a_task_that_is_new_at_every_look(yard):
    yard.each_look = put


def rate_that_is_used_up(yard):
    limit("type", "a", rate_count=2, rate_seconds=60, rate_burst=1)
    put_many(2)


def limit_that_was_edited_lately(yard):
    limit_queue(max_concurrent=1)
    with index_away("push"):
        put()
    yard.each_look = lambda: Queue.objects.get(pk="default").save()


def a_capability_that_no_worker_has(yard):
    put(capabilities=["gpu"])


def a_type_that_no_worker_knows(yard):
    put("b")


def a_worker_of_other_queues(yard):
    yard.workers.clear()
    Worker.objects.all().delete()
    yard.hire(queues=["mail"])
    put()


def a_worker_at_its_concurrency(yard):
    yard.workers[0].holds = True
    put_many(3)


def a_report_from_before_the_task_came(yard):
    """Since its last heartbeat the worker may have taken other tasks."""
    began = yard.now
    yard.workers.clear()
    with index_away("push"):
        put()
    yard.each_look = lambda: Worker.objects.update(
        last_heartbeat_at=timezone.now() - timedelta(seconds=yard.now - began)
    )


def a_worker_that_drains(yard):
    with index_away("push"):
        put()
    yard.each_look = lambda: Worker.objects.update(status="draining")


def a_worker_that_was_asked_to_drain(yard):
    request_drain(yard.workers[0].id, by="ada")
    with index_away("push"):
        put()


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
    with index_away("push"):
        put()


def a_locked_row(yard):
    with index_away("push"):
        task_id = put()
    other = connections["default"].copy()
    other.set_autocommit(False)
    other.cursor().execute("SELECT FROM queue_app_task WHERE id = %s FOR UPDATE", [task_id])
    yard.on_end = [other.rollback, other.close]


def an_index_that_is_rebuilt_right_now(yard):
    put()
    get_index().begin_generation(snapshot.raise_generation())


REASONS = [
    paused_queue, paused_everything, paused_type, paused_family_of_keys, throttled_queue, full_queue,
    full_for_everything, full_type, full_key, full_user,
    short_tasks_pass_the_cap_of_the_queue, short_tasks_pass_the_cap_of_everything,
    short_tasks_pass_the_cap_of_the_type, short_tasks_pass_the_cap_of_the_family,
    short_tasks_pass_the_cap_of_the_user, a_task_that_is_new_at_every_look,
    rate_that_is_used_up, limit_that_was_edited_lately,
    a_capability_that_no_worker_has, a_type_that_no_worker_knows, a_worker_of_other_queues, a_worker_at_its_concurrency,
    a_report_from_before_the_task_came, a_worker_that_drains, a_worker_that_was_asked_to_drain,
    a_heavy_head_for_which_the_worker_drains,
    a_fair_queue_whose_worker_is_busy, a_token_at_its_limit, a_locked_row, an_index_that_is_rebuilt_right_now,
]  # fmt: skip


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.__name__)
def test_a_wait_with_a_reason_is_no_stall(yard, reason, caplog):
    yard.on_end = []
    yard.hire()
    try:
        reason(yard)
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
