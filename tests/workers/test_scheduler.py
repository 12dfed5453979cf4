"""The scheduler: one leads, every job gets its turn, and no job stops the others."""

import logging
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from unittest.mock import Mock

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from queue_app.core.states import Status
from queue_app.diagnose import stalls, watchdog
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.models import MaintenanceJob, QueueStats, Task, Worker
from queue_app.registry import type_of
from queue_app.services.upkeep import maintenance
from queue_app.services.upkeep.jobs import leader_lapses
from queue_app.sql.database import execute, fetch_value
from queue_app.workers import scheduler as module
from queue_app.workers.lifecycle import Exit
from queue_app.workers.scheduler import Job, Scheduler
from tests.integration.app import tasks
from tests.support.engine import (
    assert_index_agrees,
    flush,
    index_away,
    put,
    put_many,
    redis_client,
    status,
)
from tests.support.waiting import until
from tests.workers import chores
from tests.workers.stage import nobody_leads, tick

QUICK = type_of(chores.quick)
JOBS = ["rebuild", "due", "reap", "reconcile", "fallback"]


def replace(job: Job, action: Callable[[], object]) -> None:
    """Replace the action of a job, and run it in each of its turns."""
    job.action, job.asks, job.next_in = action, (), None


def bide(seconds: float = 10) -> dict[str, object]:
    """Options of a task that is due ``seconds`` later."""
    return {"run_after": timezone.now() + timedelta(seconds=seconds)}


def test_every_job_runs_at_first_and_then_at_its_time(make):
    scheduler = make()
    assert [name for name in scheduler.run_once() if name in JOBS] == JOBS
    assert scheduler.run_once() == []
    assert tick(scheduler, "due", "reap") == ["due", "reap"]
    assert scheduler.next_at() == min(job.due_at for job in scheduler.jobs)


def test_upkeep_waits_for_a_moment_when_a_scheduler_takes_the_lead(make):
    """Other work is more urgent after a start or a failover, also for a scheduler that stood by for long."""
    leader, standby = make(), make()
    assert not {"maintenance", "purge"} & {*leader.run_once(), *standby.run_once()}
    leader.resign()
    for job in standby.jobs:
        job.due_at = 0.0
    began = time.monotonic()
    assert not {"maintenance", "purge"} & set(standby.run_once())
    ended = time.monotonic()
    for job in (job for job in standby.jobs if job.name in {"maintenance", "purge"}):
        assert began <= job.due_at - module.UPKEEP_AFTER_SECONDS <= ended
    assert tick(standby, "maintenance", "purge") == ["maintenance", "purge"]


def test_due_tasks_are_queued(make, hire):
    task_id = put(QUICK, **bide())
    scheduler = make()
    tick(scheduler, "due")
    assert status(task_id) == Status.SCHEDULED
    Task.objects.update(run_after=timezone.now())
    tick(scheduler, "due")
    assert status(task_id) == Status.QUEUED
    hire().until_empty()
    assert status(task_id) == Status.COMPLETED


@pytest.fixture
def batches(monkeypatch) -> None:
    """Make ten tasks due in one statement."""
    monkeypatch.setattr(module, "DUE_BATCH", 10)
    plain = module.make_due
    monkeypatch.setattr(module, "make_due", lambda **options: plain(limit=10, **options))


def test_many_due_tasks_are_queued_in_one_turn(make, batches):
    put_many(35, QUICK, **bide())
    Task.objects.update(run_after=timezone.now())
    tick(make(), "due")
    assert Task.objects.filter(status="queued").count() == 35


def test_many_due_tasks_leave_the_others_their_turns(make, batches, monkeypatch):
    monkeypatch.setattr(module, "DUE_SECONDS", 0)  # never enough
    put_many(25, QUICK, **bide())
    Task.objects.update(run_after=timezone.now())
    scheduler = make()
    assert tick(scheduler, "due", "reap") == ["due", "reap"]
    assert [scheduler.run_once() for _ in range(3)] == [["due"], ["due"], []]
    assert Task.objects.filter(status="queued").count() == 25


@pytest.mark.parametrize("job", ["rebuild", "reconcile"])
def test_what_the_index_has_lost_is_found(make, hire, job):
    if job == "rebuild":
        task_id = put(QUICK)
        flush()
    else:
        with index_away():
            task_id = put_many(1, QUICK)[0]
    tick(make(), job)
    assert_index_agrees()
    hire().until_empty()
    assert status(task_id) == Status.COMPLETED


