"""Times that Python cannot hold do not take a list down."""

import pytest
from django.db import connection

from queue_app.models import Task
from tests.support.factories import TaskFactory


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "year"), [("infinity", 9999), ("-infinity", 1), ("0044-03-15 BC", 1), ("20000-01-01", 9999)]
)
def test_they_are_read_as_the_ends_of_the_calendar(text, year, admin_client):
    task = TaskFactory(status="scheduled", run_after="2030-01-01T00:00:00Z")  # a check bounds this time itself
    with connection.cursor() as cursor:
        cursor.execute("UPDATE queue_app_task SET created_at = %s::timestamptz WHERE id = %s", [text, task.id])
    assert Task.objects.get(pk=task.id).created_at.year == year
    answer = admin_client.get("/api/v1/admin/tasks")
    assert (answer.status_code, [found["task_id"] for found in answer.json()["results"]]) == (200, [str(task.id)])
    assert admin_client.get("/admin/queue_app/task/").status_code == 200
