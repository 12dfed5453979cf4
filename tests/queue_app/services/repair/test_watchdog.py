"""The watchdog ends every stall by itself, whatever its cause, and takes no wait with a reason for a stall."""

import uuid
from datetime import timedelta

import pytest
from django.db import OperationalError, connections
from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.models import Limit, MaintenanceJob, Queue, RuntimeSettings, Task, Worker, WorkerToken
from queue_app.services.control.pause import pause, pause_everything, pause_key, pause_type
from queue_app.services.doctor import Level, work
from queue_app.services.read import stalls
from queue_app.services.repair import index_repair, watchdog
from queue_app.services.repair.rebuild import copy_limits
from queue_app.services.repair.workers import request_drain
from queue_app.services.upkeep.jobs import take_lead
from queue_app.sql import snapshot
from queue_app.workers.job import Job
from tests.support.engine import index_away, put, put_many, row
from tests.support.yard import Yard, all_done


@pytest.fixture
def yard(engine) -> Yard:
    """A yard in which only the watchdog repairs; a scheduler leads."""
    take_lead("me", 3600)
    return Yard()


@pytest.fixture
def no_comparison(monkeypatch) -> None:
    """Switch off the repair of known causes: the comparison finds nothing, and no error condemns the index."""
    monkeypatch.setattr(index_repair, "reconcile_everything", dict)
    for module in ("queue_app.services.lifecycle.claim", "queue_app.services.notify.index", "queue_app.workers.job"):
        monkeypatch.setattr(f"{module}.condemn", lambda _because: False)


def key(name: str) -> str:
    """Return a key of the index."""
    return f"{get_index().keys.prefix}:{name}"


def limit(scope: str, name: str, **limits) -> None:
    Limit.objects.create(scope=scope, name=name, **limits)
    copy_limits()


def limit_queue(**limits) -> None:
    queue = Queue.objects.get(pk="default")
    for field, value in limits.items():
        setattr(queue, field, value)
    queue.save()
    copy_limits()


def levels() -> set[Level]:
    """Return the levels of what the doctor says about stalls."""
    return {finding.level for finding in work.check_stalls()}


# -- stalls of the index ---------------------------------------------------------------------------


def lose_lanes(client):
    for name in client.keys(key("lane:*")):
        client.delete(name)


def lose_heads(client):
    for name in client.keys(key("heads:*")):
        client.delete(name)


def leak_leases_of_the_queue(client):
    ghost = uuid.uuid4().bytes
    client.zadd(key("leases:default"), {ghost: 1})
    client.hset(key("leases"), ghost, "default\x1fa\x1f")


def leak_leases_of_everything(client):
    client.hset(key("leases"), mapping={uuid.uuid4().bytes: "default\x1fa\x1f" for _ in range(5)})


def lose_limits_and_pause(client):
    client.hset(key("queue:default"), "paused", "1")
    client.sadd(key("limited"), "default")


def take_heads_for_text(client):
    for name in client.keys(key("heads:*")):
        client.set(name, "text")