def test_tasks_of_a_silent_worker_are_queued_again(make, hire):
    task_id = put(QUICK)
    hire().run_once()
    Worker.objects.update(last_heartbeat_at=timezone.now() - timedelta(hours=1), heartbeat_seconds=0.1)
    scheduler = make()
    tick(scheduler, "reap")
    assert status(task_id) == Status.EXECUTING, "it has only begun to listen"
    until(lambda: tick(scheduler, "reap") and status(task_id) == Status.QUEUED, "three heartbeats are missed")
    assert_index_agrees()


def test_a_lost_wake_up_call_is_repeated(make, hire):
    worker = hire()
    worker.run_once()
    put(QUICK)
    assert get_index().wait_for_call(worker.id, 5)  # and dies with it
    other = hire()
    prefix = get_index().keys.prefix
    redis_client().zadd(f"{prefix}:idle:{other.profile.id}", {str(other.id): 1})
    tick(make(), "fallback")
    assert get_index().wait_for_call(other.id, 5)


@pytest.mark.parametrize("celery_works", [True, False])
def test_the_scheduler_runs_overdue_maintenance(make, celery_works):
    if celery_works:
        at = timezone.now() - timedelta(seconds=90)
        MaintenanceJob.objects.bulk_create(MaintenanceJob(name=name, succeeded_at=at) for name in maintenance.JOBS)
    before = QueueStats.objects.count()
    tick(make(), "maintenance")
    assert QueueStats.objects.count() == before + (not celery_works)


def test_maintenance_on_demand(make):
    QueueStats.objects.create(queue="default", taken_at=timezone.now() - timedelta(seconds=90))
    tick(make(with_maintenance=True), "maintenance")
    assert QueueStats.objects.count() == 2


def test_a_long_purge_leaves_the_others_their_turns(make, hire, monkeypatch):
    """It deletes for a short time, and continues after the other jobs until nothing is left."""
    monkeypatch.setattr(maintenance, "PURGE_BATCH", 2)
    monkeypatch.setattr(module, "PURGE_SECONDS", 0)  # never enough
    put_many(5, QUICK)
    hire().until_empty()
    Task.objects.update(finished_at=timezone.now() - timedelta(days=100))
    scheduler = make()
    ran, left = [tick(scheduler, "due", "purge")], [Task.objects.count()]
    while left[-1]:
        next(job for job in scheduler.jobs if job.name == "reap").due_at = 0
        ran.append(scheduler.run_once())
        left.append(Task.objects.count())
    assert ran == [["due", "purge"], ["reap", "purge"], ["reap", "purge"]]
    assert left == [3, 1, 0]
    monkeypatch.setattr(module, "PURGE_SECONDS", 60)
    assert [scheduler.run_once(), scheduler.run_once()] == [["purge"], []]


def test_work_that_stands_still_is_noticed_and_ended(make, hire, monkeypatch):
    """The watchdog is a job of the scheduler; its own tests are in tests/queue_app/services/repair."""
    monkeypatch.setattr(stalls, "PAUSE_FACTOR", 0.0)  # its query may take long on a busy machine
    began, ahead = time.monotonic(), 0.0
    scheduler, worker = make(), hire()
    dog = next(job for job in scheduler.jobs if job.name == "watchdog").is_wanted.__self__
    dog._clock = dog._repair._clock = lambda: began + ahead
    worker.run_once()
    with index_away("push"):
        task_id = put(QUICK)
    for _ in range(20):
        worker.beat()
        tick(scheduler, "watchdog")
        worker.turn()
        if status(task_id) == Status.EXECUTING:
            break
        ahead += watchdog.CHECK_SECONDS
    assert status(task_id) == Status.EXECUTING
    assert 10 <= ahead <= 16
    tick(scheduler, "watchdog")
    assert MaintenanceJob.objects.get(pk="watchdog").error == ""


# -- the query -------------------------------------------------------------------------------------------


def asking(scheduler: Scheduler) -> tuple[list[str], list[str]]:
    """Record the calls of jobs that run if the answers name work; return the names of these jobs, and the calls."""
    called: list[str] = []
    jobs = [job for job in scheduler.jobs if job.asks and job.name != "watchdog"]
    for job in jobs:
        job.action = lambda name=job.name: called.append(name)
    return [job.name for job in jobs], called


