"""The live part of a task's page."""

import uuid
from datetime import timedelta

from django.contrib.auth.models import Permission
from django.urls import reverse
from django.utils import timezone

from queue_app.models import Task, TaskLog, TaskProgress


def test_progress_and_log_lines_of_a_running_task(staff, client, django_user_model, make_task):
    task = make_task()
    now = timezone.now()
    runs = {"worker_id": uuid.uuid4(), "attempt": 1, "started_at": now, "deadline": now + timedelta(hours=1)}
    Task.objects.filter(pk=task.pk).update(status="executing", **runs)
    address = reverse("admin:queue_app_task_live", args=[task.pk])
    page = reverse("admin:queue_app_task_change", args=[task.pk])
    assert f'data-live="{address}"' in staff.get(page).content.decode()
    TaskProgress.objects.create(task_id=task.pk, attempt=1, fraction=0.4, message="<b>half", updated_at=timezone.now())
    TaskLog.objects.create(task_id=task.pk, attempt=1, lines="password=hunter2\n<script>", updated_at=timezone.now())
    answer = staff.get(address)
    text = answer.content.decode()
    assert answer["X-Task-Status"] == "executing"
    assert "no-store" in answer["Cache-Control"]
    assert 'value="0.400"' in text
    assert "&lt;b&gt;half" in text
    assert "&lt;script&gt;" in text
    assert "hunter2" not in text
    Task.objects.filter(pk=task.pk).update(status="completed", finished_at=now, deadline=None)
    assert staff.get(address)["X-Task-Status"] == "completed"
    assert "data-live" not in staff.get(page).content.decode()
    assert staff.get(reverse("admin:queue_app_task_live", args=[uuid.uuid4()])).status_code == 404
    assert client.get(address).status_code == 302
    other = django_user_model.objects.create_user("eve", password="x", is_staff=True)
    other.user_permissions.add(Permission.objects.get(codename="view_task"))
    client.force_login(other)
    assert client.get(address).status_code == 403, "lines may hold what only some may see"