DAMAGES = {
    "the lanes are empty": lose_lanes,
    "the heads are lost": lose_heads,
    "a slot of the queue has leaked": leak_leases_of_the_queue,
    "all slots have leaked": leak_leases_of_everything,
    "the index says paused, the rows do not": lose_limits_and_pause,
    "the heads are of the wrong type": take_heads_for_text,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_watchdog_alone_ends_a_stall_of_the_index(yard, no_comparison, damage, caplog):
    limit_queue(max_concurrent=1)
    RuntimeSettings.objects.update(max_concurrent=5)
    copy_limits()
    yard.hire()
    yard.look()
    assert levels() == {Level.OK}
    with index_away("push"):
        put_many(3)
    damage(get_index()._client)
    if damage is not lose_lanes:
        get_index().push(snapshot.refs(list(Task.objects.values_list("id", flat=True))))
        damage(get_index()._client)
    told = yard.until(lambda: bool(yard.kinds), most=20)
    assert told >= 10
    assert levels() == {Level.FAIL}
    assert "ERROR" in {record.levelname for record in caplog.records if "Work stands still" in record.getMessage()}
    assert told + yard.until(all_done) <= 30
    yard.look()
    assert (yard.kinds, levels()) == ([], {Level.OK})


def test_the_comparison_comes_first_and_often_suffices(yard):
    yard.hire()
    with index_away("push"):
        put_many(3)
    before = snapshot.generation()
    assert yard.until(all_done) <= 20
    assert snapshot.generation() == before


def test_the_evidence_is_said_in_plain_words(yard, no_comparison):
    yard.hire()
    with index_away("push"):
        first, _ = put_many(2)
    yard.until(lambda: bool(yard.kinds))
    (stall,) = stalls.read().stalls
    assert stall.text == (
        f"Work stands still in queue default: task {first} (a) has waited since"
        f" {timezone.localtime(row(first).queued_at):%Y-%m-%d %H:%M:%S %Z}. Worker w can run it and asks for tasks"
        " (2 free slots), and no pause or limit stands in the way. 1 more of its kind wait behind it."
    )
    assert "compared index and rows" in stall.steps
    assert MaintenanceJob.objects.get(pk="watchdog").error == stall.text


def test_the_next_leader_takes_over_the_stall(yard, no_comparison, monkeypatch):
    monkeypatch.setattr(index_repair, "condemn", lambda _because: False)
    yard.hire()
    with index_away("push"):
        put()
    yard.wait(20)
    other = Yard()
    other._ahead, other.workers = yard._ahead, yard.workers
    other.look()
    assert (other.kinds, levels()) == (["not_started"], {Level.FAIL})
    other.wait(30)
    assert (other.kinds, levels()) == (["not_started"], {Level.FAIL})


def test_a_stall_that_is_over_ends_for_the_next_leader_too(yard, no_comparison):
    yard.hire()
    with index_away("push"):
        put()
    yard.until(lambda: bool(yard.kinds))
    get_index().push(snapshot.refs(list(Task.objects.values_list("id", flat=True))))
    other = Yard()
    other._ahead, other.workers = yard._ahead, yard.workers
    other.wait(watchdog.INHERIT_SECONDS + 2)
    assert (other.kinds, levels()) == ([], {Level.OK})


# -- stalls of the scheduler ------------------------------------------------------------------------


def test_a_task_that_is_not_queued_at_its_time(yard):
    put(run_after=timezone.now() + timedelta(hours=1))
    yard.hire()
    Task.objects.update(run_after=timezone.now() - timedelta(seconds=11))
    assert 10 <= yard.until(lambda: yard.kinds == ["not_due"]) <= 14
    assert levels() == {Level.FAIL}
    assert yard.until(all_done) <= 4, "the watchdog queues it itself"
    assert (yard.kinds, levels()) == ([], {Level.OK})


def test_tasks_that_become_due_in_masses_are_no_stall(yard):
    """The job has work left for its next turn, so it makes progress, although the earliest time stays the same."""
    put(run_after=timezone.now() + timedelta(hours=1))
    Task.objects.update(run_after=timezone.now() - timedelta(seconds=11))
    yard.jobs = [Job("due", 0.5, lambda: True, has_more=True)]
    yard.each_look = lambda: setattr(yard.jobs[0], "turned_at", yard.now)
    yard.wait(30)
    assert Task.objects.get().status == "scheduled", "the watchdog did not take it for a stall"


def test_a_task_far_past_its_deadline(yard):
    worker = yard.hire()
    worker.holds = True
    put()
    yard.look()
    Task.objects.update(deadline=timezone.now() - timedelta(seconds=30))
    assert 10 <= yard.until(lambda: yard.kinds == ["overrun"]) <= 14
    assert levels() == {Level.FAIL}
    yard.wait(2)
    assert (Task.objects.get().status, yard.kinds, levels()) == ("scheduled", [], {Level.OK})


def test_a_step_of_postgresqls_clock_makes_no_task_overrun(yard):
    """By the index's clock its time is not over, so the reaper lets it run."""
    yard.hire().holds = True
    put()
    yard.look()
    hour = timedelta(hours=1)
    Task.objects.update(started_at=timezone.now() - hour, deadline=timezone.now() - timedelta(seconds=30))
    yard.wait(30)
    assert (Task.objects.get().status, yard.kinds) == ("executing", [])


def failing(yard, error: Exception, **options) -> Job:
    """Return a job that fails at every look."""

    def fail():
        job.turned_at = yard.now
        raise error

    job = Job("reconcile", 5.0, fail, **options)
    yard.jobs, yard.each_look = [job], job.run_once
    return job


def test_failures_while_postgresql_was_away_are_no_stall(yard):
    """A job of long intervals has had no turn since PostgreSQL is back."""
    job = failing(yard, OperationalError("gone"))
    job.run_once()
    job.run_once()
    yard.each_look = lambda: None
    yard.wait(29)
    assert yard.kinds == []


def test_a_script_that_fails_again_and_again(yard, no_comparison):
    """WRONGTYPE at every turn of the reconciler: a new generation replaces the key."""
    get_index()._client.hset(key("queues"), "text", "1")
    job = failing(yard, ValueError("unused"))
    job.action = lambda: setattr(job, "turned_at", yard.now) or list(get_index().lane_sizes())
    assert 10 <= yard.until(lambda: yard.kinds == ["job"]) <= 16
    assert "WRONGTYPE" in stalls.read().stalls[0].text
    assert levels() == {Level.FAIL}
    assert yard.until(lambda: not yard.kinds) <= 16
    assert levels() == {Level.OK}


def test_an_error_of_the_database_does_not_rebuild_the_index(yard):
    failing(yard, OperationalError("canceling statement due to lock timeout"))
    before = snapshot.generation()
    yard.wait(30)
    assert "has failed" in stalls.read().stalls[0].text
    assert "OperationalError: canceling statement due to lock timeout" in stalls.read().stalls[0].text
    assert snapshot.generation() == before


@pytest.mark.parametrize(("name", "rebuilds"), [("reconcile", True), ("operations", False)])
def test_an_unexpected_error_of_a_job(yard, no_comparison, name, rebuilds):
    """What the reconciler cannot read comes from the index; a bug in another job has nothing to do with it."""
    job = failing(yard, ValueError("bytes is not a 16-char string"))
    job.name = name
    before = snapshot.generation()
    yard.wait(30)
    assert "ValueError: bytes is not" in stalls.read().stalls[0].text
    assert (snapshot.generation() > before) == rebuilds


def test_redis_that_does_not_answer_is_no_stall_of_a_job(yard):
    failing(yard, IndexUnavailable("gone"))
    yard.wait(30)
    assert yard.kinds == []


def test_a_job_that_gets_no_turn_gets_one(yard):
    job = Job("reconcile", 5.0, lambda: None, due_at=float("inf"))
    yard.jobs = [job]
    assert yard.until(lambda: yard.kinds == ["job"], most=40) >= 30
    assert "is due every 5 s, and has had no turn" in stalls.read().stalls[0].text
    assert (levels(), job.due_at) == ({Level.FAIL}, 0.0)
    job.turned_at = yard.now
    yard.wait(2)
    assert (yard.kinds, levels()) == ([], {Level.OK})


def test_an_upkeep_job_that_nothing_runs(yard):
    old = timezone.now() - timedelta(minutes=7)
    MaintenanceJob.objects.create(name="purge", succeeded_at=old, error="ValueError: no")
    MaintenanceJob.objects.create(name="of an earlier version", succeeded_at=old)
    yard.wait(140)
    assert yard.kinds == [], "the scheduler itself needs two turns to run what is overdue"
    yard.wait(20)
    (stall,) = stalls.read().stalls
    assert (stall.subject, "ValueError: no" in stall.text) == ("purge", True)
    MaintenanceJob.objects.update(succeeded_at=timezone.now())
    yard.wait(4)
    assert yard.kinds == []


def test_a_leader_that_does_not_look(yard):
    assert levels() == {Level.WARN}, "it has just begun, or is of an earlier version"
    yard.look()
    assert levels() == {Level.OK}
    MaintenanceJob.objects.update(succeeded_at=timezone.now() - timedelta(seconds=61))
    (finding,) = work.check_stalls()
    assert (finding.level, "61 s ago" in finding.message) == (Level.FAIL, True)
    get_index().lock("scheduler", "me", 0)
    assert list(work.check_stalls()) == [], "without a leader, that is the finding"


# -- waits with a reason ---------------------------------------------------------------------------


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
