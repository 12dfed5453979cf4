"""What the metrics say after things happened, and when a server does not answer."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from queue_app import chain
from queue_app.adaptive.adapt import adapt_limits
from queue_app.core.counters import TICKS
from queue_app.core.priorities import Band
from queue_app.diagnose import stalls
from queue_app.diagnose.health import Metrics, collect
from queue_app.diagnose.stalls import Stall
from queue_app.metrics.collector import QueueCollector
from queue_app.metrics.exposition import families, render
from queue_app.metrics.names import ALL, BY_NAME
from queue_app.models import LimitStep, Queue, Schedule, Task, Workflow as Flow
from queue_app.registry import type_of
from queue_app.schedules.edit import create_schedule
from queue_app.schedules.tick import run_due
from queue_app.services.control.pause import pause
from queue_app.services.enqueue.admission import expire_stale
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify import events
from queue_app.services.repair.reap import reap
from queue_app.services.upkeep.jobs import take_lead
from queue_app.services.upkeep.maintenance import promote
from queue_app.services.upkeep.promote import make_due
from queue_app.services.worker.registration import WorkerIdentity, register
from queue_app.sql import stats
from tests.support.engine import done, failed, put, put_many, silent, take
from tests.workers import chores

ECHO = type_of(chores.echo)

STALLS = ("not_started", "not_due", "overrun", "job", "no_watchdog")


class Scrape:
    """The samples of one scrape, as Prometheus reads its text."""

    def __init__(self, figures: Metrics | None = None) -> None:
        text = render(families(figures or collect())).decode()
        self.families = list(text_string_to_metric_families(text))

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return the value of a sample; ``None`` when there is none."""
        for family in self.families:
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return None

    def names(self) -> set[str]:
        return {family.name + ("_total" if family.type == "counter" else "") for family in self.families}


def of_queue(**labels: str) -> dict[str, str]:
    return {"queue": "default", "priority": "normal", **labels}


def adaptive_limit() -> None:
    """A queue whose limit has just been judged."""
    Queue.objects.filter(pk="default").update(adaptive="gradient2", min_concurrent=2, max_concurrent=9)
    adapt_limits()
    LimitStep.objects.update(ratio=1.2)


def test_every_metric_is_shown_with_its_own_labels_from_the_beginning(engine):
    """Except what needs a leader, or a job that ran."""
    put()
    finish([done(task) for task in take(engine.worker())])
    take_lead("me", 15)
    promote()
    failing_schedule()
    adaptive_limit()
    scrape = Scrape()
    assert scrape.names() == {metric.name for metric in ALL}
    for family in scrape.families:
        metric = BY_NAME.get(family.name) or BY_NAME[f"{family.name}_total"]
        assert family.samples, family.name
        assert all(set(sample.labels) - {"le"} == set(metric.labels) for sample in family.samples)


def test_what_waits_and_runs(engine):
    put_many(3)
    put(priority=Band.HIGH, queue="mail")
    take(engine.worker())
    scrape = Scrape()
    assert scrape("queue_depth", **of_queue()) == 3
    assert scrape("queue_depth", **of_queue(priority="high")) == 0
    assert scrape("queue_depth", queue="mail", priority="high") == 0
    assert scrape("queue_active", queue="mail") == 1
    assert 0 <= scrape("queue_oldest_age_seconds", **of_queue()) < 60
    assert scrape("queue_enqueue_total", queue="mail", priority="high") == 1
    assert scrape("queue_enqueue_total", **of_queue()) == 3
    assert scrape("queue_schedule_total", queue="mail", priority="high") == 1
    assert scrape("task_transitions_total", status="executing") == 1
    assert scrape("task_transitions_total", status="queued") == 4


def test_how_attempts_ended_and_how_long_they_took(engine):
    put_many(4)
    tasks = take(engine.worker(), 4)
    slow = done(tasks[0])
    slow = type(slow)(slow.task, slow.started_at, slow.started_at + timedelta(seconds=7), None)
    finish([slow, failed(tasks[1], retriable=False), failed(tasks[2]), done(tasks[3])])
    engine.index.flush()
    scrape = Scrape()
    assert scrape("attempt_duration_seconds_count", **of_queue(status="completed")) == 2
    assert scrape("attempt_duration_seconds_bucket", **of_queue(status="completed", le="5.0")) == 1
    assert scrape("attempt_duration_seconds_bucket", **of_queue(status="completed", le="10.0")) == 2
    assert scrape("attempt_duration_seconds_sum", **of_queue(status="completed")) == pytest.approx(7, abs=0.1)
    assert scrape("queue_wait_time_count", **of_queue(status="scheduled")) == 1
    assert scrape("tasks_failed_total", reason="error") == 2
    assert scrape("task_retries_total", priority="normal", reason="error") == 1
    assert scrape("tasks_delayed_total", **of_queue()) == 1
    assert scrape("task_transitions_total", status="failed") == 1
    assert scrape("task_transitions_total", status="completed") == 2


