"""Policies and limits that staff edit, and the state of the index."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.mixins import FixedRowsAdmin, ReadOnlyAdmin, ReasonForm, SingletonAdmin
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
            return "at once"
        steps = list(rises(Band(policy.priority), PriorityPolicy.thresholds()))
        if not steps or steps[-1].to is not Band.HIGH:
            highest = steps[-1].to if steps else Band(policy.priority)
            return f"never: it rises to {highest.label} and may starve behind high" if steps else "never: it may starve"
        return labels.duration(steps[-1].after)


@admin.register(RuntimeSettings)
class RuntimeSettingsAdmin(PausingAdmin[RuntimeSettings], SingletonAdmin[RuntimeSettings]):
    """The limits over all queues, and the pause of everything; they hold from the next claim on."""

    pause_permission = "queue_app.pause_queue"  # who may pause each queue may pause all

    fields = ("max_concurrent", "max_length", "max_pending_per_user", "reason", "updated_at")
    form = ReasonForm
    readonly_fields = ("updated_at",)

    def save_model(self, request: HttpRequest, obj: RuntimeSettings, form: Any, change: Any) -> None:
        """Write only what was edited, so that a pause of this very moment is not undone."""
        names = [name for name in form.changed_data if name != "reason"]
        obj.save(update_fields=[*names, "updated_at"])


@admin.register(IndexGeneration)
class IndexGenerationAdmin(SingletonAdmin[IndexGeneration], ReadOnlyAdmin[IndexGeneration]):
    """The index that was built last, and whether claims are possible now."""

    fields = ("number", "state", "started_at", "ready_at", "tasks", "leases")

    @admin.display(description=_lazy("index now"))
    def state(self, generation: IndexGeneration) -> str:
        """Return ready, rebuilding, missing or unreachable, as the index says itself."""
        return index_state()