def test_without_work_one_query_answers_for_all_jobs(make, monkeypatch):
    scheduler = make()
    names, called = asking(scheduler)
    for _ in range(8):  # until the statement is prepared
        assert tick(scheduler, *names) == names
    with connection.execute_wrapper(lambda *_: pytest.fail("a statement of its own")):
        monkeypatch.setattr(module, "pending_work", spy := Mock(wraps=module.pending_work))
        assert tick(scheduler, *names) == names
    assert spy.call_count == 1
    assert called == []


def test_only_the_questions_of_due_jobs_are_asked(make, monkeypatch):
    """A job with a long interval asks its questions at that interval only."""
    monkeypatch.setattr(module, "pending_work", spy := Mock(wraps=module.pending_work))
    scheduler = make()
    tick(scheduler, "rebuild", "due", "requests")
    tick(scheduler, "requests", "maintenance")
    assert [call.args[0] for call in spy.call_args_list] == [{"generation", "due"}]


@pytest.mark.parametrize("error", [OperationalError("gone"), RuntimeError("a bug")])
def test_if_the_query_fails_every_job_runs(make, monkeypatch, error, caplog):
    scheduler = make()
    names, called = asking(scheduler)
    tick(scheduler, *names)
    monkeypatch.setattr(module, "pending_work", Mock(side_effect=error))
    for _ in range(2):
        tick(scheduler, *names)
    assert called == names * 2
    assert caplog.text.count("pending_work failed") == 1


def test_jobs_that_are_due_soon_run_with_jobs_that_are_due_now(make):
    scheduler = make()
    scheduler.run_once()
    now = time.monotonic()
    for job, seconds in zip(scheduler.jobs, (0, 0.05, 60, 60, 0.02), strict=False):
        job.due_at = now + seconds
    assert scheduler.run_once() == ["rebuild", "due", "reap"]


def test_jobs_of_different_intervals_have_their_turns_together():
    """Otherwise each would get a turn and a query of its own, as soon as one takes longer than the others."""
    job = Job("a", 1.0, lambda: None)
    assert [job.next_turn(now, now, None) for now in (999.95, 1000.0, 1000.3, 1000.85)] == [1001] * 4
    assert job.next_turn(1000.0, 1000.95, None) == 1002
    assert Job("b", 3.0, lambda: None).next_turn(1000.0, 1000.3, None) == 1003
    assert Job("c", 0.5, lambda: None).next_turn(1000.0, 1000.3, None) == 1000.5


def test_a_job_that_can_tell_when_work_is_due_has_its_turn_then():
    job = Job("a", 5.0, lambda: None, next_in=lambda answers: answers["due"])
    found = {seconds: job.next_turn(1000.0, 1000.2, {"due": seconds}) for seconds in (2.5, 60.0, float("inf"), -1.0)}
    assert found == {2.5: 1002.5, 60.0: 1005, float("inf"): 1005, -1.0: 1000.7}, "after work, more may be due soon"


def test_a_task_becomes_due_at_its_time_even_between_two_turns(make):
    """The interval is an hour here."""
    put(QUICK, **bide(60))
    scheduler = make()
    tick(scheduler, "due")
    assert scheduler.next_at() == next(job for job in scheduler.jobs if job.name == "due").due_at
    assert time.monotonic() < scheduler.next_at() <= time.monotonic() + 60


# -- backoff --------------------------------------------------------------------------------------------


def test_one_leads_without_redis_and_its_jobs_on_rows_go_on(make):
    task_id = put(QUICK, **bide())
    Task.objects.update(run_after=timezone.now())
    first, second = make(), make()
    with index_away():
        assert first.run_once()
        assert second.run_once() == []
    assert status(task_id) == Status.QUEUED
    first.ask_again()
    tick(first)
    assert_index_agrees()


@pytest.mark.parametrize("error", [OperationalError("gone"), IndexUnavailable("gone"), RuntimeError("gone")])
def test_a_failing_job_does_not_stop_the_others(make, error, caplog):
    def fail() -> None:
        raise error

    scheduler = make()
    replace(scheduler.jobs[0], fail)
    needing_redis = {"reconcile", "fallback"} if isinstance(error, IndexUnavailable) else set()
    assert [name for name in tick(scheduler) if name in JOBS] == [name for name in JOBS if name not in needing_redis]
    assert scheduler.jobs[0].failures
    assert not any(job.failures for job in scheduler.jobs[1:])
    tick(scheduler, "rebuild")
    assert caplog.text.count("rebuild failed") == 1
    scheduler.jobs[0].action = lambda: None
    scheduler.ask_again()
    tick(scheduler, "rebuild")
    assert not scheduler.jobs[0].failures


