"""What if, in the admin: the form that requests a simulation, what its operation shows, and applying what it tried."""

import json
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app.admin.forms import ReasonField
from queue_app.admin.mixins import action_page, page
from queue_app.admin.operation import OperationAdmin
from queue_app.exceptions import InvalidTaskData, SimulationRefused
from queue_app.models import Operation
from queue_app.models.operation import PERMISSIONS, OperationKind
from queue_app.services.control import audit
from queue_app.services.control.queues import apply, rows_of
from queue_app.sql.database import atomic
from queue_app.what_if.operation import applicable, refuse_unless_done, start_simulation
from queue_app.what_if.simulate import table

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


class SimulatingAdmin(OperationAdmin):
    """The pages of operations, with those of simulations."""

    change_list_template = "admin/queue_app/operation/change_list.html"

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

    def get_fields(self, request: HttpRequest, obj: Operation | None = None) -> tuple[str, ...]:
        """Show the outcome of a simulation to those who may see it."""
        if obj is None or obj.kind != OperationKind.SIMULATE:
            return super().get_fields(request, obj)
        may_see = request.user.has_perm(PERMISSION)
        if not may_see:
            self.message_user(request, _("You may not see the results of simulations."), messages.WARNING)
        seen = ("outcome",) if may_see else ()
        return ("status", "progress", *seen, "reason", "created", "finished")

    def page_context(self, request: HttpRequest, found: Operation) -> dict[str, Any]:
        may_apply = found.kind == OperationKind.SIMULATE and self.may_apply(request, found)
        return super().page_context(request, found) | {"may_apply": may_apply}


def _bars(answer: Mapping[str, Any], by: str) -> Any:
    """Yield (group, [(run, p95, share of the longest)])."""
    waits = {label: answer[name]["waits"].get(by, {}) for name, label in RUNS if name in answer}
    longest = max((wait.get("p95", 0.0) for of_run in waits.values() for wait in of_run.values()), default=0.0) or 1.0
    for group in dict.fromkeys(group for of_run in waits.values() for group in of_run):
        p95 = {label: of_run.get(group, {}).get("p95", 0.0) for label, of_run in waits.items()}
        yield group, [(label, seconds, round(100 * seconds / longest)) for label, seconds in p95.items()]
