"""Submit, list, count, export, inspect, cancel and reprioritise tasks."""

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Any, Final

from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api import export, representation
from queue_app.api.access import MaySubmit, check_scope, is_staff_with, staff_with, visible_tasks
from queue_app.api.base import BY_CONTENT, AnyFormat, ApiView, accepts, for_staff, parse_id
from queue_app.api.headers import KEY_HEADER, KEY_META, REPLAYED
from queue_app.api.paging import page_of
from queue_app.api.serializers import tasks as serializers
from queue_app.api.serializers.control import WithReason
from queue_app.core.states import TERMINAL
from queue_app.diagnose.explain import explain
from queue_app.exceptions import TaskNotFound
from queue_app.models import Task
from queue_app.models.querysets import restricted_to
from queue_app.services import cancel, reprioritise
from queue_app.services.control.audit import API, record
from queue_app.services.control.encrypted import PERMISSION, decrypt
from queue_app.services.enqueue.store import submit, submit_many
from queue_app.services.lifecycle.actions import delete
from queue_app.services.lifecycle.steps import signal
from queue_app.services.notify.subscribe import wait_for_end
from queue_app.services.read.inspect import count_tasks, export_pages, get_task, list_tasks, position_of, task_detail
from queue_app.services.read.task_filter import TaskFilter

VIEW: Final = "queue_app.view_task"
SEND: Final = "queue_app.send_signal"


