"""What staff do with one task, from its page."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from queue_app.admin.dead_letter_form import EditForm
from queue_app.admin.task_bulk import PRIORITY_ACTIONS, TaskBulkMixin, priority_changed
from queue_app.admin.task_detail import displayed_payload, pretty
from queue_app.core.priorities import parse_band
from queue_app.core.states import PENDING, WAITING, Status
from queue_app.exceptions import InvalidTaskData, InvalidTransition, TaskNotFound
from queue_app.models import Task, TaskPayload
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.services import cancel, reprioritise
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.lifecycle.actions import RETRIABLE, retry, run_again, run_now
from queue_app.services.read.dead_letters import displayed_parameters
from queue_app.sql.database import atomic

__all__ = ["PRIORITY_ACTIONS", "TaskActionsMixin"]


class TaskActionsMixin(TaskBulkMixin):
    """Actions that call the services; the rows themselves are never edited."""

    def get_urls(self) -> list[URLPattern]:
        """Put the actions of a task's page before Django's own addresses."""
        wrap = self.admin_site.admin_view
        return [
            path("<uuid:task_id>/cancel/", wrap(self.cancel_view), name="queue_app_task_cancel"),
            path("<uuid:task_id>/priority/", wrap(self.priority_view), name="queue_app_task_priority"),
            path("<uuid:task_id>/retry/", wrap(self.retry_view), name="queue_app_task_retry"),
            path("<uuid:task_id>/run-now/", wrap(self.run_now_view), name="queue_app_task_run_now"),
            path("<uuid:task_id>/run-again/", wrap(self.run_again_view), name="queue_app_task_run_again"),
            *super().get_urls(),
        ]

    def cancel_view(self, request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
        """Cancel one task."""

        def act(task: Task, reason: str) -> str:
            running = cancel(task_id) is Status.EXECUTING
            said = "Asked to stop while executing." if running else "Cancelled."
            self.audit(request, [task], said, action="cancel", before={"status": task.status}, reason=reason)
            return _("The task runs; its worker was asked to stop it.") if running else _("The task is cancelled.")

        return self._act(request, task_id, act, allowed=self.has_cancel_permission)

    def priority_view(self, request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
        """Move one task to the posted band."""

        def act(task: Task, reason: str) -> str:
            band = parse_band(request.POST.get("priority"))
            reprioritise(task_id, band)
            self.audit(
                request, [task], priority_changed(task.band, band), action="reprioritise", reason=reason,
                before={"priority": task.band.label}, after={"priority": band.label},
            )  # fmt: skip
            return _("The priority is now %(band)s.") % {"band": band.label}

        return self._act(request, task_id, act, allowed=self.has_reprioritise_permission)

    def retry_view(self, request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
        """Queue an ended task again."""

        def act(task: Task, reason: str) -> str:
            retry(task_id, by=request.user.get_username())
            self.audit(
                request, [task], "Queued again.", action="retry", reason=reason,
                before={"status": task.status}, after={"status": "queued"},
            )  # fmt: skip
            return _("The task is queued again, with a fresh retry budget.")

        return self._act(request, task_id, act, allowed=self.has_retry_permission)

    def run_now_view(self, request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
        """Queue a scheduled task without waiting for its time."""

        def act(task: Task, reason: str) -> str:
            run_now(task_id)
            self.audit(
                request, [task], "Queued before its time.", action="run_now", reason=reason,
                before={"run_after": str(task.run_after)}, after={"status": "queued"},
            )  # fmt: skip
            return _("The task is queued now.")

        return self._act(request, task_id, act, allowed=self.has_retry_permission)

    def run_again_view(self, request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
        """Enqueue a new task like this one; the form begins with what is shown, masks and all."""
        task = self._visible(
            request, task_id, allowed=self.has_retry_permission(request) and self.may_view_payload(request)
        )
        shown = displayed_parameters(task_id) if task is not None else None
        if task is None or shown is None:
            return self._gone(request, task_id)
        form = EditForm(request.POST or None, initial={"parameters": pretty(shown[1])})
        if form.is_valid():
            try:
                with atomic():
                    reason = check_reason(form.cleaned_data["reason"], REASON_LENGTH)
                    new = run_again(task_id, parameters=form.cleaned_data["parameters"])
                    self.audit(
                        request, [task], f"Run again as {new.id}.", action="run_again", reason=reason,
                        after={"task": str(new.id)},
                    )  # fmt: skip
            except (InvalidTaskData, TaskNotFound) as error:
                form.add_error(
                    "reason" if getattr(error, "field", "") == "reason" else "parameters",
                    getattr(error, "message", str(error)),
                )
            else:
                self.message_user(request, _("A new task like that one is enqueued. This is it."), messages.SUCCESS)
                return HttpResponseRedirect(self.url_of("change", new.id))
        args = displayed_payload(task.task_type, TaskPayload.objects.filter(pk=task_id).first())[1]
        context = self.admin_site.each_context(request) | {
            "title": _("Run again with edited parameters"),
            "opts": self.opts,
            "original": task,
            "form": form,
            "args": pretty(args) if args else "",
            "media": self.media,
            "submit": _("Run again"),
            "explanation": _("A new task of this type, queue and priority will run with what stands here."),
        }
        return TemplateResponse(request, "admin/queue_app/deadletter/edit.html", context)

    def may_view_payload(self, request: HttpRequest) -> bool:
        """Say whether the user may read parameters, results and errors."""
        return request.user.has_perm("queue_app.view_payload")

    def _act(
        self,
        request: HttpRequest,
        task_id: uuid.UUID,
        act: Callable[[Task, str], str],
        *,
        allowed: Callable[[HttpRequest], bool],
    ) -> HttpResponse:
        """Do something to one task in one transaction with its record, and go back to its page."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        task = self._visible(request, task_id, allowed=allowed(request))
        if task is None:
            return self._gone(request, task_id)
        try:
            reason = check_reason(request.POST.get("reason", "").strip(), REASON_LENGTH)
            with atomic():
                said = act(task, reason)
        except (InvalidTaskData, InvalidTransition, TaskNotFound) as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            self.message_user(request, said, messages.SUCCESS)
        return HttpResponseRedirect(self.url_of("change", task_id))

    def _visible(self, request: HttpRequest, task_id: uuid.UUID, *, allowed: bool) -> Task | None:
        if not (allowed and self.has_view_permission(request)):
            raise PermissionDenied
        return self.get_object(request, str(task_id))

    def _gone(self, request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
        gone = _("There is no task %(id)s; it may have been purged.") % {"id": task_id}
        self.message_user(request, gone, messages.WARNING)
        return HttpResponseRedirect(self.url_of("changelist"))

    def buttons(self, request: HttpRequest, task: Task) -> dict[str, Any]:
        """Return which buttons a task's page has."""
        may_retry = self.has_retry_permission(request)
        return {
            "may_cancel": task.status in PENDING
            and task.cancel_requested_at is None
            and self.has_cancel_permission(request),
            "may_reprioritise": task.status in WAITING and self.has_reprioritise_permission(request),
            "may_run_now": task.status == Status.SCHEDULED and may_retry,
            "may_retry": task.status in RETRIABLE and may_retry,
            "may_run_again": may_retry and self.may_view_payload(request),
        }
