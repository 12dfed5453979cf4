"""What only staff see: everybody's tasks, the whole queue, the workers."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api import representation
from queue_app.api.base import ApiView
from queue_app.api.views.tasks import TaskListView, TaskPriorityView
from queue_app.models import Worker
from queue_app.services.read.stats import admin_queue


class MaySeeTasks(BasePermission):
    """Staff who may see all tasks."""

    message = "This needs the permission queue_app.view_task, and to be staff."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the caller may."""
        return bool(request.user.is_staff and request.user.has_perm("queue_app.view_task"))


class MaySeeWorkers(BasePermission):
    """Staff who may see the workers."""

    message = "This needs the permission queue_app.view_worker, and to be staff."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the caller may."""
        return bool(request.user.is_staff and request.user.has_perm("queue_app.view_worker"))


class AdminTaskListView(TaskListView):
    """Everybody's tasks."""

    permission_classes = (IsAuthenticated, MaySeeTasks)
    http_method_names = ("get", "head", "options")


class AdminTaskPriorityView(TaskPriorityView):
    """The priority of anybody's task."""

    permission_classes = (IsAuthenticated, MaySeeTasks)


class AdminQueueView(ApiView):
    """The whole queue."""

    permission_classes = (IsAuthenticated, MaySeeTasks)

    def get(self, request: Request) -> Response:
        """Return depth, active tasks, the cap over everything, and the breakdown by band."""
        return Response(admin_queue())


class WorkerListView(ApiView):
    """The workers."""

    permission_classes = (IsAuthenticated, MaySeeWorkers)

    def get(self, request: Request) -> Response:
        """List the latest workers, live and gone."""
        return Response({"results": [representation.worker(found) for found in Worker.objects.order_by("-id")[:200]]})
