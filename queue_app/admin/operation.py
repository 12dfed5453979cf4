"""Actions on many tasks or dead letters that go on in the background: watched, and stopped."""

from __future__ import annotations

import uuid
from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
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
from queue_app.models.operation import PERMISSIONS, OperationKind, OperationState
from queue_app.registry import all_sensitive_names
from queue_app.services.operations.request import cancel_operation, get_operation
from queue_app.sql.database import atomic

MAX_SHOWN_IDS: Final = 20
#: Shown of replays only.
OF_REPLAYS: Final = ("stop_after_failures", "failed_again_now", "letters")


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin[Operation]):
    """The actions on many tasks or dead letters, newest first."""

    actions = ("stop_selected",)
    change_form_template = "admin/queue_app/operation/change_form.html"
    fields = (
        "kind", "status", "progress", "selection", "arguments", "pace", "limit", *OF_REPLAYS, "by", "reason", "created",
        "finished_at",
    )  # fmt: skip
    list_display = ("created", "kind", "status", "progress", "pace", "by", "reason")
    list_filter = ("state", "kind", "target")
    list_per_page = 50
    ordering = ("-id",)
    paginator = CappedPaginator
    show_full_result_count = False
    sortable_by = ()

    def get_fields(self, request: HttpRequest, obj: Operation | None = None) -> tuple[str, ...]:
        """Return what there is to tell."""
        is_replay = obj is not None and obj.kind == OperationKind.REPLAY
        left_out: tuple[str, ...] = () if is_replay else OF_REPLAYS
        if not request.user.has_perm("queue_app.view_payload"):  # a filter may name parameters, or words of an error
            left_out += ("selection",)
        return tuple(name for name in self.fields if name not in left_out)

    @admin.display(description=_lazy("begun"))
    def created(self, operation: Operation) -> SafeString:
        """Return when it was asked for."""
        return labels.ago(operation.created_at, timezone.now())

    @admin.display(description=_lazy("state"))
    def status(self, operation: Operation) -> SafeString:
        """Return the state, and what it waits for or who ended it."""
        label = format_html('<span class="tq-label tq-operation-{}">{}</span>', operation.state, operation.state)
        if operation.is_waiting_for_the_first:
            why = f"waits for the first {operation.stop_after_failures}"
        elif operation.state == OperationState.STOPPED:
            why = f"the first {operation.stop_after_failures} failed again"
        elif operation.ended_by:
            why = f"by {operation.ended_by}"
        else:
            return label
        return format_html('{}<small class="tq-below">{}</small>', label, why)

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

    @admin.display(description=_lazy("per second"))
    def pace(self, operation: Operation) -> str:
        """Return how fast it goes."""
        return "no limit" if operation.rate is None else f"{operation.rate:g}"

    @admin.display(description=_lazy("failed again"))
    def failed_again_now(self, operation: Operation) -> int:
        """Return how many of its tasks have failed again by now."""
        return get_operation(operation.pk).failed_again

    @admin.display(description=_lazy("filter"))
    def selection(self, operation: Operation) -> SafeString:
        """Return which tasks, or dead letters."""
        wanted = redact_value(operation.filter, Secrets(names=all_sensitive_names()))
        ids = wanted.get("ids", [])
        if len(ids) > MAX_SHOWN_IDS:
            wanted |= {"ids": [*ids[:MAX_SHOWN_IDS], f"and {len(ids) - MAX_SHOWN_IDS} more"]}
        of = operation.target.replace("_", " ")
        return (
            format_html('{}<pre class="tq-pre">{}</pre>', of, pretty(wanted)) if wanted else format_html("all {}", of)
        )

    @admin.display(description=_lazy("dead letters"))
    def letters(self, operation: Operation) -> SafeString:
        """Return a link to what it replayed."""
        url = reverse("admin:queue_app_deadletter_changelist", current_app=self.admin_site.name)
        return format_html('<a href="{}?operation_id={}">those that it replayed</a>', url, operation.pk)

    # -- stop ----------------------------------------------------------------------

    def has_stop_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may stop any: those who may begin them."""
        return any(request.user.has_perm(permission) for permission in PERMISSIONS.values())

    @admin.action(description=_lazy("Stop selected operations"), permissions=["stop"])
    def stop_selected(self, request: HttpRequest, queryset: QuerySet[Operation]) -> None:
        """Stop those that run; what they have done stays done."""
        found = list(queryset)
        stopped = sum(_may_stop(request, operation) and self._stop(request, operation) for operation in found)
        if stopped:
            self.message_user(request, f"Stopped {stopped} operation{'' if stopped == 1 else 's'}.", messages.SUCCESS)
        if stopped < len(found):
            why = "ended already, or not yours to stop"
            self.message_user(request, f"Skipped {len(found) - stopped} ({why}).", messages.WARNING)

    def get_urls(self) -> list[URLPattern]:
        """Put the stop before Django's own addresses."""
        stop = self.admin_site.admin_view(self.stop_view)
        return [path("<uuid:operation_id>/stop/", stop, name="queue_app_operation_stop"), *super().get_urls()]

    def stop_view(self, request: HttpRequest, operation_id: uuid.UUID) -> HttpResponse:
        """Stop one operation."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_stop_permission(request) and self.has_view_permission(request)):
            raise PermissionDenied
        operation = self.get_object(request, str(operation_id))
        if operation is None:
            self.message_user(request, f"There is no operation {operation_id}.", messages.WARNING)
            return HttpResponseRedirect(self.url_of("changelist"))
        if not _may_stop(request, operation):
            raise PermissionDenied
        if self._stop(request, operation):
            self.message_user(request, "The operation is stopped; what it has done stays done.", messages.SUCCESS)
        else:
            self.message_user(request, "The operation has ended already.", messages.ERROR)
        return HttpResponseRedirect(self.url_of("change", operation_id))

    def _stop(self, request: HttpRequest, operation: Operation) -> bool:
        try:
            with atomic():
                ended = cancel_operation(operation.pk, by=request.user.get_username())
                self.audit(request, [operation], "Stopped.", action="stop", after={"changed": ended.changed})
        except (OperationEnded, OperationNotFound):
            return False
        return True

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
