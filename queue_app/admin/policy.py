"""Policies and limits that staff edit, and the state of the index."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.audit_entry import changes_of
from queue_app.admin.mixins import FixedRowsAdmin, ReadOnlyAdmin, ReasonForm, SingletonAdmin, time_of
from queue_app.admin.pausing import PausingAdmin
from queue_app.core.priorities import Band
from queue_app.core.promotion import rises
from queue_app.dashboard import labels
from queue_app.dashboard.overview import index_state
from queue_app.models import IndexGeneration, PriorityPolicy, RuntimeSettings


@admin.register(PriorityPolicy)
class PriorityPolicyAdmin(FixedRowsAdmin[PriorityPolicy]):
    """What holds for the tasks of each band; the five rows always exist."""

    actions = None
    fields = ("priority", "max_retries", "timeout_seconds", "promote_after_seconds", "target_seconds", "reason")
    form = ReasonForm
    list_display = (
        "band", "max_retries", "timeout_seconds", "promote_after_seconds", "target_seconds", "starvation_bound"
    )  # fmt: skip
    list_editable = ("max_retries", "timeout_seconds", "promote_after_seconds", "target_seconds")
    ordering = ("priority",)
    readonly_fields = ("priority",)
    sortable_by = ()

    @admin.display(description=_lazy("priority"))
    def band(self, policy: PriorityPolicy) -> SafeString:
        """Return the band as a label."""
        return labels.band_label(policy.priority)

    @admin.display(description=_lazy("treated as high after"))
    def starvation_bound(self, policy: PriorityPolicy) -> str:
        """Return after how long only critical tasks, and older high ones, can still come first."""
        if policy.priority <= Band.HIGH:
            return _("at once")
        steps = list(rises(Band(policy.priority), PriorityPolicy.thresholds()))
        if not steps or steps[-1].to is not Band.HIGH:
            highest = steps[-1].to if steps else Band(policy.priority)
            text = _("never: it rises to %(band)s and may starve behind high") if steps else _("never: it may starve")
            return text % {"band": highest.label} if steps else text
        return labels.duration(steps[-1].after)


@admin.register(RuntimeSettings)
class RuntimeSettingsAdmin(PausingAdmin[RuntimeSettings], SingletonAdmin[RuntimeSettings]):
    """The limits over all queues, and the pause of everything; they hold from the next claim on."""

    pause_permission = "queue_app.pause_queue"  # who may pause each queue may pause all

    actions = None
    fields = ("max_concurrent", "max_length", "max_pending_per_user", "updated", "reason")
    form = ReasonForm
    readonly_fields = ("updated",)
    updated = time_of("updated_at", _lazy("updated"))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show who changed them below the form."""
        context |= {
            "history": changes_of("runtimesettings", "1"),
            "may_view_audit": request.user.has_perm("queue_app.view_auditentry"),
        }
        return super().render_change_form(request, context, *args, **kwargs)


@admin.register(IndexGeneration)
class IndexGenerationAdmin(SingletonAdmin[IndexGeneration], ReadOnlyAdmin[IndexGeneration]):
    """The index that was built last, and whether claims are possible now."""

    fields = ("number", "state", "started", "ready", "tasks", "leases")
    started = time_of("started_at", _lazy("started"))
    ready = time_of("ready_at", _lazy("ready"))

    @admin.display(description=_lazy("index now"))
    def state(self, generation: IndexGeneration) -> str:
        """Return ready, rebuilding, missing or unreachable, as the index says itself."""
        return index_state()
