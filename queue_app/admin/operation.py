"""Actions on many tasks that go on in the background: watched, and stopped."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.mixins import CappedPaginator, ReadOnlyAdmin
from queue_app.admin.task_detail import pretty
from queue_app.core.redaction import Secrets, redact_value
from queue_app.dashboard import labels
from queue_app.exceptions import OperationEnded, OperationNotFound
from queue_app.models import Operation
from queue_app.models.operation import OperationKind, OperationState
from queue_app.registry import all_sensitive_names
from queue_app.rows.database import atomic
from queue_app.services.operations import cancel_operation

#: Kind -> what whoever stops it must be allowed to do.
PERMISSIONS = {
    OperationKind.CANCEL: "queue_app.cancel_task",
    OperationKind.REPRIORITISE: "queue_app.reprioritise_task",
    OperationKind.REPLAY: "queue_app.replay_deadletter",
    OperationKind.RETRY: "queue_app.retry_task",
    OperationKind.RUN_NOW: "queue_app.retry_task",
}
_STATES = {"running": "running", "done": "done", "cancelled": "stopped"}


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin[Operation]):
    """The actions on many tasks, newest first."""

    actions = None
    change_form_template = "admin/queue_app/operation/change_form.html"
    fields = ("kind", "status", "progress", "selection", "arguments", "by", "reason", "created", "finished_at")
    list_display = ("created", "kind", "status", "progress", "by", "reason")
    list_filter = ("state", "kind")
    list_per_page = 50
    ordering = ("-id",)
    paginator = CappedPaginator
    show_full_result_count = False
    sortable_by = ()

    @admin.display(description=_lazy("begun"))
    def created(self, operation: Operation) -> SafeString:
        """Return when it was asked for."""
        return labels.ago(operation.created_at, timezone.now())

    @admin.display(description=_lazy("state"))
    def status(self, operation: Operation) -> SafeString:
        """Return the state, and who ended it."""
        look = _STATES.get(operation.state, operation.state)
        label = format_html('<span class="tq-label tq-replay-{}">{}</span>', look, operation.state)
        if not operation.ended_by:
            return label
        return format_html('{}<small class="tq-below">by {}</small>', label, operation.ended_by)

    @admin.display(description=_lazy("progress"))
    def progress(self, operation: Operation) -> SafeString:
        """Return how far it has come, as a bar and in words."""
        skipped = f", {operation.skipped} skipped" if operation.skipped else ""
        return format_html(
            '<progress max="{}" value="{}" aria-label="progress"></progress> <span class="tq-nowrap">{} of {}{}</span>',
            max(operation.total, 1),
            operation.changed + operation.skipped,
            operation.changed,
            operation.total,
            skipped,
        )

    @admin.display(description=_lazy("tasks"))
    def selection(self, operation: Operation) -> SafeString:
        """Return the filter."""
        shown = redact_value(operation.filter, Secrets(names=all_sensitive_names()))
        return format_html('<pre class="tq-pre">{}</pre>', pretty(shown))

    def get_urls(self) -> list[URLPattern]:
        """Put the stop before Django's own addresses."""
        wrap = self.admin_site.admin_view
        stop = path("<uuid:operation_id>/stop/", wrap(self.stop_view), name="queue_app_operation_stop")
        return [stop, *super().get_urls()]

    def stop_view(self, request: HttpRequest, operation_id: uuid.UUID) -> HttpResponse:
        """Stop one operation; what it has done stays done."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        operation = Operation.objects.filter(pk=operation_id).first()
        if not (self.has_view_permission(request) and operation is not None and _may_stop(request, operation)):
            raise PermissionDenied
        try:
            with atomic():
                operation = cancel_operation(operation_id, by=request.user.get_username())
                self.audit(request, [operation], "Stopped.", action="stop", after={"changed": operation.changed})
        except (OperationEnded, OperationNotFound) as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            self.message_user(request, "The operation is stopped; what it has done stays done.", messages.SUCCESS)
        return HttpResponseRedirect(self.url_of("change", operation_id))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the button above the record, to those who may."""
        operation: Operation | None = kwargs.get("obj")
        if operation is not None:
            running = operation.state == OperationState.RUNNING
            context |= {"is_running": running, "may_stop": running and _may_stop(request, operation)}
        return super().render_change_form(request, context, *args, **kwargs)


def _may_stop(request: HttpRequest, operation: Operation) -> bool:
    return request.user.has_perm(PERMISSIONS[OperationKind(operation.kind)])
