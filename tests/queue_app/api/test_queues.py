"""Statistics of all queues; pause and resume."""

from __future__ import annotations

import pytest

from queue_app.core.priorities import Band
from queue_app.models import Queue

STATS = "/api/v1/queue/stats"


@pytest.fixture
def operator(staff):
    return staff("pause_queue")


@pytest.mark.django_db(transaction=True)
def test_stats_count_waiting_tasks(viewer, stored):
    for band in (Band.CRITICAL, Band.LOW, Band.LOW):
        stored(priority=band)
    stored(status="completed")
    data = viewer.get(STATS).data
    assert data["queues"]["critical"]["depth"] == 1
    assert data["queues"]["low"]["depth"] == 2
    assert data["throughput"]["completed_last_minute"] == 1
    assert data["workers"] == {"active": 0, "draining": 0, "dead": 0, "total_capacity": 0, "used_capacity": 0}


def test_stats_without_the_index(viewer, stored, index_away):
    stored(priority=Band.LOW)
    data = viewer.get(STATS).data
    assert (data["index"], data["depth"], data["queues"]["low"]["depth"]) == ("unreachable", 1, 1)


def test_stats_without_queues_and_index(viewer, index_away):
    Queue.objects.all().delete()
    assert viewer.get(STATS).data["index"] == "unreachable"


def test_pause_and_resume(operator):
    response = operator.post("/api/v1/queues/default/pause/", {"reason": "stock-taking"})
    assert (response.status_code, response.data["paused"], response.data["paused_reason"]) == (
        200,
        True,
        "stock-taking",
    )
    assert response.data["paused_by"] == operator.user.username
    queue = Queue.objects.get(pk="default")
    assert (queue.paused, queue.paused_by) == (True, operator.user.username)
    assert operator.post("/api/v1/queues/default/pause").data["paused_reason"] == "stock-taking"  # no change
    for _ in range(2):
        response = operator.post("/api/v1/queues/default/resume")
        assert (response.status_code, response.data["paused"], response.data["paused_by"]) == (200, False, "")


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_queues_that_do_not_exist(operator, action):
    for name in ("nowhere", "%00", "{default}", "a:b", "default%0A", "q" * 5000, "%E2%80%AE", "DEFAULT"):
        response = operator.post(f"/api/v1/queues/{name}/{action}")
        assert (response.status_code, response.data["code"]) == (404, "unknown_queue"), name
    assert not Queue.objects.filter(paused=True).exists()


def test_a_mistyped_queue_comes_with_near_matches(operator):
    assert "'default'" in operator.post("/api/v1/queues/defualt/pause").data["detail"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"reason": 5}, 400, "string_expected"),
        ({"reason": "x" * 201}, 400, "invalid"),
        ({"paused_by": "alice"}, 400, "unknown_field"),
    ],
)
def test_bad_pauses(operator, body, status, code):
    response = operator.post("/api/v1/queues/default/pause", body)
    assert (response.status_code, response.data["code"]) == (status, code)
    assert not Queue.objects.get(pk="default").paused