def test_the_whole_life_of_a_task_counts_from_its_enqueue(engine):
    """The attempt took no time; the task waited an hour for it."""
    put()
    Task.objects.update(created_at=timezone.now() - timedelta(hours=1), queued_at=timezone.now() - timedelta(minutes=3))
    [task] = take(engine.worker())
    finish([done(task)])
    engine.index.flush()
    scrape = Scrape()
    labels = of_queue(status="completed")
    assert scrape("task_duration_seconds_sum", **labels) == pytest.approx(3600, abs=60)
    assert scrape("attempt_duration_seconds_sum", **labels) < 60
    for percentile in ("p50", "p95", "p99"):
        assert scrape("queue_age_seconds", priority="normal", percentile=percentile) == pytest.approx(180, abs=60)


def test_a_retry_ends_no_life(engine):
    put()
    finish([failed(task) for task in take(engine.worker())])
    engine.index.flush()
    assert Scrape()("task_duration_seconds_count", **of_queue(status="scheduled")) is None


@pytest.mark.parametrize("counted", [0, 50_000])
def test_the_stored_tasks_by_state(engine, monkeypatch, counted):
    """Of many tasks PostgreSQL's statistics know the shares of the states."""
    monkeypatch.setattr(stats, "COUNTED", counted)
    put_many(10)
    hand = engine.worker()
    finish([done(task) for task in take(hand, 4)])
    take(hand)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE queue_app_task")
    scrape = Scrape()
    found = {status: scrape("task_state_total", status=status) for status in ("queued", "executing", "completed")}
    assert found == {"queued": 5, "executing": 1, "completed": 4}
    assert scrape("task_state_total", status="failed") == 0


def test_a_dead_letter_is_counted_once(engine):
    put(max_retries=0)
    finish([failed(task) for task in take(engine.worker())])
    engine.index.flush()
    scrape = Scrape()
    assert scrape("tasks_dlq_total", reason="retries_exhausted") == 1
    assert scrape("task_transitions_total", status="dead_letter") == 1


def test_what_became_due_or_expired(engine):
    put(run_after=timezone.now() - timedelta(seconds=1))
    put()
    scheduled = Task.objects.filter(status="scheduled").count()
    make_due()
    expire_stale("default", older_than=0)
    engine.index.flush()
    scrape = Scrape()
    assert scrape("task_transitions_total", status="queued") == 2
    assert scrape("task_transitions_total", status="scheduled") == scheduled
    assert scrape("task_transitions_total", status="expired") == 2


def test_workers_and_what_they_leave_behind(engine):
    hand = engine.worker()
    identity = WorkerIdentity(id=hand.id, name="w", host="h", pid=1, process_identity="elsewhere", version="1")
    register(identity, hand.profile, concurrency=4, heartbeat_seconds=1)
    put()
    take(hand)
    scrape = Scrape()
    assert (scrape("workers_total", status="active"), scrape("worker_slots")) == (1, 4)
    assert scrape("worker_capacity_used_ratio") == 0.25
    reap(silent(hand))
    scrape = Scrape()
    assert (scrape("workers_total", status="active"), scrape("workers_total", status="dead")) == (0, 1)
    assert scrape("worker_heartbeat_failures_total") == 1
    assert scrape("task_retries_total", priority="normal", reason="worker_died") == 1


def test_a_paused_queue(engine):
    put()
    pause("default")
    assert Scrape()("queue_paused", queue="default") == 1


def test_a_server_that_is_down_is_0_not_absent(engine):
    put()
    figures = collect()
    scrape = Scrape(Metrics(None, figures.rows))
    assert (scrape("up", component="redis"), scrape("up", component="postgresql")) == (0, 1)
    assert scrape("index_generation") == 1
    assert scrape("queue_depth", **of_queue()) is None
    scrape = Scrape(Metrics(figures.index, None))
    assert (scrape("up", component="redis"), scrape("up", component="postgresql")) == (1, 0)
    assert scrape("queue_depth", **of_queue()) == 1
    assert Scrape(Metrics(None, None)).names() == {"up"}


def test_queues_beyond_the_limit_are_shown_together(engine, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "METRICS": {"MAX_QUEUES": 2}}
    for size, name in enumerate(["a", "b", "c", "d"], start=1):
        put_many(size, queue=name)
    scrape = Scrape()
    assert scrape("queue_depth", queue="d", priority="normal") == 4
    assert scrape("queue_depth", queue="other", priority="normal") == 3
    assert scrape("queue_enqueue_total", queue="other", priority="normal") == 3
    assert scrape("queue_depth", queue="a", priority="normal") is None


def test_nothing_is_counted_when_it_is_switched_off(engine, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "METRICS": {"ENABLED": False}}
    put()
    finish([done(task) for task in take(engine.worker())])
    engine.index.flush()
    assert engine.index.stats().counts == {}


