"""Submit, list, inspect, cancel and reprioritise tasks."""

from __future__ import annotations

from http import HTTPStatus
from uuid import UUID

from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings

from queue_app.api import representation
from queue_app.api.base import ApiView
from queue_app.api.fields import Reader
from queue_app.api.fields import task_id as parse_id
from queue_app.api.listing import address_with, cursor, parse_listing
from queue_app.api.submission import KEY_HEADER, parse_submission, priority
from queue_app.core.priorities import Band
from queue_app.exceptions import InvalidTaskData, TaskNotFound
from queue_app.models import Task
from queue_app.models.querysets import TaskQuerySet
from queue_app.services import cancel, reprioritise
from queue_app.services.inspect import get_task, list_tasks, position_of, task_detail
from queue_app.services.submit import submit


class TaskListView(ApiView):
    """The tasks that the caller may see."""

    def get(self, request: Request) -> Response:
        """List tasks, newest first, a page at a time."""
        listing = parse_listing(request.query_params, ignore=api_settings.URL_FORMAT_OVERRIDE)
        page = list_tasks(
            Task.objects.visible_to(request.user), listing.wanted, page_size=listing.page_size, before=listing.before
        )
        following = None if page.before is None else cursor(page.before)
        return Response(
            {
                "results": [representation.summary(task) for task in page.tasks],
                "next_cursor": following,
                "next": following and address_with(request, following),
            }
        )

    def post(self, request: Request) -> Response:
        """Submit a task: 201 when it was stored, 200 when its idempotency key names one that was before."""
        submission = parse_submission(
            self.json_body(request), user=self.username(request), key_header=request.headers.get(KEY_HEADER)
        )
        task = submit(submission)
        status = HTTPStatus.OK if task.replayed else HTTPStatus.CREATED
        location = {"Location": request.build_absolute_uri(f"{request.path.rstrip('/')}/{task.id}")}
        return Response(representation.submitted(task), status=status, headers=location)


class _OneTaskView(ApiView):
    def visible(self, request: Request) -> TaskQuerySet:
        """Return the tasks that exist for the caller."""
        return Task.objects.visible_to(request.user)

    def task(self, request: Request, name: str, permission: str) -> Task:
        """Return the task to change; others' need a permission, and are missing to whoever may not see them."""
        task = get_task(self.visible(request), _parse_id(name))
        if task.user != self.username(request) and not request.user.has_perm(permission):
            raise PermissionDenied(f"This needs the permission {permission}.")
        return task


class TaskView(_OneTaskView):
    """One task."""

    def get(self, request: Request, task_id: str) -> Response:
        """Inspect a task: inputs, attempts, result, options in effect."""
        found = task_detail(self.visible(request), _parse_id(task_id))
        return Response(representation.detail(found, tracebacks=request.user.is_staff))

    def delete(self, request: Request, task_id: str) -> Response:
        """Cancel a task: what waits ends at once, what runs is asked to stop."""
        task = self.task(request, task_id, "queue_app.cancel_task")
        return Response({"task_id": task.id, "status": cancel(task.id), "cancel_requested": True})


class TaskPriorityView(_OneTaskView):
    """The priority of one task."""

    def put(self, request: Request, task_id: str) -> Response:
        """Move a waiting task to another band."""
        band = _parse_priority(self.json_body(request))
        task = self.task(request, task_id, "queue_app.reprioritise_task")
        reprioritise(task.id, band)
        task.refresh_from_db()
        return Response(
            {
                "task_id": task.id,
                "status": task.status,
                "priority": task.band.label,
                "queue_position": position_of(task),
            }
        )


def _parse_id(name: str) -> UUID:
    """Return the id in the address; what is no id is missing."""
    try:
        return parse_id(name, "task_id")
    except InvalidTaskData:
        raise TaskNotFound(name) from None


def _parse_priority(data: dict[str, object]) -> Band:
    reader = Reader(data)
    reader.refuse_others(("priority",))
    band = reader.required("priority", priority, Band.NORMAL)
    reader.finish()
    return band
