"""Faults of the work itself: the index, schedulers, schedules, workers and tasks."""

from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from queue_app import Workflow
from queue_app.core.reasons import Level
from queue_app.diagnose import work
from queue_app.models import (
    IndexGeneration,
    Limit,
    MaintenanceJob,
    Queue,
    RuntimeSettings,
    Schedule,
    Task,
    Worker,
    Workflow as Flow,
)
from queue_app.registry import type_of
from queue_app.schedules.diagnose import check_schedules
from queue_app.schedules.edit import create_schedule
from queue_app.schedules.pause import pause_schedule, resume_schedule
from queue_app.schedules.tick import run_due
from queue_app.services.control.pause import pause, pause_key, pause_type
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify.index import condemn
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.upkeep.jobs import take_lead
from queue_app.services.upkeep.maintenance import run_overdue
from queue_app.sql import snapshot
from queue_app.workflows.diagnose import check_workflows
from tests.support.engine import failed, flush, index_away, put, put_many, take
from tests.support.factories import DeadLetterFactory
from tests.support.findings import assert_finding, only, register_live
from tests.workers import chores

ECHO = type_of(chores.echo)


def test_an_index_that_was_lost(engine):
    assert_finding(work.check_index, Level.OK, "generation 1, ready")
    flush(engine)
    assert_finding(work.check_index, Level.FAIL, "missing")


def test_an_index_that_is_being_rebuilt(engine, override):
    number = snapshot.raise_generation()
    assert_finding(work.check_index, Level.FAIL, "The index is of another generation than the rows.")
    engine.index.begin_generation(number)
    assert_finding(work.check_index, Level.WARN, "has rebuilt it from PostgreSQL. It began 0 s ago.")
    override(work, REBUILD_SECONDS=-1.0)
    assert_finding(work.check_index, Level.FAIL, "rebuilding")


def test_an_index_that_is_damaged_again_and_again(engine):
    for _ in range(3):
        assert_finding(work.check_index, Level.OK, "ready for")
        assert condemn("a key has the wrong type")
        IndexGeneration.objects.update(condemned_at=timezone.now() - timedelta(seconds=60))
        rebuild()
    assert_finding(work.check_index, Level.WARN, "condemned 3 times in a row and rebuilt, last because: a key has")
    IndexGeneration.objects.update(condemned_at=timezone.now() - timedelta(minutes=11))
    assert_finding(work.check_index, Level.OK, "ready for")


def test_no_scheduler(engine):
    assert_finding(work.check_scheduler, Level.FAIL, "No scheduler runs: due tasks and retries are not queued")
    take_lead("me", 15)
    assert_finding(work.check_scheduler, Level.OK, "one leads")


def test_overdue_maintenance(engine):
    assert_finding(work.check_maintenance, Level.WARN, "promote never ran")
    run_overdue(every=True)
    assert_finding(work.check_maintenance, Level.OK, "on time")
    MaintenanceJob.objects.filter(name="promote").update(succeeded_at=timezone.now() - timedelta(hours=1))
    assert_finding(work.check_maintenance, Level.WARN, "promote 3,6")
    MaintenanceJob.objects.filter(name="promote").update(error="ValueError: no")
    assert_finding(work.check_maintenance, Level.FAIL, "promote: ValueError: no")


def test_schedules_that_are_late_or_fail(engine):
    assert_finding(check_schedules, Level.OK, "0 tick")
    now = timezone.now()
    for name in ("nightly", "hourly"):
        create_schedule(name, {"task_type": ECHO, "args": [1], "every": 60}, now=now - timedelta(minutes=30))
    later = now + timedelta(hours=1)
    Schedule.objects.filter(name="hourly").update(due_at=later, next_instant=later)
    assert_finding(check_schedules, Level.FAIL, "The schedule nightly was due ")
    # A scheduler that cannot let it tick puts it off.
    Schedule.objects.filter(name="nightly").update(due_at=now + timedelta(minutes=1))
    assert_finding(check_schedules, Level.FAIL, "nightly")
    run_due(now=now + timedelta(minutes=1))
    assert_finding(check_schedules, Level.OK, "2 tick")