def test_events_can_be_off_while_counts_are_kept(engine, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "EVENTS": {"MAX_LENGTH": 0}}
    put()
    finish([done(task) for task in take(engine.worker())])
    engine.index.flush()
    assert Scrape()("task_transitions_total", status="completed") == 1
    assert engine.index.last_event_id() == "0-0"


def test_a_project_can_register_the_collector_with_its_own_registry(engine):
    put()
    finish([done(task) for task in take(engine.worker())])
    engine.index.flush()
    registry = CollectorRegistry(auto_describe=True)
    registry.register(QueueCollector())
    assert registry.get_sample_value("up", {"component": "redis"}) == 1
    assert registry.get_sample_value("task_transitions_total", {"status": "completed"}) == 1
    assert registry.get_sample_value("attempt_duration_seconds_count", of_queue(status="completed")) == 1


def failing_schedule(name="nightly", failures=1):
    """Make a schedule whose newest ticks have failed."""
    now = timezone.now()
    schedule = create_schedule(name, {"task_type": ECHO, "args": [1], "every": 3600}, now=now)
    for hour in range(failures):
        schedule.ticks.create(instant=now + timedelta(hours=hour), at=now, task_id=uuid4(), outcome="failed")
    return name


def test_ticks_of_schedules_and_how_late_they_were(engine):
    start = timezone.now() - timedelta(minutes=2)
    create_schedule("often", {"task_type": ECHO, "args": [1], "every": 60, "overlap": "skip"}, now=start)
    create_schedule("broken", {"task_type": ECHO, "args": [1], "every": 60}, now=start)
    Schedule.objects.filter(name="broken").update(queue="no such name!")
    first = Schedule.objects.get(name="often").next_instant
    run_due(now=first + timedelta(seconds=2))
    run_due(now=first + timedelta(seconds=62))
    engine.index.flush()
    scrape = Scrape()
    assert {outcome: scrape("schedule_ticks_total", outcome=outcome) for outcome in TICKS} == {
        "enqueued": 1, "skipped": 1, "refused": 2,
    }  # fmt: skip
    assert scrape("schedule_lateness_seconds_bucket", le="1.0") == 0
    assert scrape("schedule_lateness_seconds_bucket", le="5.0") == scrape("schedule_lateness_seconds_count") == 1
    assert scrape("schedule_lateness_seconds_sum") == pytest.approx(2, abs=0.1)
    assert scrape("schedule_failures_in_a_row", schedule="broken") == 2, "a refused task is a failure"
    assert scrape("schedule_failures_in_a_row", schedule="often") is None


def test_a_schedule_that_has_not_run(engine):
    schedule = create_schedule("late", {"task_type": ECHO, "args": [1], "every": 3600}, now=timezone.now())
    assert Scrape()("schedule_overdue_seconds") == 0
    Schedule.objects.filter(pk=schedule.pk).update(due_at=timezone.now() - timedelta(minutes=5))
    assert Scrape()("schedule_overdue_seconds") == pytest.approx(300, abs=60)


def test_workflows_by_state_and_how_long_one_has_been_held(engine):
    for ago in (90, 30, None):
        flow = chain((chores.echo, 1), chores.echo).enqueue()
        Flow.objects.filter(pk=flow).update(held_at=ago and timezone.now() - timedelta(minutes=ago))
    scrape = Scrape()
    assert (scrape("workflow_state_total", state="running"), scrape("workflow_state_total", state="failed")) == (3, 0)
    assert scrape("workflows_held") == 2
    assert scrape("workflow_held_seconds") == pytest.approx(90 * 60, abs=60)
    Flow.objects.update(held_at=None)
    assert (Scrape()("workflows_held"), Scrape()("workflow_held_seconds")) == (0, 0)


def test_failing_schedules_beyond_the_limit_are_shown_together(engine, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "METRICS": {"MAX_QUEUES": 1}}
    for failures in (1, 2, 3):
        failing_schedule(f"s{failures}", failures)
    scrape = Scrape()
    assert scrape("schedule_failures_in_a_row", schedule="s3") == 3
    assert scrape("schedule_failures_in_a_row", schedule="other") == 2
    assert scrape("schedule_failures_in_a_row", schedule="s1") is None


def test_work_that_stands_still(engine):
    """The gauge is what the watchdog wrote last, the counter rises once for each stall."""
    take_lead("me", 15)
    assert Scrape()("stalled", kind="no_watchdog") == 1
    stalls.write([])
    scrape = Scrape()
    assert {kind: scrape("stalled", kind=kind) for kind in STALLS} == dict.fromkeys(STALLS, 0)
    stalls.write([Stall("not_started", queue, "") for queue in ("mail", "media")])
    events.count({"stall:not_started": 2})
    scrape = Scrape()
    assert (scrape("stalled", kind="not_started"), scrape("stalls_total", kind="not_started")) == (2, 2)
    assert scrape("maintenance_age_seconds", job="watchdog") is None, "no_watchdog says it"
