"""Policies and limits that staff edit, and the state of the index."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString

from queue_app.admin.mixins import FixedRowsAdmin, ReadOnlyAdmin, SingletonAdmin
from queue_app.dashboard import labels
from queue_app.dashboard.overview import index_state
from queue_app.models import IndexGeneration, PriorityPolicy, RuntimeSettings


@admin.register(PriorityPolicy)
class PriorityPolicyAdmin(FixedRowsAdmin[PriorityPolicy]):
    """What holds for the tasks of each band; the five rows always exist."""

    actions = None
    fields = ("priority", "max_retries", "timeout_seconds", "promote_after_seconds")
    list_display = ("band", "max_retries", "timeout_seconds", "promote_after_seconds")
    list_editable = ("max_retries", "timeout_seconds", "promote_after_seconds")
    ordering = ("priority",)
    readonly_fields = ("priority",)
    sortable_by = ()

    @admin.display(description="priority")
    def band(self, policy: PriorityPolicy) -> SafeString:
        """Return the band as a label."""
        return labels.band_label(policy.priority)


@admin.register(RuntimeSettings)
class RuntimeSettingsAdmin(SingletonAdmin[RuntimeSettings]):
    """The limits over all queues; they hold from the next claim on."""

    fields = ("max_concurrent", "updated_at")
    readonly_fields = ("updated_at",)


@admin.register(IndexGeneration)
class IndexGenerationAdmin(SingletonAdmin[IndexGeneration], ReadOnlyAdmin[IndexGeneration]):
    """The index that was built last, and whether claims are possible now."""

    fields = ("number", "state", "started_at", "ready_at", "tasks", "leases")

    @admin.display(description="index now")
    def state(self, generation: IndexGeneration) -> str:
        """Return ready, rebuilding, missing or unreachable, as the index says itself."""
        return index_state()
