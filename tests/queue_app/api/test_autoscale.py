"""GET /api/v1/autoscale/{queue}: the numbers for an autoscaler."""

import pytest

from queue_app.services.enqueue.store import enqueue_many
from tests.support.engine import new

URL = "/api/v1/autoscale/default"


@pytest.mark.django_db(transaction=True)
def test_the_answer_holds_the_demand(viewer, plain_type):
    enqueue_many(new(plain_type) for _ in range(90))
    response = viewer.get(f"{URL}/?slots=2&seconds=30")
    assert response.data == {
        "queue": "default", "queued": 90, "runnable": 90, "active_slots": 0, "mean_seconds": 1.0,
        "backlog_seconds": 90.0, "desired_slots": 3, "desired_workers": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    "query", ["slots=0", "slots=-1", "slots=1.5", "slots=1001", "slots=%D9%A5", "seconds=x", "seconds=86401", "slot=1"]
)
def test_bad_queries(viewer, query):
    assert viewer.get(f"{URL}?{query}").status_code == 400


def test_refused_callers_and_missing_queues(viewer, client, index_away):
    assert client.get(URL).status_code == 401
    assert viewer.get("/api/v1/autoscale/nowhere").status_code == 404
    assert viewer.get("/api/v1/autoscale/a/b").status_code == 404
    assert viewer.get(URL).status_code == 503, "an autoscaler keeps what it has"
