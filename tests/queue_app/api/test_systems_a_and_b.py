"""Systems A (execution queue in Redis) and B (coordinator): their events, limits and numbers."""

import pytest
from django.urls import resolve

from queue_app import conf
from queue_app.compat.settings import translated
from queue_app.compat.urls import EVENTS, ExecutionEventView, ExecutionNames
from queue_app.index import get_index
from queue_app.models import Task
from queue_app.services import cancel
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify import events
from queue_app.services.requests import consume
from tests.queue_app.api.conftest import ApiClient
from tests.support.asking import ask
from tests.support.engine import done, put, put_many, take
from tests.support.factories import StaffFactory

API = "/api/v1"


@pytest.fixture
def admin(engine):
    return ApiClient(StaffFactory(permissions=("view_task", "view_queue", "reprioritise_task")))


@pytest.fixture
def stream(engine, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"REQUESTS": {"ENABLED": True}}


def heard():
    get_index().flush()
    return [(event.name, event.details.get("queue_position")) for event in events.read("0-0", count=100)[0]]


def test_an_execution_is_requested_accepted_with_its_position_and_cancelled(stream):
    for name in ("one", "two"):
        ask(event="ExecutionRequested", request_id=name, user="eve")
    consume()
    assert heard() == [("Accepted", "1"), ("Accepted", "2")]
    ask(event="ExecutionCancelled", request_id="two", task_type=None, user="eve")
    consume()
    assert heard()[-1] == ("Cancelled", None)
    assert sorted(Task.objects.values_list("status", flat=True)) == ["cancelled", "queued"]


def test_the_addresses_of_a_show_the_queue_and_change_a_priority(admin, alice):
    _first, second = put(), put()
    at = f"{API}/admin/executions"
    found = admin.get(f"{at}/queue").data
    assert (found["queue_depth"], found["active_count"], found["max_concurrent"]) == (2, 0, None)
    assert found["by_priority"]["normal"] == 2
    assert admin.put(f"{at}/{second}/priority", {"priority": "critical"}).data["priority"] == "critical"
    listed = admin.get(f"{at}/?status=queued&priority=critical").data["results"]
    assert [task["task_id"] for task in listed] == [str(second)]
    for method, path in (("GET", "/"), ("GET", "/queue"), ("PUT", f"/{second}/priority")):
        assert alice.call(method, at + path, {"priority": "low"} if method == "PUT" else None).status_code == 403
    assert admin.http.get(f"{at}/", headers={"Accept": "text/html"}).status_code == 200
    assert admin.http.get("/admin/", follow=True).status_code == 200, "the admin is where it was"


def test_the_events_of_b_have_its_names(stream):
    ask(event="ExecutionRequested", request_id="one", user="eve")
    consume()
    get_index().flush()
    names = [event.name for event in ExecutionNames().keep(events.read("0-0", count=100)[0])]
    assert names == ["ExecutionAccepted"]
    assert resolve("/api/v1/executions/events").func.cls is ExecutionEventView
    assert set(EVENTS.values()) >= {"ExecutionAccepted", "ExecutionCompleted", "ExecutionFailed", "ExecutionCancelled"}


def test_the_settings_of_b_have_its_names(settings):
    settings.TASKQUEUE = translated(
        {"max_queue_size": 10000, "max_executions_per_user": 100, "stale_timeout_seconds": 3600}
    )
    found = conf.get().admission
    assert (found.max_length, found.max_pending_per_user, found.stale_seconds) == (10_000, 100, 3600.0)
    for name in ("max_queue_sise", "low_to_medium_seconds", "highest"):
        with pytest.raises(ValueError, match=f"no setting '{name}'"):
            translated({name: 1})


def test_staff_see_the_queue_and_change_a_priority(admin):
    first, second = put(), put()
    found = admin.get(f"{API}/admin/queue").data
    assert (found["depth"], found["active"], found["cap"]) == (2, 0, None)
    assert found["by_priority"] == {"critical": 0, "high": 0, "normal": 2, "low": 0, "background": 0}
    moved = admin.put(f"{API}/admin/tasks/{second}/priority", {"priority": "critical"}).data
    assert (moved["priority"], moved["queue_position"]) == ("critical", 1)
    listed = admin.get(f"{API}/admin/tasks?status=queued&priority=critical").data["results"]
    assert [task["task_id"] for task in listed] == [str(second)]
    cancel(first)
    refused = admin.put(f"{API}/admin/tasks/{first}/priority", {"priority": "high"})
    assert (refused.status_code, refused.data["task_status"]) == (409, "cancelled")


def test_the_queries_of_the_documents_find_their_metrics(engine, admin):
    put_many(2)
    finish([done(task) for task in take(engine.worker(), 1)])
    text = admin.http.get("/metrics").content.decode()
    for name in (
        "queue_depth",
        "queue_active",
        "queue_enqueue_total",
        "queue_schedule_total",
        "queue_wait_time_bucket",
    ):
        assert f"\n{name}{{" in text, name


def test_a_full_queue_and_a_user_at_the_limit_are_rejected_with_events(stream, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"ADMISSION": {"MAX_LENGTH": 2, "MAX_PENDING_PER_USER": 1}}
    for name, user in (("one", "eve"), ("two", "eve"), ("three", "ada"), ("four", "bob")):
        ask(request_id=name, user=user)
    consume()
    get_index().flush()
    found = events.read("0-0", count=100)[0]
    assert [event.details["code"] for event in found if event.name == "Rejected"] == [
        "user_limit_exceeded",
        "queue_full",
    ]
