"""The watchdog ends every stall by itself, whatever its cause."""

import uuid
from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from queue_app.core.reasons import Level
from queue_app.diagnose import stalls, watchdog, work
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.models import MaintenanceJob, Queue, RuntimeSettings, Task
from queue_app.services.repair.rebuild import copy_limits
from queue_app.services.upkeep.jobs import resign
from queue_app.sql import snapshot
from queue_app.workers.scheduler import Job
from tests.support.engine import index_away, index_refusing, put, put_many, row
from tests.support.index_state import client_of
from tests.support.yard import all_done


@pytest.fixture
def no_comparison(monkeypatch) -> None:
    """Switch off the repair of known causes: the comparison finds nothing, and no error condemns the index."""
    monkeypatch.setattr(watchdog, "reconcile_everything", dict)
    for module in (
        "queue_app.services.lifecycle.claim",
        "queue_app.services.notify.index",
        "queue_app.workers.scheduler",
    ):
        monkeypatch.setattr(f"{module}.condemn", lambda _because: False)


def key(name: str) -> str:
    """Return a key of the index."""
    return f"{get_index().keys.prefix}:{name}"


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
    Queue.objects.update(max_concurrent=1)
    RuntimeSettings.objects.update(max_concurrent=5)
    copy_limits()
    yard.hire()
    yard.look()
    assert levels() == {Level.OK}
    with index_away("push"):
        put_many(3)
    damage(client_of(get_index()))
    if damage is not lose_lanes:
        get_index().push(snapshot.refs(list(Task.objects.values_list("id", flat=True))))
        damage(client_of(get_index()))
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
        " (2 free slots), and no pause or limit stands in the way. 1 more of its kind waits behind it."
    )
    assert "compared index and rows" in stall.steps
    assert MaintenanceJob.objects.get(pk="watchdog").error == stall.text


def test_the_next_leader_takes_over_the_stall(yard, no_comparison, monkeypatch):
    monkeypatch.setattr(watchdog, "condemn", lambda _because: False)
    yard.hire()
    with index_away("push"):
        put()
    yard.wait(20)
    other = yard.of_next_leader()
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
    other = yard.of_next_leader()
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
    client_of(get_index()).hset(key("queues"), "text", "1")
    job = failing(yard, ValueError("unused"))
    job.action = lambda: setattr(job, "turned_at", yard.now) or list(get_index().lane_sizes())
    assert 10 <= yard.until(lambda: yard.kinds == ["job"]) <= 16
    assert "WRONGTYPE" in stalls.read().stalls[0].text
    assert levels() == {Level.FAIL}
    assert yard.until(lambda: not yard.kinds) <= 16
    assert levels() == {Level.OK}


def test_a_job_that_fails_because_redis_refuses_writes_is_a_stall_without_repairs(yard):
    job = failing(yard, ValueError("unused"))

    def write() -> None:
        job.turned_at = yard.now
        get_index().lock("some", "token", 1)

    job.action = write
    before = snapshot.generation()
    with index_refusing("maxmemory"):
        assert yard.until(lambda: yard.kinds == ["job"]) <= 16
        yard.wait(20)
        assert "maxmemory" in next(iter(yard.watchdog.stalls.values())).text
        assert snapshot.generation() == before
    assert yard.until(lambda: not yard.kinds) <= 16


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
    resign("me")
    assert list(work.check_stalls()) == [], "without a leader, that is the finding"