def test_a_schedule_fails_until_it_succeeds_or_is_paused(engine):
    now = timezone.now()
    schedule = create_schedule("nightly", {"task_type": ECHO, "args": [1], "every": 3600}, now=now)
    for hour, outcome in enumerate(["failed", "completed", "failed", "dead_letter", "expired"]):
        assert_finding(check_schedules, Level.OK, "1 tick")
        schedule.ticks.create(instant=now + timedelta(hours=hour), at=now, task_id=uuid4(), outcome=outcome)
    schedule.ticks.create(instant=now + timedelta(hours=5), at=now, reason="Skipped, because the earlier one runs.")
    schedule.ticks.create(instant=now + timedelta(hours=6), at=now, task_id=uuid4())  # still runs
    assert_finding(check_schedules, Level.WARN, "The schedule nightly has failed 3 times in a row.")
    pause_schedule("nightly")
    assert_finding(check_schedules, Level.OK, "1 tick")
    resume_schedule("nightly")
    schedule.ticks.filter(outcome=None).update(outcome="completed", task_id=uuid4())
    assert_finding(check_schedules, Level.OK, "1 tick")


def test_workers_that_are_missing_silent_or_dead(engine):
    assert_finding(work.check_workers, Level.WARN, "No live worker takes new tasks.")
    put()
    assert_finding(work.check_workers, Level.FAIL, "No live worker takes new tasks.")
    worker = engine.worker()
    register_live(worker)
    assert_finding(work.check_workers, Level.OK, "active: 1, slots: 4")
    register_live(worker, silent=100)
    assert_finding(work.check_workers, Level.FAIL, "w1 (h, pid 7) for 100 s")
    register_live(worker, status="dead", stopped_at=timezone.now())
    assert_finding(work.check_workers, Level.WARN, "1 declared dead")


def test_a_task_past_its_deadline(engine):
    worker = engine.worker()
    register_live(worker)
    task_id = put()
    take(worker)
    Task.objects.filter(pk=task_id).update(deadline=timezone.now() - timedelta(minutes=5))
    assert_finding(work.check_workers, Level.FAIL, str(task_id))


def test_tasks_that_no_worker_can_run(engine):
    put()
    assert_finding(work.check_queues, Level.FAIL, "default: No live worker takes new tasks. It holds 1 task.")
    worker = engine.worker("a")
    register_live(worker)
    assert_finding(work.check_queues, Level.OK, "1 task queued")
    put("b")
    put("a", capabilities=("gpu",))
    unknown, lacking = sorted(work.check_queues(), key=lambda finding: finding.message, reverse=True)
    assert "knows the task type b. Closest: w1 does not know the task type. This process does not" in unknown.message
    assert lacking.message.endswith(
        ": No live worker of this queue offers gpu. Closest: w1 lacks gpu. It holds 1 task."
    )
    assert lacking.hint == "Start `manage.py runworker --capabilities gpu`, or cancel the tasks."
    Worker.objects.update(queues=["other"])
    assert any("No live worker serves the queue default." in finding.message for finding in work.check_queues())


def test_pauses(engine):
    put()
    pause("default", by="ann", reason="moving")
    assert_finding(work.check_queues, Level.WARN, "The queue default is paused by ann since ")
    Queue.objects.update(paused=False)
    register_live(engine.worker())
    RuntimeSettings.objects.update_or_create(pk=1, defaults={"paused": True, "paused_at": timezone.now()})
    assert_finding(work.check_queues, Level.WARN, "Everything is paused since ")
    assert "It holds 1 task." in only(work.check_queues()).message


def test_a_paused_type_is_reported_while_its_tasks_wait(engine):
    """Its queue is not paused and has a worker, so nothing else says why the tasks wait."""
    register_live(engine.worker())
    pause_type("a", by="ann", reason="moving")
    assert_finding(work.check_queues, Level.OK, "0 tasks queued")
    put_many(3)
    assert_finding(work.check_queues, Level.WARN, "The task type a is paused by ann since ")
    paused = only(work.check_queues())
    assert paused.message.endswith(": moving. It holds 3 tasks.")
    assert paused.hint == "Run `taskqueue resume --type a` to resume."


