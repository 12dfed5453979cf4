"""The demand for workers, computed from real rows and a real index."""

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from queue_app.core.limits import Scope
from queue_app.index import get_index
from queue_app.models import Queue, RuntimeSettings, Task
from queue_app.services import pause
from queue_app.services.lifecycle.finish import finish
from queue_app.services.read.stats import autoscale
from queue_app.services.repair.rebuild import rebuild
from tests.support.engine import done, put, put_many, take
from tests.support.factories import LimitFactory, WorkerFactory

pytestmark = pytest.mark.usefixtures("engine")


def demand(name="default", **options):
    get_index().flush()
    return autoscale(Queue.objects.get(pk=name), **options)


def live(**fields):
    return WorkerFactory(**{"concurrency": 4} | fields)


def test_without_workers(scene):
    put_many(120)
    found = demand(slots=2)
    assert (found.queued, found.runnable, found.mean_seconds, found.backlog_seconds) == (120, 120, 1.0, 120.0)
    assert (found.desired_slots, found.desired_workers) == (2, 1)
    assert demand(slots=2, seconds=10).desired_workers == 6


def test_demand_follows_run_times_and_running_tasks(scene):
    put_many(62)
    worker = scene.worker()
    first, second = take(worker, 2)
    finish([done(first)])
    Task.objects.filter(pk=first.id).update(started_at=F("finished_at") - timedelta(seconds=10))
    found = demand(slots=1)
    assert (found.queued, found.active_slots) == (60, 1)
    assert found.mean_seconds == pytest.approx(10)
    assert found.desired_workers == found.desired_slots == 11
    assert second


def test_tasks_that_no_worker_can_run_ask_for_no_workers(scene):
    live()
    live(queues=["elsewhere"], concurrency=100)
    put_many(30)
    put_many(30, "b")
    put_many(30, capabilities=("gpu",))
    put(weight=5)
    found = demand()
    assert (found.queued, found.runnable, found.desired_workers) == (91, 30, 1)


@pytest.mark.parametrize("limited", ["queue", "type", "key", "family", "user", "all", "rate", "throttled", "paused"])
def test_limited_tasks_ask_for_no_workers(scene, limited):  # noqa: C901 - a table
    queue = Queue.objects.filter(pk="default")
    match limited:
        case "queue":
            queue.update(max_concurrent=1)
        case "type":
            LimitFactory(name="a", max_concurrent=1)
        case "key":
            LimitFactory(scope=Scope.KEY, name="customer:1", max_concurrent=1)
        case "family":
            LimitFactory(scope=Scope.KEY, name="customer", max_concurrent=1)
        case "user":
            queue.update(max_concurrent_per_user=1)
        case "all":
            RuntimeSettings.objects.update_or_create(pk=1, defaults={"max_concurrent": 1})
        case "rate":
            queue.update(rate_count=1, rate_seconds=120)
        case "throttled":
            queue.update(throttled_until=timezone.now() + timedelta(minutes=1))
    put_many(100, user="eve", concurrency_key="customer:1")
    rebuild()
    if limited == "paused":
        pause("default", by="eve")
    if limited not in ("rate", "throttled", "paused"):
        assert demand(slots=1).desired_workers == 1, "one may run, for now"
        assert take(scene.worker(), 5)
    found = demand(slots=1)
    assert found.queued >= 99
    expected = 1 if limited == "rate" else 0
    assert (found.runnable, found.desired_workers - found.active_slots) == (expected, expected)


@pytest.mark.parametrize(
    ("own", "family", "runnable"),
    [
        ({}, {"max_concurrent": 3}, 3),
        ({"max_concurrent": 2}, {"max_concurrent": 1}, 2),
        ({"max_concurrent": 2}, {"rate_count": 1, "rate_seconds": 1}, 2),
        ({"rate_count": 2, "rate_seconds": 1}, {"max_concurrent": 1}, 2),
        ({}, {"min_delay_seconds": 1}, 1),
        ({"max_concurrent": 2}, {"paused": True, "paused_at": timezone.now()}, 0),
        ({"paused": True, "paused_at": timezone.now()}, {"max_concurrent": 1}, 0),
        ({"throttled_until": timezone.now() + timedelta(hours=1)}, {"max_concurrent": 1}, 0),
        ({"max_concurrent": 2}, {"throttled_until": timezone.now() + timedelta(hours=1)}, 0),
    ],
)
def test_a_key_with_its_own_row_still_belongs_to_its_family(scene, own, family, runnable):
    LimitFactory(scope=Scope.KEY, name="customer:1", **own)
    LimitFactory(scope=Scope.KEY, name="customer", **family)
    put_many(10, concurrency_key="customer:1")
    rebuild()
    assert demand(slots=1, seconds=1).runnable == runnable
    if not {"rate_count", "min_delay_seconds"} & (own | family).keys():  # whose first start is a while away
        assert len(take(scene.worker(), 10)) == runnable, "claims say the same"
