"""The rules that staff edit: policies of bands, limits of task types and keys, limits over all queues."""

from django.contrib import admin
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.columns import column, time_column
from queue_app.admin.forms import ReasonForm
from queue_app.admin.mixins import FixedRowsAdmin, SingletonAdmin
from queue_app.admin.pausing import ADAPTIVE, ADAPTIVE_FIELDSET, LIMITS_NOTE, PausingAdmin
from queue_app.core.priorities import Band
from queue_app.core.promotion import rises
from queue_app.dashboard import labels
from queue_app.models import Limit, PriorityPolicy, RuntimeSettings


@admin.register(PriorityPolicy)
class PriorityPolicyAdmin(FixedRowsAdmin[PriorityPolicy]):
    """The policy of each band. The five rows always exist."""

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

    band = column(_lazy("priority"), lambda policy: labels.band_label(policy.priority))

    @admin.display(description=_lazy("treated as high after"))
    def starvation_bound(self, policy: PriorityPolicy) -> str:
        """Return the wait after which only critical tasks, and older high ones, can still run first."""
        if policy.priority <= Band.HIGH:
            return _("at once")
        steps = list(rises(Band(policy.priority), PriorityPolicy.thresholds()))
        if not steps:
            return _("never: it may starve")
        if steps[-1].to is Band.HIGH:
            return labels.duration(steps[-1].after)
        return _("never: it rises to %(band)s and may starve behind high") % {"band": steps[-1].to.label}


@admin.register(Limit)
class LimitAdmin(PausingAdmin[Limit]):
    """The limits of task types and concurrency keys."""

    empty_text = _lazy("No task type or concurrency key has a limit. Limits of a queue are on the queue's page.")
    fieldsets = (
        (None, {"fields": ("scope", "name")}),
        (
            _lazy("Limits"),
            {
                "fields": (
                    "max_concurrent",
                    ("rate_count", "rate_seconds", "rate_burst"),
                    "min_delay_seconds",
                    "throttled_until",
                ),
                "description": LIMITS_NOTE,
            },
        ),
        ADAPTIVE_FIELDSET,
        (None, {"fields": ("reason",)}),
    )
    fixed_fields = ("scope", "name")
    form = ReasonForm
    list_display = ("name", "scope", "state", "max_concurrent", "rate_count", "rate_seconds")
    list_editable = ("max_concurrent", "rate_count", "rate_seconds")
    list_filter = ("scope",)
    list_per_page = 50
    ordering = ("scope", "name")
    search_fields = ("name",)
    sortable_by = ("name", "scope")


@admin.register(RuntimeSettings)
class RuntimeSettingsAdmin(PausingAdmin[RuntimeSettings], SingletonAdmin[RuntimeSettings]):
    """The limits over all queues, and the pause of everything."""

    actions = None
    fields = ("max_concurrent", *ADAPTIVE, "max_length", "max_pending_per_user", "updated", "reason")
    form = ReasonForm
    pause_permission = "queue_app.pause_queue"  # staff who may pause each queue may pause all
    readonly_fields = ("updated",)
    updated = time_column("updated_at", _lazy("updated"))
