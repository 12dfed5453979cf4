"""Replays of many: watched, and stopped by those who may replay."""

from __future__ import annotations

import uuid
from typing import Any

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
from queue_app.dashboard import labels
from queue_app.exceptions import OperationEnded, OperationNotFound
from queue_app.models import ReplayOperation
from queue_app.models.replay_operation import ReplayState
from queue_app.rows.database import atomic
from queue_app.services.replay_many import cancel_replay, get_operation

MAX_SHOWN_IDS = 20


@admin.register(ReplayOperation)
class ReplayOperationAdmin(ReadOnlyAdmin[ReplayOperation]):
    """The replays of many dead letters, newest first."""

    actions = ("stop_selected",)
    change_form_template = "admin/queue_app/replayoperation/change_form.html"
    fields = (
        "status", "progress", "failed_again_now", "selection", "rate", "stop_after_failures", "by", "reason", "created",
        "finished_at", "letters",
    )  # fmt: skip
    list_display = ("created", "status", "progress", "rate", "by", "reason")
    list_filter = ("state",)
    list_per_page = 50
    ordering = ("-id",)
    paginator = CappedPaginator
    show_full_result_count = False
    sortable_by = ()

    def has_stop_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may stop replays: those who may begin them."""
        return request.user.has_perm("queue_app.replay_deadletter")

    @admin.display(description=_lazy("begun"))
    def created(self, operation: ReplayOperation) -> SafeString:
        """Return when it was asked for."""
        return labels.ago(operation.created_at, timezone.now())

    @admin.display(description=_lazy("state"))
    def status(self, operation: ReplayOperation) -> SafeString:
        """Return the state, and what it waits for or who ended it."""
        label = format_html('<span class="tq-label tq-replay-{}">{}</span>', operation.state, operation.state)
        if operation.is_waiting_for_the_first:
            why = f"waits for the first {operation.stop_after_failures}"
        elif operation.state == ReplayState.STOPPED:
            why = f"the first {operation.stop_after_failures} failed again"
        elif operation.ended_by:
            why = f"by {operation.ended_by}"
        else:
            return label
        return format_html('{}<small class="tq-below">{}</small>', label, why)

    @admin.display(description=_lazy("progress"))
    def progress(self, operation: ReplayOperation) -> SafeString:
        """Return how far it has come, as a bar and in words."""
        skipped = f", {operation.skipped} skipped" if operation.skipped else ""
        return format_html(
            '<progress max="{}" value="{}"></progress> <span class="tq-nowrap">{} of {}{}</span>',
            max(operation.total, 1),
            operation.replayed + operation.skipped,
            operation.replayed,
            operation.total,
            skipped,
        )

    @admin.display(description=_lazy("failed again"))
    def failed_again_now(self, operation: ReplayOperation) -> int:
        """Return how many of its tasks have failed again by now."""
        return get_operation(operation.pk).failed_again

    @admin.display(description=_lazy("per second"))
    def rate(self, operation: ReplayOperation) -> str:
        """Return the pace."""
        return "no limit" if operation.pace is None else f"{operation.pace:g}"

    @admin.display(description=_lazy("filter"))
    def selection(self, operation: ReplayOperation) -> SafeString | str:
        """Return what was asked for."""
        wanted = dict(operation.filter)
        ids = wanted.get("ids", [])
        if len(ids) > MAX_SHOWN_IDS:
            wanted["ids"] = [*ids[:MAX_SHOWN_IDS], f"and {len(ids) - MAX_SHOWN_IDS} more"]
        return format_html('<pre class="tq-pre">{}</pre>', pretty(wanted)) if wanted else "all"

    @admin.display(description=_lazy("dead letters"))
    def letters(self, operation: ReplayOperation) -> SafeString:
        """Return a link to what it replayed."""
        url = reverse("admin:queue_app_deadletter_changelist", current_app=self.admin_site.name)
        return format_html('<a href="{}?operation_id={}">those that it replayed</a>', url, operation.pk)

    # -- stop ----------------------------------------------------------------------

    @admin.action(description=_lazy("Stop selected replays"), permissions=["stop"])
    def stop_selected(self, request: HttpRequest, queryset: QuerySet[ReplayOperation]) -> None:
        """Stop those that run; what they replayed stays replayed."""
        found = list(queryset)
        stopped = sum(self._stop(request, operation) for operation in found)
        if stopped:
            self.message_user(request, f"Stopped {stopped} replay{'' if stopped == 1 else 's'}.", messages.SUCCESS)
        if stopped < len(found):
            self.message_user(request, f"Skipped {len(found) - stopped} (ended already).", messages.WARNING)

    def get_urls(self) -> list[URLPattern]:
        """Put the action of an operation's page before Django's own addresses."""
        stop = self.admin_site.admin_view(self.stop_view)
        return [path("<uuid:operation_id>/stop/", stop, name="queue_app_replayoperation_stop"), *super().get_urls()]

    def stop_view(self, request: HttpRequest, operation_id: uuid.UUID) -> HttpResponse:
        """Stop one replay."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_stop_permission(request) and self.has_view_permission(request)):
            raise PermissionDenied
        operation = self.get_object(request, str(operation_id))
        if operation is None:
            self.message_user(request, f"There is no replay {operation_id}.", messages.WARNING)
            return HttpResponseRedirect(self.url_of("changelist"))
        if self._stop(request, operation):
            self.message_user(request, "The replay is stopped.", messages.SUCCESS)
        else:
            self.message_user(request, "The replay has ended already.", messages.ERROR)
        return HttpResponseRedirect(self.url_of("change", operation_id))

    def _stop(self, request: HttpRequest, operation: ReplayOperation) -> bool:
        try:
            with atomic():
                cancel_replay(operation.pk, by=request.user.get_username())
                self.audit(request, [operation], "Stopped.")
        except (OperationEnded, OperationNotFound):
            return False
        return True

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the button above the record, to those who may."""
        operation: ReplayOperation | None = kwargs.get("obj")
        if operation is not None:
            context["may_stop"] = operation.state == ReplayState.RUNNING and self.has_stop_permission(request)
        return super().render_change_form(request, context, *args, **kwargs)