def test_it_stops_between_jobs(make):
    scheduler = make()
    replace(scheduler.jobs[1], scheduler.stop)
    assert tick(scheduler) == JOBS[:2]


def test_it_runs_until_it_is_stopped_and_releases_the_lead(make):
    scheduler = make()
    ran = []
    for job in scheduler.jobs:
        replace(job, lambda: ran.append(1) or (signal.raise_signal(signal.SIGTERM) if len(ran) == 3 else None))
    assert scheduler.run() is Exit.OK
    assert len(ran) == 3
    assert make().run_once()


# -- as a process -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes(fleet):
    """The second takes over when the first is killed; both end in order."""
    task_id = put(type_of(tasks.add), args=[1, 2], **bide(3600))
    first = fleet.scheduler()
    until(lambda: "leads" in first.log, "the first leads")
    second = fleet.scheduler()
    until(lambda: not nobody_leads(), "the lock is held")
    first.kill()
    until(lambda: "leads" in second.log, "the second takes over")
    Task.objects.update(run_after=timezone.now())
    until(lambda: status(task_id) == Status.QUEUED, "what is due is queued")
    second.send(signal.SIGTERM)
    assert second.exit_code() == 0
    assert "Traceback" not in second.log
    assert nobody_leads()


def test_its_loop_heartbeat_shows_that_the_loop_turns(make):
    scheduler = make()
    assert scheduler.loop_heartbeat.age is None
    scheduler.run_once()
    assert scheduler.loop_heartbeat.age < module.STALE_SECONDS


# -- which one leads -------------------------------------------------------------------------------------------------


def test_one_leads_and_each_says_what_it_does(make, caplog):
    caplog.set_level(logging.INFO, "taskqueue")
    first, second = make(), make()
    assert first.run_once()
    assert second.run_once() == []
    lines = [message for message in caplog.messages if message.startswith("scheduler ")]
    assert lines == [
        f"scheduler {first.token[:8]} leads",
        f"scheduler {second.token[:8]} stands by: another one leads, and this one takes over if that one ends",
    ]
    assert second.run_once() == []
    assert sum("stands by" in message for message in caplog.messages) == 1
    assert (first.leads, second.leads) == (True, False)
    assert tick(first, "due") == ["due"]
    assert tick(second, "due") == []


def test_the_other_takes_over_when_the_lock_has_lapsed(make, index):
    first, second = make(), make()
    first.run_once()
    execute("DELETE FROM queue_app_rows_lock")  # what its expiry does
    assert second.run_once()
    assert tick(first, "due") == ["due"], "for a moment both do"
    first.renew_next()
    assert tick(first, "due") == []
    assert (first.leads, second.leads) == (False, True)


def test_the_lead_is_renewed_five_times_before_it_lapses(make, clock, index):
    began = clock.now
    scheduler = make(leader_seconds=15)
    scheduler.run_once()
    renewed = []
    for _ in range(30):
        clock.now += 0.5
        before = fetch_value("SELECT xmin::text FROM queue_app_rows_lock")
        tick(scheduler, "requests")
        renewed += [clock.now - began] if before != fetch_value("SELECT xmin::text FROM queue_app_rows_lock") else []
    assert renewed == pytest.approx([3, 6, 9, 12, 15])


def test_the_lead_lapses_by_itself(make):
    make(leader_seconds=2).run_once()
    assert 0 < leader_lapses() <= 2


def test_the_other_takes_over_at_once_when_the_first_leaves(make):
    first, second = make(), make()
    first.run_once()
    first.resign()
    assert second.run_once()


def test_a_standby_cannot_release_the_lead_of_the_leader(make):
    first, second, third = make(), make(), make()
    first.run_once()
    second.resign()
    assert third.run_once() == []


def test_a_scheduler_on_standby_checks_often_enough(make, clock):
    make().run_once()
    second = make(leader_seconds=30)
    second.run_once()
    assert second.next_at() == clock.now + 10
