"""Submit, list, inspect, cancel and reprioritise tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from itertools import chain
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings

from queue_app.api import export, representation
from queue_app.api.base import AnyFormat, ApiView
from queue_app.api.errors import RETRY_AFTER_SECONDS
from queue_app.api.fields import Reader
from queue_app.api.fields import task_id as parse_id
from queue_app.api.keys import check_scope
from queue_app.api.listing import address_with, cursor, parse_counting, parse_export, parse_listing
from queue_app.api.operations import BulkAction, parse_action
from queue_app.api.submission import KEY_META, parse_many, parse_submission, priority
from queue_app.api.visibility import visible_tasks
from queue_app.api.waiting import most_waiters, seconds_of, waiters
from queue_app.core.priorities import Band
from queue_app.core.states import TERMINAL
from queue_app.exceptions import InvalidTaskData, TaskNotFound
from queue_app.models import Task
from queue_app.models.operation import PERMISSIONS, OperationKind
from queue_app.models.querysets import TaskQuerySet, seen_as
from queue_app.services import cancel, reprioritise
from queue_app.services.enqueue.submit import submit, submit_many
from queue_app.services.notify.subscribe import wait_for_end
from queue_app.services.operations.advance import advance_for
from queue_app.services.operations.request import preview_operation, start_operation
from queue_app.services.read.explain import explain
from queue_app.services.read.inspect import count_tasks, export_pages, get_task, list_tasks, position_of, task_detail
from queue_app.services.read.task_filter import TaskFilter

#: An action on few tasks is done with before it is answered.
AT_ONCE_SECONDS: Final = 0.2


class TaskListView(ApiView):
    """The tasks that the caller may see."""

    throttle_scopes = MappingProxyType({"POST": "submits"})
    key_scopes = MappingProxyType({"GET": "view_task", "POST": "add_task"})

    records_actions = False

    def get(self, request: Request) -> Response:
        """List tasks, newest first, a page at a time."""
        listing = parse_listing(request.query_params, ignore=api_settings.URL_FORMAT_OVERRIDE)
        page = list_tasks(
            visible_tasks(request.user, listing.wanted),
            listing.wanted,
            page_size=listing.page_size,
            before=listing.before,
        )
        following = None if page.before is None else cursor(page.before)
        return Response(
            {
                "results": [_shown(task, listing.fields) for task in page.tasks],
                "next_cursor": following,
                "next": following and address_with(request, following),
            }
        )

    def post(self, request: Request) -> Response:
        """Submit a task: 201 when it was stored, 200 when its idempotency key names one that was before."""
        submission = parse_submission(
            self.json_body(request), user=self.username(request), key_header=request.META.get(KEY_META)
        )
        task = submit(submission)
        status = HTTPStatus.CREATED if task.created else HTTPStatus.OK
        location = {"Location": self.address(request, f"{request.path.rstrip('/')}/{task.id}")}
        return Response(representation.submitted(task), status=status, headers=location)


class TaskCountView(ApiView):
    """How many tasks the caller may see of a filter."""

    key_scopes = MappingProxyType({"GET": "view_task"})

    def get(self, request: Request) -> Response:
        """Count tasks, up to a cap; with ``exact=true`` however many there are."""
        asked = parse_counting(request.query_params)
        count, capped = count_tasks(visible_tasks(request.user, asked.wanted), asked.wanted, exact=asked.exact)
        return Response({"count": count, "capped": capped})


class TaskExportView(ApiView):
    """The tasks that the caller may see, as a stream."""

    content_negotiation_class = AnyFormat
    throttle_scopes = MappingProxyType({"GET": "heavy"})
    key_scopes = MappingProxyType({"GET": "view_task"})

    def get(self, request: Request) -> Any:
        """Export all tasks of a filter, newest first, as NDJSON or CSV; rows that come meanwhile are not in it."""
        asked = parse_export(request.query_params)
        pages = export_pages(visible_tasks(request.user, asked.wanted), asked.wanted)
        pages = chain([next(pages, [])], pages)  # what is wrong with the first one can still be answered
        return export.response(request._request, pages, asked.fields, asked.format)  # noqa: SLF001 - for its kind


class TaskBulkView(ApiView):
    """Many tasks at once."""

    records_actions = False

    body_factor = 8
    throttle_scopes = MappingProxyType({"POST": "heavy"})
    key_scopes = MappingProxyType({"POST": "add_task"})

    def post(self, request: Request) -> Response:
        """Submit up to 1000 tasks, all or nothing; 200 when an idempotency key names all of them."""
        submissions = parse_many(
            self.json_body(request), user=self.username(request), key_header=request.META.get(KEY_META)
        )
        stored = submit_many(submissions)
        status = HTTPStatus.CREATED if any(item.created for item in stored) else HTTPStatus.OK
        tasks = [{"task_id": item.id, "status": item.status, "replayed": not item.created} for item in stored]
        return Response({"count": len(tasks), "tasks": tasks}, status=status)


class BulkActionView(ApiView):
    """Actions on many tasks."""

    throttle_scopes = MappingProxyType({"POST": "heavy"})
    for_staff = frozenset({OperationKind.REPLAY, OperationKind.RETRY, OperationKind.RUN_NOW})

    def post(self, request: Request) -> Response:
        """Do something to tasks by ``ids`` or ``filter``: 202 with the operation; ``dry_run`` counts.

        Without the permission for it, only the caller's own tasks are meant; what runs tasks
        before their time, or again, is for staff.
        """
        asked = parse_action(self.json_body(request))
        check_scope(request, PERMISSIONS[asked.action.kind].removeprefix("queue_app."))
        wanted = self._allowed(request, asked)
        if asked.dry_run:
            found = preview_operation(asked.action, wanted, asked.options.limit)
            return Response({"dry_run": True, "count": found.count, "sample": found.sample})
        with self.recording(request):
            operation = start_operation(
                asked.action, wanted, asked.options, by=self.username(request), reason=asked.reason
            )
        operation = advance_for(operation.id, AT_ONCE_SECONDS)
        base = request.path.rstrip("/").removesuffix("/tasks/bulk-actions")
        location = {"Location": self.address(request, f"{base}/operations/{operation.id}")}
        return Response(representation.operation(operation, request.user), status=HTTPStatus.ACCEPTED, headers=location)

    def _allowed(self, request: Request, asked: BulkAction) -> TaskFilter:
        kind, user = asked.action.kind, request.user
        may = user.has_perm(PERMISSIONS[kind])
        if user.is_staff and may and user.has_perm("queue_app.view_task"):
            visible_tasks(user, asked.wanted)
            return asked.wanted
        if kind in self.for_staff and not (user.is_staff and may):
            raise PermissionDenied(f"This needs the permission {PERMISSIONS[kind]}.")
        own = self.username(request)
        if asked.wanted.user not in (None, own):
            return TaskFilter(ids=[])
        return replace(asked.wanted, user=own)


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

    key_scopes = MappingProxyType({"GET": "view_task", "DELETE": "cancel_task"})

    def get(self, request: Request, task_id: str) -> Response:
        """Inspect a task: inputs, attempts, result, options in effect. ``wait`` (s, to 60) waits for its end first.

        Where too many wait already, the answer comes at once, with Retry-After.
        """
        seconds = _parse_wait(request)
        wanted, user = _parse_id(task_id), seen_as(request.user)
        found = task_detail(wanted, user=user)
        headers: dict[str, str] = {}
        if seconds and found.task.status not in TERMINAL:
            with waiters.taking(most_waiters(request._request)) as taken:  # noqa: SLF001 - for its kind
                if not taken:
                    headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
                elif wait_for_end(wanted, seconds):
                    found = task_detail(wanted, user=user)
        return Response(representation.detail(found, request.user), headers=headers)

    def delete(self, request: Request, task_id: str) -> Response:
        """Cancel a task: what waits ends at once, what runs is asked to stop."""
        task = self.task(request, task_id, "queue_app.cancel_task")
        with self.recording(request):
            status = cancel(task.id)
        return Response({"task_id": task.id, "status": status, "cancel_requested": True})


class TaskExplainView(_OneTaskView):
    """Why one task is not running."""

    key_scopes = MappingProxyType({"GET": "view_task"})

    def get(self, request: Request, task_id: str) -> Response:
        """Explain why a task is not running: every reason, in order. Of others only staff who may view tasks learn."""
        visible, name = self.visible(request), _parse_id(task_id)
        sees_all = request.user.is_staff and request.user.has_perm("queue_app.view_task")
        return Response(explain(name, None if sees_all else visible).as_dict())


class TaskPriorityView(_OneTaskView):
    """The priority of one task."""

    key_scopes = MappingProxyType({"PUT": "reprioritise_task"})

    def put(self, request: Request, task_id: str) -> Response:
        """Move a waiting task to another band."""
        band = _parse_priority(self.json_body(request))
        task = self.task(request, task_id, "queue_app.reprioritise_task")
        with self.recording(request):
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


def _parse_wait(request: Request) -> int:
    values: dict[str, Any] = {name: request.query_params.getlist(name) for name in request.query_params}
    values.pop(str(api_settings.URL_FORMAT_OVERRIDE), None)
    reader = Reader(values)
    reader.refuse_others(("wait",), code="unknown_parameter")
    seconds: int | None = reader.optional("wait", seconds_of)
    reader.finish()
    return seconds or 0


def _shown(task: Task, fields: Sequence[str]) -> dict[str, Any]:
    summary = representation.summary(task)
    return {name: summary[name] for name in fields} if fields else summary


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
