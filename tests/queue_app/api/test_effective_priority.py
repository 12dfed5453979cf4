"""The effective priority in answers."""

from datetime import timedelta

from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.models import Task


def test_list_and_detail_show_the_effective_band(alice, stored):
    task = stored(priority=Band.LOW)
    Task.objects.filter(pk=task.pk).update(queued_at=timezone.now() - timedelta(seconds=700))
    [listed] = alice.get("/api/v1/tasks").data["results"]
    detail = alice.get(f"/api/v1/tasks/{task.id}").data
    for answer in (listed, detail):
        assert (answer["priority"], answer["effective_priority"]) == ("low", "normal")


def test_a_young_task_has_its_own_band(alice, stored):
    task = stored(priority=Band.LOW)
    assert alice.get(f"/api/v1/tasks/{task.id}").data["effective_priority"] == "low"


def test_the_filter_uses_the_own_band(alice, stored):
    Task.objects.filter(pk=stored(priority=Band.LOW).pk).update(queued_at=timezone.now() - timedelta(seconds=700))
    assert len(alice.get("/api/v1/tasks?priority=low").data["results"]) == 1
    assert alice.get("/api/v1/tasks?priority=normal").data["results"] == []