def test_a_paused_key_is_reported(engine):
    pause_key("customer:7", by="ann", resume_at=timezone.now() + timedelta(hours=1))
    assert_finding(work.check_queues, Level.WARN, "The key customer:7 is paused by ann since ")
    assert "It resumes by itself " in only(work.check_queues()).message


def test_an_index_that_lags_is_reported_and_not_repaired(engine, override):
    override(work, SETTLE_SECONDS=0.0)
    ids = put_many(120)
    assert_finding(work.check_agreement, Level.OK, "have the same counts")
    engine.index.remove([task.ref for task in take(engine.worker(), 0)] or [])
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM queue_app_task WHERE status = 'queued'")
        assert cursor.fetchone()[0] == len(ids)
    flush(engine)
    assert_finding(work.check_agreement, Level.WARN, "queued tasks: 120 in the rows, 0 in the index")
    assert engine.index.queues() == []


def test_a_single_lost_task_is_reported_if_nothing_moves(engine, override, monkeypatch):
    """The index never learned of tasks that were enqueued while Redis refused writes."""
    override(work, SETTLE_SECONDS=0.0)
    with index_away():
        put()
    assert_finding(work.check_agreement, Level.WARN, "queued tasks: 1 in the rows, 0 in the index")
    monkeypatch.setattr(work, "time", SimpleNamespace(sleep=lambda _: put()))
    assert_finding(work.check_agreement, Level.OK, "have the same counts, but for tasks that move now")


def test_tasks_that_a_limit_holds_are_no_difference(engine, monkeypatch):
    monkeypatch.setattr(work, "time", SimpleNamespace(sleep=lambda _: pytest.fail("the counts differ")))
    Queue.objects.create(name="paused", paused=True, paused_at=timezone.now())
    Queue.objects.create(name="capped", max_concurrent=1)
    Queue.objects.create(name="paced", rate_count=1, rate_seconds=3600.0, rate_burst=1)
    Queue.objects.create(name="fair", order="fair", max_concurrent_per_user=1)
    Limit.objects.create(scope="key", name="customer", max_concurrent=1)
    pause_type("b", by="ann", reason="moving")
    for queue in ("paused", "capped", "paced", "fair"):
        for number in range(3):
            put("a", queue=queue, user=f"u{number % 2}", concurrency_key="customer:7", weight=1 + number)
    put("b")
    put("a", capabilities=("gpu",))
    assert_finding(work.check_agreement, Level.OK, "have the same counts")
    assert take(engine.worker("a"), 5)
    assert_finding(work.check_agreement, Level.OK, "have the same counts")


def test_many_deaths(engine, override):
    override(work, DEATHS_PER_MINUTE=1)
    assert_finding(work.check_deaths, Level.OK, "0 within")
    DeadLetterFactory.create_batch(6, task_type="shop.pay", exception_class="ValueError")
    DeadLetterFactory.create(task_type="shop.mail", exception_class="", reason="worker_died")
    named = "shop.pay (ValueError) 6, shop.mail (worker_died) 1"
    assert_finding(work.check_deaths, Level.WARN, f"7 tasks died within the last 5 minutes: {named}")


def test_a_workflow_that_a_failed_task_holds(engine, django_capture_on_commit_callbacks):
    flow = Workflow("ship order 7")
    pay = flow.add(chores.echo.using(max_retries=0), 1)
    flow.add(chores.echo, 2, after=[pay])
    with django_capture_on_commit_callbacks(execute=True):
        flow.enqueue()
    with django_capture_on_commit_callbacks(execute=True):
        finish([failed(task) for task in take(engine.worker(type_of(chores.echo)))])
    levels = []
    for minutes in (0, 59, 61):
        Flow.objects.update(held_at=timezone.now() - timedelta(minutes=minutes))
        (found,) = check_workflows()
        levels.append(found.level)
    assert levels == [Level.OK, Level.OK, Level.WARN]
    assert f"1 held for more than an hour: ship order 7 {flow.id} for 3,66" in found.message
    assert found.message.endswith("by echo (dead letter)")
    assert "workflow retry" in found.hint
