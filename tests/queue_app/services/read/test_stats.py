"""Numbers about queues and workers."""

from datetime import timedelta

from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.models import Queue, Task
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle.finish import finish
from queue_app.services.read.stats import queue_stats, queue_summary, throughput, worker_counts
from tests.support.engine import done, failed, index_away, put, put_many, take
from tests.support.factories import WorkerFactory


def test_queue_summary(engine):
    set_queue_limits("default", max_concurrent=3)
    put_many(3)
    put(priority="high")
    take(engine.worker())
    summary = queue_summary(Queue.objects.get(pk="default"))
    assert (summary.depth, summary.active, summary.max_concurrent, summary.paused) == (3, 1, 3, False)
    assert summary.bands[Band.NORMAL].depth == 3
    assert 0 <= summary.bands[Band.NORMAL].oldest_age_seconds < 60
    assert summary.bands[Band.HIGH] == type(summary.bands[Band.HIGH])(0, None)


def test_queue_stats(engine):
    put_many(2)
    put("a", queue="q", priority="low")
    take(engine.worker())
    stats = queue_stats()
    assert (stats["index"], stats["depth"], stats["active"]) == ("ready", 2, 1)
    assert {name: band["depth"] for name, band in stats["queues"].items()} == {
        "critical": 0,
        "high": 0,
        "normal": 1,
        "low": 1,
        "background": 0,
    }
    assert [queue["name"] for queue in stats["by_queue"]] == ["default", "q"]


def test_without_the_index_the_rows_still_answer(engine):
    put_many(2)
    take(engine.worker())
    with index_away():
        stats = queue_stats()
    assert (stats["index"], stats["depth"], stats["active"]) == ("unreachable", 1, 1)
    assert stats["queues"]["normal"]["depth"] == 1
    assert [(queue["name"], queue["active"], queue["depth"]) for queue in stats["by_queue"]] == [("default", 1, 1)]


def test_throughput_counts_by_state_within_the_window(engine):
    put_many(4)
    tasks = take(engine.worker(), 4)
    finish([done(tasks[0]), done(tasks[1]), failed(tasks[2], retriable=False), failed(tasks[3])])
    Task.objects.filter(pk=tasks[0].id).update(finished_at=timezone.now() - timedelta(minutes=2))
    assert throughput(timedelta(minutes=1)) == {
        "completed": 1,
        "failed": 1,
        "cancelled": 0,
        "dead_letter": 0,
        "expired": 0,
    }


def test_no_workers(engine):
    assert worker_counts() == {"active": 0, "draining": 0, "dead": 0, "total_capacity": 0, "used_capacity": 0}


def test_tasks_claimed_ahead_take_no_slots(engine):
    worker = engine.worker()
    WorkerFactory(id=worker.id, concurrency=2)
    put_many(3)
    assert len(take(worker, 3)) == 3
    counts = worker_counts()
    assert (counts["total_capacity"], counts["used_capacity"]) == (2, 2)
