"""The moving part of a task's page: how far it has come, and what it logs."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.exceptions import PermissionDenied
from django.forms.widgets import Script
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, path

from queue_app.admin.mixins import QueueAppAdmin
from queue_app.admin.task_detail import displayed_payload, extras
from queue_app.models import Task, TaskPayload


class TaskLiveMixin(QueueAppAdmin[Task]):
    """One address beside those of a task: it is read by the page's script while the task runs."""

    class Media:
        js = (Script("queue_app/task_live.js", defer=True),)

    def get_urls(self) -> list[URLPattern]:
        """Put it before Django's own."""
        view = self.admin_site.admin_view(self.live_view)
        return [path("<uuid:task_id>/live/", view, name="queue_app_task_live"), *super().get_urls()]

    def live_view(self, request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
        """Return progress and log lines as HTML, and the status in a header."""
        task: Task | None = self.get_object(request, str(task_id))
        if task is None:
            raise Http404
        if not self.has_view_permission(request, task) or not request.user.has_perm("queue_app.view_payload"):
            raise PermissionDenied
        secrets, _args, _parameters = displayed_payload(task.task_type, TaskPayload.objects.filter(pk=task.pk).first())
        progress, logs = extras(task, secrets)
        context: dict[str, Any] = {"detail": {"progress": progress, "logs": logs}}
        response = render(request, "admin/queue_app/includes/task_progress.html", context)
        response["Cache-Control"] = "no-store"
        response["X-Task-Status"] = task.status
        return response