class TaskListView(ApiView):
    @accepts("view_task", query=serializers.TaskListQuery, id="list_tasks", answer="TaskPage")
    def get(self, request: Request) -> dict[str, Any]:
        """List tasks, newest first."""
        query = self.read_query(request)
        fields, size, before = query.pop("fields", ()), query.pop("page_size"), query.pop("cursor", None)
        wanted = TaskFilter(**query)
        page = list_tasks(visible_tasks(request.user, wanted), wanted, page_size=size, before=before)
        return page_of(request, [_select(task, fields) for task in page.tasks], page.before)

    @accepts(
        "add_task", body=serializers.Submission, throttle="submits", permission=MaySubmit, headers=(KEY_HEADER,),
        id="submit_task", answer="Submitted", status=201, also={200: "Submitted"},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Submit a task.

        The status is 201 for a new task, and 200 if a task with the same idempotency key was stored before.
        """
        user, key = self.username(request), request.META.get(KEY_META)
        task = submit(serializers.new_task(self.read_body(request), user, key))
        content, status = representation.submitted(task), HTTPStatus.CREATED if task.created else HTTPStatus.OK
        headers = {"Location": self.address(request, f"{request.path.rstrip('/')}/{task.id}")}
        headers |= {} if task.created else {REPLAYED: "true"}
        return Response(content, status=status, headers=headers)


class AdminTaskListView(TaskListView):
    http_method_names = ("get", "head", "options")

    @for_staff("view_task", query=serializers.TaskListQuery, id="list_all_tasks", tag="staff", answer="TaskPage")
    def get(self, request: Request) -> dict[str, Any]:
        """List the tasks of all users, newest first."""
        return super().get(request)


class TaskCountView(ApiView):
    @accepts("view_task", query=serializers.TaskCountQuery, id="count_tasks", answer="TaskCount")
    def get(self, request: Request) -> dict[str, Any]:
        """Count tasks.

        Counting stops at 10 000 tasks unless ``exact=true``.
        """
        query = self.read_query(request)
        exact = query.pop("exact")
        wanted = TaskFilter(**query)
        count, capped = count_tasks(visible_tasks(request.user, wanted), wanted, exact=exact)
        return {"count": count, "capped": capped}


class TaskExportView(ApiView):
    content_negotiation_class = AnyFormat

    @accepts("view_task", query=serializers.TaskExportQuery, throttle="heavy", id="export_tasks", answer="TaskExport")
    def get(self, request: Request) -> Any:
        """Export tasks as NDJSON or CSV, newest first.

        The stream leaves out tasks that are stored after it starts.
        """
        query = self.read_query(request)
        fields, name = query.pop("fields", serializers.SUMMARY_FIELDS), query.pop("format")
        wanted = TaskFilter(**query)
        pages = export_pages(visible_tasks(request.user, wanted), wanted)
        pages = chain([next(pages, [])], pages)  # an error while reading the first page can still be answered
        return export.response(request._request, pages, fields, name)  # noqa: SLF001 - tells ASGI from WSGI


class TaskBulkView(ApiView):
    body_factor = 8

    @accepts(
        "add_task", body=serializers.Submissions, throttle="heavy", permission=MaySubmit, headers=(KEY_HEADER,),
        id="submit_tasks", answer="StoredTasks", status=201, also={200: "StoredTasks"},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Submit up to 1000 tasks, all or none.

        The status is 200 if all of them were stored before under their idempotency keys.
        """
        user, key = self.username(request), request.META.get(KEY_META)
        stored = submit_many(serializers.new_tasks(self.read_body(request), user, key))
        is_new = any(item.created for item in stored)
        status, headers = (HTTPStatus.CREATED, {}) if is_new else (HTTPStatus.OK, {REPLAYED: "true"})
        tasks = [representation.stored(item) | {"replayed": not item.created} for item in stored]
        return Response({"count": len(tasks), "tasks": tasks}, status=status, headers=headers)


class _OneTaskView(ApiView):
    def task(self, request: Request, name: str, permission: str) -> Task:
        """Return a task to change; raise ``TaskNotFound`` if the caller cannot see it.

        To change a task of another user, the caller needs ``permission``.
        """
        task = get_task(Task.objects.visible_to(request.user), parse_id(name, TaskNotFound(name)))
        if task.user != self.username(request) and not request.user.has_perm(permission):
            raise PermissionDenied(f"This needs the permission {permission}.")
        return task


class TaskView(_OneTaskView):
    @accepts("view_task", query=serializers.WaitQuery, id="get_task", answer="TaskDetail")
    def get(self, request: Request, task_id: str) -> dict[str, Any]:
        """Inspect a task, or wait for its end.

        With ``wait``, the request waits up to that many seconds for the task to end. If too many requests wait already,
        in this process (503) or of the caller (429), it is refused, with Retry-After.
        """
        seconds = self.read_query(request).get("wait")
        wanted, user = parse_id(task_id, TaskNotFound(task_id)), restricted_to(request.user)
        found = task_detail(wanted, user=user)
        waiting = partial(self.waiting, request, self.username(request))
        if seconds and found.task.status not in TERMINAL and wait_for_end(wanted, seconds, waiting):
            found = task_detail(wanted, user=user)
        return representation.detail(found, request.user)

    @accepts(BY_CONTENT, query=serializers.TaskDeleteQuery, id="cancel_task", answer="CancelledTask", problems=(409,))
    def delete(self, request: Request, task_id: str) -> dict[str, Any]:
        """Cancel a task, or delete one that has ended.

        A waiting task is cancelled at once; a running one is asked to stop. With ``delete=true`` an ended task is
        deleted, with its attempts, its result, its log and its dead letter.
        """
        deletes = self.read_query(request)["delete"]
        permission = "delete_task" if deletes else "cancel_task"
        check_scope(request, permission)
        task = self.task(request, task_id, f"queue_app.{permission}")
        self._content = {"delete": True} if deletes else {}
        with self.recording(request):
            if deletes:
                delete(task.id)
            status = task.status if deletes else cancel(task.id)
        answer = {"status": status, "cancel_requested": not deletes, "deleted": deletes}
        return {"id": task.id, "task_id": task.id} | answer


class TaskExplainView(ApiView):
    @accepts("view_task", id="explain_task", answer="Explanation")
    def get(self, request: Request, task_id: str) -> dict[str, Any]:
        """Explain why a task is not running.

        Lists every reason in order. Only staff who may view tasks see the tasks of other users.
        """
        found = parse_id(task_id, TaskNotFound(task_id))
        visible = Task.objects.visible_to(request.user)
        answer = explain(found, None if is_staff_with(request, VIEW) else visible).as_dict()
        return {"id": found} | answer


class TaskDecryptView(_OneTaskView):
    @accepts("view_encrypted", body=WithReason, id="decrypt_task", answer="DecryptedTask", problems=(409, 503))
    def post(self, request: Request, task_id: str) -> dict[str, Any]:
        """Decrypt the data of a task.

        Every caller needs queue_app.view_encrypted, also for their own tasks. The audit log says who has read the data.
        """
        reason = self.read_body(request)["reason"]
        task = self.task(request, task_id, PERMISSION)
        if not request.user.has_perm(PERMISSION):
            raise PermissionDenied(f"This needs the permission {PERMISSION}.")
        by = self.username(request)
        return decrypt(task.id, partial(record, "task.decrypt", "task", [task.id], by=by, via=API, reason=reason))


class TaskPriorityView(_OneTaskView):
    @accepts(
        "reprioritise_task", body=serializers.PriorityChange, id="reprioritise_task", answer="MovedTask",
        problems=(409,),
    )  # fmt: skip
    def put(self, request: Request, task_id: str) -> dict[str, Any]:
        """Move a waiting task to another band."""
        band = self.read_body(request)["band"]
        task = self.task(request, task_id, "queue_app.reprioritise_task")
        with self.recording(request):
            reprioritise(task.id, band)
        task.refresh_from_db()
        names = {"id": task.id, "task_id": task.id, "status": task.status, "priority": task.band.label}
        return {**names, "queue_position": position_of(task)}


class TaskSignalView(_OneTaskView):
    @accepts("send_signal", body=serializers.NewSignal, once=True, id="signal_task", answer="TaskSignal", status=201)
    def post(self, request: Request, task_id: str) -> dict[str, Any]:
        """Send a signal to a task, such as an approval.

        The task gets the payload when it waits for a signal of this name; until then, the signal is kept. The caller
        needs queue_app.send_signal, also for their own tasks, so that callers cannot approve what they asked for.
        """
        body = self.read_body(request)
        task = self.task(request, task_id, SEND)
        if not request.user.has_perm(SEND):
            raise PermissionDenied(f"This needs the permission {SEND}.")
        sent = signal(task.id, body["name"], body["payload"], by=self.username(request), via=API, reason=body["reason"])
        return representation.sent(sent) | {"task_id": task.id}


class AdminTaskPriorityView(TaskPriorityView):
    @accepts(
        "reprioritise_task", body=serializers.PriorityChange, permission=staff_with(VIEW), id="reprioritise_any_task",
        tag="staff", answer="MovedTask", problems=(409,),
    )  # fmt: skip
    def put(self, request: Request, task_id: str) -> dict[str, Any]:
        """Move any user's waiting task to another band."""
        return super().put(request, task_id)


def _select(task: Task, fields: Sequence[str]) -> dict[str, Any]:
    summary = representation.summary(task)
    return {name: summary[name] for name in fields} if fields else summary
