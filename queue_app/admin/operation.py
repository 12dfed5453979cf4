"""The pages of operations: staff watch and stop actions on many tasks, and try other limits in a simulation."""

import json
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy, ngettext

from queue_app.admin.forms import ReasonField, column, preformatted, time_column, two_lines
from queue_app.admin.mixins import QueueAppAdmin, ReadOnlyAdmin, action_page, page
from queue_app.admin.task_detail import pretty
from queue_app.core.redaction import Secrets, redact_value
from queue_app.dashboard import labels
from queue_app.dashboard.labels import word
from queue_app.dashboard.sentences import filter_words, operation_title
from queue_app.exceptions import InvalidTaskData, SimulationRefused
from queue_app.models import Operation
from queue_app.models.operation import PERMISSIONS, OperationKind, OperationState
from queue_app.registry import all_sensitive_names
from queue_app.services.control import audit
from queue_app.services.control.queues import apply, rows_of
from queue_app.services.operations.request import cancel_operation, get_operation
from queue_app.sql.database import atomic
from queue_app.what_if.operation import applicable, refuse_unless_done, start_simulation
from queue_app.what_if.simulate import table

# What if: the form that requests a simulation, what its operation shows, and applying what it tried.

PERMISSION: Final = PERMISSIONS[OperationKind.SIMULATE]
HOURS: Final = (
    (1, _lazy("last hour")),
    (6, _lazy("last 6 hours")),
    (24, _lazy("last 24 hours")),
    (168, _lazy("last 7 days")),
)
RUNS: Final = (("actual", _lazy("actual")), ("unchanged", _lazy("unchanged")), ("changed", _lazy("changed")))
TABLES: Final = ("limit", "queue", "band", "type", "user")
EXAMPLE: Final = '[limits."queue:imports"]\nmax_concurrent = 4\n'


class WhatIfForm(forms.Form):
    hours = forms.TypedChoiceField(label=_lazy("Window"), choices=HOURS, coerce=int, initial=24)
    scenario = forms.CharField(
        label=_lazy("Changes"),
        required=False,
        max_length=100_000,
        widget=forms.Textarea({"rows": 12, "class": "vLargeTextField tq-json", "spellcheck": "false"}),
        help_text=_lazy("TOML or JSON: limits, bands, priorities, workers, pauses, load. Empty: only the calibration."),
        initial=EXAMPLE,
    )
    reason = ReasonField()

    def clean_scenario(self) -> dict[str, Any]:
        """Return the table; the service decides whether it makes sense."""
        text = self.cleaned_data["scenario"]
        try:
            found = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(_("This is neither TOML nor JSON: %(error)s") % {"error": error}) from None
        return dict(found)


