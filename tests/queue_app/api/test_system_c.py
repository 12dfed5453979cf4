"""System C, per-action queues: order, limits from the environment, and statistics that outlive Redis."""

from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app import conf
from queue_app.compat.settings import translated
from queue_app.index import get_index
from queue_app.models import Task
from queue_app.services.lifecycle.actions import delete_many
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.upkeep.maintenance import purge
from tests.queue_app.api.conftest import ApiClient
from tests.support.engine import done, failed, put, put_many, take
from tests.support.factories import StaffFactory
from tests.support.index_state import client_of

STATS = "/api/v1/queues/{}/stats?totals=true"


@pytest.fixture
def totals(engine):
    viewer = ApiClient(StaffFactory(permissions=("view_queue",)))

    def read(queue: str = "default") -> tuple[int, int]:
        found = viewer.get(STATS.format(queue)).data
        assert found["last_updated"]
        return found["total_enqueued"], found["total_completed"]

    return read


def test_totals_are_exact_after_a_flush_a_purge_and_a_deletion(engine, totals, retention):
    put_many(6)
    put(queue="other")
    hand = engine.worker()
    first, second, third, *_ = take(hand, 5)
    finish([done(first), done(second), failed(third, retriable=False)])
    assert (totals(), totals("other")) == ((6, 2), (1, 0))
    client_of(get_index()).flushdb()
    rebuild()
    assert (totals(), totals("other")) == ((6, 2), (1, 0))
    delete_many([first.id, third.id])
    assert totals() == (6, 2)
    long_ago = timezone.now() - timedelta(days=30)
    Task.objects.filter(status="completed").update(created_at=long_ago, started_at=long_ago, finished_at=long_ago)
    retention(success=5, idempotency=5)
    purge()
    assert Task.objects.filter(status="completed").count() == 0
    assert (totals(), totals("other")) == ((6, 2), (1, 0))


def test_the_oldest_task_is_told(engine, totals):
    put()
    viewer = ApiClient(StaffFactory(permissions=("view_queue",)))
    found = viewer.get(STATS.format("default")).data
    assert found["oldest_enqueued_at"] is not None
    assert {"name", "depth", "active", "max_concurrent"} <= found.keys()
    assert "total_enqueued" not in viewer.get("/api/v1/queues/default/stats").data


def test_the_statistics_of_an_action_have_the_names_of_c(engine, totals):
    put_many(3)
    finish([done(task) for task in take(engine.worker(), 1)])
    viewer = ApiClient(StaffFactory(permissions=("view_queue",)))
    found = viewer.get("/api/v1/actions/default/queue-stats").data
    assert found["oldest_enqueued_at"]
    assert found["last_updated"]
    counts = ("queue_length", "active_count", "max_concurrent", "total_enqueued", "total_completed")
    assert [found[name] for name in counts] == [2, 0, None, 3, 1]
    assert viewer.get("/api/v1/actions/nothing/queue-stats").data["code"] == "unknown_queue"
    assert ApiClient(StaffFactory()).get("/api/v1/actions/default/queue-stats").status_code == 403


def test_the_settings_of_c_have_its_names_also_in_the_environment(settings):
    theirs = {"executor": {"queue": {"max_queue_length": 10000, "queue_timeout_seconds": 3600, "enable_metrics": True}}}
    environ = {
        "ATTUNE__EXECUTOR__QUEUE__MAX_QUEUE_LENGTH": "5000",
        "ATTUNE__EXECUTOR__QUEUE__QUEUE_TIMEOUT_SECONDS": "1800",
    }
    settings.TASKQUEUE = translated(theirs, environ)
    found = conf.get()
    assert (found.admission.max_length, found.admission.stale_seconds, found.metrics.enabled) == (5000, 1800.0, True)
