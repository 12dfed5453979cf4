"""The rules that staff edit: policies of bands, limits of task types and keys, limits over all queues."""

from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils.formats import number_format
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app import conf
from queue_app.admin.forms import ReasonForm, column, time_column, two_lines
from queue_app.admin.mixins import FixedRowsAdmin, SingletonAdmin, page
from queue_app.admin.queue import ADAPTIVE_FIELDSET, HELP, LIMITS_NOTE, PausingAdmin
from queue_app.core.limits import Scope
from queue_app.core.priorities import Band, rises
from queue_app.dashboard import labels
from queue_app.models import Limit, PriorityPolicy, RuntimeSettings
from queue_app.services.read.behind import behind


class PriorityPolicyAdmin(FixedRowsAdmin[PriorityPolicy]):
    """The policy of each band. The five rows always exist."""

    actions = None
    lead = _lazy("What applies to the tasks of each priority, unless the task or its queue says otherwise.")
    fields = ("priority", "max_retries", "timeout_seconds", "promote_after_seconds", "target_seconds", "reason")
    field_help = {  # noqa: RUF012 - read only
        "max_retries": _lazy("How often a failed task runs again, unless the task or its queue has another number."),
        "timeout_seconds": _lazy(
            "The worker stops an attempt that runs longer, such as 10 min, unless the task or its queue has another"
            " timeout."
        ),
        "promote_after_seconds": _lazy(
            "A task that has waited this long counts as one of the next higher band, up to high; then it rises by the"
            " value of that band. Empty: never. No effect for critical and high."
        ),
        "target_seconds": _lazy(
            "The overview marks tasks of this band that wait longer, such as 30 s. It changes no order. Empty: none."
        ),
    }
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


class LimitForm(ReasonForm):
    """Limits of a task type or key; a new one is of a type that exists."""

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or {}
        if self.instance.pk is None and values.get("scope") == Scope.TYPE and values.get("name"):
            try:
                self.fields["name"].widget.check("task_type", values["name"])
            except ValidationError as error:
                later = _("For a type that is yet to come, set the limit with manage.py taskqueue limit.")
                self.add_error("name", f"{error.message} {later}")
        return values


class LimitAdmin(PausingAdmin[Limit]):
    lead = _lazy(
        "How many tasks of a type, or of a concurrency key, run or start at most, over all queues. The limits of a"
        " queue are on its page."
    )
    empty_text = _lazy("No task type or concurrency key has a limit. Limits of a queue are on the queue's page.")
    fieldsets = (
        (None, {"fields": ("scope", "name")}),
        (
            _lazy("Limits"),
            {
                "fields": (
                    "max_concurrent",
                    "rate_count",
                    "rate_seconds",
                    "rate_burst",
                    "min_delay_seconds",
                ),
                "description": LIMITS_NOTE,
            },
        ),
        ADAPTIVE_FIELDSET,
        (_lazy("Set by the code of tasks"), {"fields": ("throttled_until",), "classes": ("collapse",)}),
        (None, {"fields": ("reason",)}),
    )
    field_help = HELP | {"scope": _lazy("Whether the name is that of a task type or of a concurrency key.")}
    fixed_fields = ("scope", "name")
    form = LimitForm
    change_list_template = "admin/queue_app/operation/change_list.html"  # leads to a simulation, too
    pickers: ClassVar = dict(PausingAdmin.pickers) | {"name": ("task_type", "concurrency_key")}
    list_display = (
        "name", "scope", "state", "running", "waiting", "rate", "max_concurrent"
    )  # fmt: skip
    list_editable = ("max_concurrent",)
    list_filter = ("scope",)
    list_per_page = 50
    ordering = ("name",)  # of two columns, Django would write the rank into the headings
    search_fields = ("name",)
    sortable_by = ("name", "scope")

    rate = column(_lazy("rate"), labels.rate)

    @page("hold/", "hold", permission="pause", post=True)
    def hold_view(self, request: HttpRequest) -> HttpResponse:
        """Pause the task type that the overview names, which may have no limits yet."""
        limit = Limit(scope=Scope.TYPE, name=request.POST.get("name", ""))
        limit = Limit.objects.filter(scope=limit.scope, name=limit.name).first() or limit
        return self.act_on(request, limit, lambda found, _reason: self.pause(request, found))

    def annotate_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        rows = list(rows)
        for limit, found in zip(rows, behind(rows), strict=True):
            limit.behind = found

    @admin.display(description=_lazy("running"))
    def running(self, limit: Any) -> SafeString | str:
        """Return the number of running tasks and the limit in force; for a family, that of the fullest key."""
        found = limit.behind
        if found.fullest != found.running:
            return two_lines(f"{found.running:,}", _("at most %(n)s of one key") % {"n": found.fullest})
        if limit.cap is None:
            return f"{found.running:,}"
        number = _("%(done)d of %(total)d") % {"done": found.running, "total": limit.cap}
        if limit.adaptive:
            return two_lines(number, _("adapts itself"))
        return two_lines(number, _("at the limit")) if found.fullest >= limit.cap else number

    @admin.display(description=_lazy("waiting"))
    def waiting(self, limit: Any) -> SafeString | str:
        found = limit.behind
        number = f"{found.waiting:,}{'+' if found.is_least else ''}"
        return two_lines(number, labels.age(found.oldest)) if found.oldest is not None else number


class RuntimeSettingsAdmin(PausingAdmin[RuntimeSettings], SingletonAdmin[RuntimeSettings]):
    """The limits over all queues, and the pause of everything."""

    actions = None
    fieldsets = (
        (_lazy("Limits of all queues together"), {"fields": ("max_concurrent",)}),
        (_lazy("Limits of each queue that has none itself"), {"fields": ("max_length", "max_pending_per_user")}),
        ADAPTIVE_FIELDSET,
        (None, {"fields": ("updated", "reason")}),
    )
    field_help = HELP
    form = ReasonForm
    pause_permission = "queue_app.pause_queue"  # staff who may pause each queue may pause all
    readonly_fields = ("updated",)
    updated = time_column("updated_at", _lazy("updated"))

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        """Say what an empty field means."""
        found = super().formfield_for_dbfield(db_field, request, **kwargs)
        if found is not None and (value := getattr(conf.get().admission, db_field.name, None)):
            says = _("These say %(n)s.") % {"n": number_format(value, force_grouping=True)}
            found.help_text = f"{found.help_text} {says}"
        return found

    def page_context(self, request: HttpRequest, found: RuntimeSettings) -> dict[str, Any]:
        return super().page_context(request, found) | {"title": capfirst(self.opts.verbose_name), "subtitle": ""}