class WhatIfAdmin(QueueAppAdmin[Operation]):
    @page("what-if/", "what_if")
    def what_if_view(self, request: HttpRequest) -> HttpResponse:
        if not request.user.has_perm(PERMISSION):
            raise PermissionDenied
        form = WhatIfForm(request.POST or None)
        if form.is_valid():
            values, now = form.cleaned_data, timezone.now()
            try:
                with atomic():
                    operation = start_simulation(
                        values["scenario"], now - timedelta(hours=values["hours"]), now,
                        by=request.user.get_username(), reason=values["reason"],
                    )  # fmt: skip
                    self.audit(request, [operation], "What if.", action="simulate", after=operation.arguments,
                               reason=operation.reason)  # fmt: skip
            except (InvalidTaskData, SimulationRefused) as error:
                form.add_error("scenario", str(error))
            else:
                return HttpResponseRedirect(self.url_of("change", operation.pk))
        return self.own_page(request, "operation/what_if.html", _("What if?"), form=form, submit=_("Simulate"))

    def outcome(self, operation: Operation) -> SafeString | str:
        """Return the result of a simulation: words, calibration, tables and bars."""
        answer = operation.result or {}
        if "error" in answer or "unchanged" not in answer:
            return str(answer.get("error", "-"))
        tables = [(by, list(table(answer, by)), list(_bars(answer, by))) for by in TABLES]
        context = {
            "answer": answer,
            "tables": [each for each in tables if len(each[1]) > 1],
            "changes": json.dumps(operation.arguments, indent=2, sort_keys=True) if operation.arguments else "",
        }
        return render_to_string("admin/queue_app/operation/outcome.html", context)

    outcome.short_description = _lazy("result")  # type: ignore[attr-defined]

    def has_apply_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may see simulations; ``apply_view`` looks at each change."""
        return request.user.has_perm(PERMISSION)

    def may_apply(self, request: HttpRequest, operation: Operation) -> bool:
        """Return whether the user may make every change that a simulation tried."""
        try:
            with atomic():
                rows = [row for row, _fields in rows_of(applicable(operation))]
        except InvalidTaskData:
            return False
        names = {f"queue_app.change_{row._meta.model_name}" for row in rows}  # noqa: SLF001 - documented by Django
        return bool(rows) and request.user.has_perms(names)

    @action_page("apply", "apply")
    def apply_view(self, request: HttpRequest, operation: Operation, reason: str) -> str:
        refuse_unless_done(operation)
        if not self.may_apply(request, operation):
            raise PermissionDenied
        rows = apply(applicable(operation), by=request.user.get_username(), via=audit.ADMIN, reason=reason)
        self.log_action_of(request, [operation], "Applied.", reason)
        return _("Applied to %(rows)s.") % {"rows": ", ".join(map(str, rows))}


def _bars(answer: Mapping[str, Any], by: str) -> Any:
    """Yield (group, [(run, p95, share of the longest)])."""
    waits = {label: answer[name]["waits"].get(by, {}) for name, label in RUNS if name in answer}
    longest = max((wait.get("p95", 0.0) for of_run in waits.values() for wait in of_run.values()), default=0.0) or 1.0
    for group in dict.fromkeys(group for of_run in waits.values() for group in of_run):
        p95 = {label: of_run.get(group, {}).get("p95", 0.0) for label, of_run in waits.items()}
        yield group, [(label, seconds, round(100 * seconds / longest)) for label, seconds in p95.items()]


#: Number of ids shown of a filter.
MAX_DISPLAYED_IDS: Final = 20
#: Fields that only replays show.
OF_REPLAYS: Final = ("stop_after_failures", "failed_again_now", "letters")


class OperationAdmin(ReadOnlyAdmin[Operation], WhatIfAdmin):
    actions = ("stop_selected",)
    change_form_template = "admin/queue_app/operation/change_form.html"
    change_list_template = "admin/queue_app/operation/change_list.html"
    fields = (
        "kind", "status", "progress", "selection", "arguments", "pace", "limit", *OF_REPLAYS, "by", "reason", "created",
        "finished",
    )  # fmt: skip
    list_display = ("what", "status", "progress", "who", "reason")
    search_fields = ("by", "reason")
    list_filter = ("state", "kind", "target")
    ordering = ("-id",)

    created = column(_lazy("started"), lambda operation: labels.ago(operation.created_at, timezone.now()))
    finished = time_column("finished_at", _lazy("finished"))
    failed_again_now = column(_lazy("failed again"), lambda operation: get_operation(operation.pk).failed_again)
    pace = column(_lazy("per second"), lambda found: _("no limit") if found.rate is None else f"{found.rate:g}")

    def get_fields(self, request: HttpRequest, obj: Operation | None = None) -> tuple[str, ...]:
        """Leave out what other kinds need, and what the user may not read."""
        if obj is not None and obj.kind == OperationKind.SIMULATE:
            may_see = request.user.has_perm(PERMISSION)
            if not may_see:
                self.message_user(request, _("You may not see the results of simulations."), messages.WARNING)
            seen = ("outcome",) if may_see else ()
            return ("kind", "status", "progress", *seen, "by", "reason", "created", "finished")
        is_replay = obj is not None and obj.kind == OperationKind.REPLAY
        left_out: tuple[str, ...] = () if is_replay else OF_REPLAYS
        if not self.may_view_payload(request):  # a filter may name parameters, or words of an error
            left_out += ("selection",)
        return tuple(name for name in self.fields if name not in left_out)

    @admin.display(description=_lazy("operation"))
    def what(self, operation: Operation) -> SafeString:
        return two_lines(operation_title(operation), self._words(operation) if operation.may_read else "")  # type: ignore[attr-defined]

    def annotate_rows(self, request: HttpRequest, rows: Any) -> None:
        for operation in rows:
            operation.may_read = self.may_view_payload(request)

    def _words(self, operation: Operation) -> str:
        return filter_words(redact_value(operation.filter, Secrets(names=all_sensitive_names())))

    @admin.display(description=_lazy("by"))
    def who(self, operation: Operation) -> SafeString:
        return two_lines(operation.by or _("a program"), labels.ago(operation.created_at, timezone.now()))

    @admin.display(description=_lazy("state"))
    def status(self, operation: Operation) -> SafeString:
        label = format_html('<span class="tq-label tq-operation-{}">{}</span>', operation.state, word(operation.state))
        if operation.is_waiting_for_the_first:
            why = _("waits for the first %(n)d") % {"n": operation.stop_after_failures}
        elif operation.state == OperationState.STOPPED:
            why = _("the first %(n)d failed again") % {"n": operation.stop_after_failures}
        elif operation.ended_by:
            why = _("by %(name)s") % {"name": operation.ended_by}
        else:
            return label
        return two_lines(label, why)

    @admin.display(description=_lazy("progress"))
    def progress(self, operation: Operation) -> SafeString:
        skipped = _(", %(n)d left alone") % {"n": operation.skipped} if operation.skipped else ""
        return format_html(
            '<progress max="{}" value="{}" aria-label="{}"></progress> <span class="tq-nowrap">{}{}</span>',
            max(operation.total, 1),
            operation.changed + operation.skipped,
            _("progress"),
            _("%(done)d of %(total)d") % {"done": operation.changed, "total": operation.total},
            skipped,
        )

    @admin.display(description=_lazy("filter"))
    def selection(self, operation: Operation) -> SafeString | str:
        """Return the filter without secrets."""
        wanted = redact_value(operation.filter, Secrets(names=all_sensitive_names()))
        ids, target = wanted.get("ids", []), word(operation.target)
        if len(ids) > MAX_DISPLAYED_IDS:
            wanted |= {"ids": [*ids[:MAX_DISPLAYED_IDS], _("and %(n)s more") % {"n": len(ids) - MAX_DISPLAYED_IDS}]}
        if not wanted:
            return _("all %(things)s") % {"things": target}
        return format_html("{}{}", filter_words(operation.filter | wanted), preformatted(pretty(wanted)))

    @admin.display(description=_lazy("dead letters"))
    def letters(self, operation: Operation) -> SafeString:
        url = self.url_of_model("deadletter", "changelist")
        return format_html('<a href="{}?operation_id={}">{}</a>', url, operation.pk, _("replayed by this operation"))

    # -- stop ----------------------------------------------------------------------

    def has_stop_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may stop operations of some kind: the kinds that the user may start.

        A page offers it only while one of these kinds runs.
        """
        kinds = [kind for kind, permission in PERMISSIONS.items() if request.user.has_perm(permission)]
        running = Operation.objects.filter(state=OperationState.RUNNING, kind__in=kinds)
        return bool(kinds) and (request.method == "POST" or running.exists())

    @admin.action(description=_lazy("Stop selected operations"), permissions=["stop"])
    def stop_selected(self, request: HttpRequest, queryset: QuerySet[Operation]) -> None:
        """Stop running operations; what they have changed stays changed."""
        found = list(queryset)
        allowed = [operation for operation in found if _may_stop(request, operation)]
        stopped, _ended = self.act_on_each(allowed, lambda operation: self._stop(request, operation))
        if stopped:
            self.message_user(
                request,
                ngettext("Stopped %(n)d operation.", "Stopped %(n)d operations.", stopped) % {"n": stopped},
                messages.SUCCESS,
            )
        if stopped < len(found):
            text = _("Skipped %(n)d (ended already, or you may not stop them).")
            self.message_user(request, text % {"n": len(found) - stopped}, messages.WARNING)

    @action_page("stop", "stop")
    def stop_view(self, request: HttpRequest, operation: Operation, _reason: str) -> str:
        if not _may_stop(request, operation):
            raise PermissionDenied
        self._stop(request, operation)
        return _("The operation is stopped; what it has changed stays changed.")

    def _stop(self, request: HttpRequest, operation: Operation) -> None:
        ended = cancel_operation(operation.pk, by=request.user.get_username())
        self.audit(request, [operation], "Stopped.", action="stop", after={"changed": ended.changed})

    def page_context(self, request: HttpRequest, found: Operation) -> dict[str, Any]:
        running = found.state == OperationState.RUNNING
        may_apply = found.kind == OperationKind.SIMULATE and self.may_apply(request, found)
        return {
            "title": operation_title(found),
            "is_running": running,
            "may_stop": running and _may_stop(request, found),
            "may_apply": may_apply,
        }


def _may_stop(request: HttpRequest, operation: Operation) -> bool:
    return request.user.has_perm(PERMISSIONS[OperationKind(operation.kind)])
