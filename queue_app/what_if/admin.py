"""What if, in the admin: the form that requests a simulation, what its operation shows, and applying what it tried."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, cast

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
from queue_app.admin.pickers import LIMITS, Picker
from queue_app.core.sentence import from_json
from queue_app.dashboard.labels import translate, word
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Operation
from queue_app.models.limits import MAX_CAP
from queue_app.models.operation import PERMISSIONS, OperationKind
from queue_app.services.control import audit
from queue_app.services.control.queues import apply, rows_of
from queue_app.sql.database import atomic
from queue_app.what_if.operation import applicable, refuse_unless_done, start_simulation
from queue_app.what_if.plan import span
from queue_app.what_if.scenario import MAX_SLOTS
from queue_app.what_if.simulate import calibration_words, changed_first, table, words_of

PERMISSION: Final = PERMISSIONS[OperationKind.SIMULATE]
HOURS: Final = (
    (1, _lazy("last hour")),
    (6, _lazy("last 6 hours")),
    (24, _lazy("last 24 hours")),
    (168, _lazy("last 7 days")),
)
RUNS: Final = {"actual": _lazy("happened"), "predicted": _lazy("with the changes")}
#: Length of the longest bar of the picture.
WIDTH: Final = 300
TABLES: Final = ("limit", "queue", "band", "type", "user")


class Folded(forms.Textarea):
    """A text area that opens when it is needed."""

    template_name = "admin/queue_app/operation/folded.html"


class WhatIfForm(forms.Form):
    hours = forms.TypedChoiceField(label=_lazy("Recorded period"), choices=HOURS, coerce=int, initial=24)
    until = forms.SplitDateTimeField(
        label=_lazy("Until"),
        required=False,
        widget=forms.SplitDateTimeWidget(
            date_attrs=cast("Any", {"type": "date", "aria-label": _lazy("Date")}),
            date_format="%Y-%m-%d",
            time_attrs=cast("Any", {"type": "time", "aria-label": _lazy("Time")}),
            time_format="%H:%M",
        ),
        help_text=_lazy("Empty: until now."),
    )
    limit = forms.CharField(
        label=_lazy("Limit to change"), required=False, max_length=300,
        help_text=_lazy("Of a queue, a task type, a key, or of everything. Empty: none."),
    )  # fmt: skip
    max_concurrent = forms.IntegerField(
        label=_lazy("Tasks at the same time"), required=False, min_value=1, max_value=MAX_CAP,
        help_text=_lazy("The value to try. Empty: no limit."),
    )  # fmt: skip
    slots = forms.IntegerField(
        label=_lazy("More slots of workers"), required=False, min_value=1, max_value=MAX_SLOTS,
        help_text=_lazy("For all queues and task types. Empty: the recorded workers."),
    )  # fmt: skip
    scenario = forms.CharField(
        label=_lazy("Other changes"),
        required=False,
        max_length=100_000,
        widget=Folded({"rows": 12, "class": "vLargeTextField tq-json", "spellcheck": "false"}),
    )
    reason = ReasonField()
    field_order = ("limit", "max_concurrent", "slots", "hours", "until", "scenario", "reason")

    def __init__(self, data: Any, user: Any, **options: Any) -> None:
        super().__init__(data, **options)
        self.fields["limit"].widget = Picker(user, "everything", *LIMITS, patterns=LIMITS)
        self.fields["limit"].widget.attrs["autofocus"] = True

    def clean_limit(self) -> str:
        """Return the limit; refuse one of a queue or type that does not exist."""
        name: str = self.cleaned_data["limit"]
        scope, _colon, rest = name.partition(":")
        if kind := {"queue": "queue", "type": "task_type"}.get(scope):
            self.fields["limit"].widget.check(kind, rest)
        return name

    @property
    def changes(self) -> dict[str, Any]:
        """What the fields and the text change together."""
        values, found = self.cleaned_data, dict(self.cleaned_data["scenario"])
        if name := values["limit"]:
            known = found.get("limits", {})
            found["limits"] = known | {name: known.get(name, {}) | {"max_concurrent": values["max_concurrent"]}}
        if values["slots"]:
            found["workers"] = [*found.get("workers", []), {"slots": values["slots"]}]
        return found

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
        form = WhatIfForm(request.POST or None, request.user, initial=request.GET.dict())

        def act(values: dict[str, Any]) -> HttpResponse:
            until = values["until"] or timezone.now()
            operation = start_simulation(
                form.changes, until - timedelta(hours=values["hours"]), until,
                by=request.user.get_username(), reason=values["reason"],
            )  # fmt: skip
            self.audit(
                request, [operation], "What if.", action="simulate", after=operation.arguments, reason=operation.reason
            )
            return HttpResponseRedirect(self.url_of("change", operation.pk))

        title = _("What if?")
        page = self.own_page(request, "operation/what_if.html", title, form=form, submit=_("Simulate"))
        return self.act_by_form(request, form, act, "scenario" if request.POST.get("scenario") else "") or page

    def outcome(self, operation: Operation) -> SafeString | str:
        """Return the result of a simulation: words, calibration, tables and bars."""
        answer = operation.result or {}
        if "error" in answer or "unchanged" not in answer:
            return str(answer.get("error", "-"))
        tables = [(word(by), list(table(answer, by))) for by in TABLES]
        context = {
            "answer": answer,
            "notes": [translate(from_json(note)) for note in answer["notes"]],
            "words": [translate(each) for each in words_of(answer)] if "predicted" in answer else answer.get("words"),
            "calibration": translate(calibration_words(answer)),
            "is_off": not all(each["agrees"] for each in answer.get("calibration", {}).get("bands", {}).values()),
            "picture": list(_picture(answer)),
            "used": {name: f"{answer[name]['utilisation']:.0%}" for name in ("unchanged", "changed") if name in answer},
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
        seen = ("outcome",) if may_see and obj.finished_at else ()
        return (*seen, "status", "progress", "reason", "created", "finished")

    def page_context(self, request: HttpRequest, found: Operation) -> dict[str, Any]:
        may_apply = found.kind == OperationKind.SIMULATE and self.may_apply(request, found)
        return super().page_context(request, found) | {"may_apply": may_apply}


def _picture(answer: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each queue with a bar for what happened and one for the prediction: half, and 95 %, wait so long."""
    waits = {name: answer[name]["waits"].get("queue", {}) for name in RUNS if name in answer}
    longest = max((wait["p95"] for of_run in waits.values() for wait in of_run.values()), default=0.0) or 1.0
    for queue, _one in changed_first(answer, {queue: True for of_run in waits.values() for queue in of_run}):
        bars = []
        for name, of_run in waits.items():
            if (wait := of_run.get(queue)) and wait["tasks"] > wait["starved"]:
                half, most = (round(WIDTH * wait[share] / longest, 1) for share in ("p50", "p95"))
                words = _("half wait %(half)s, 95 %% %(most)s") % {
                    name: translate(span(wait[share])) for name, share in (("half", "p50"), ("most", "p95"))
                }
                bars.append({"name": name, "label": RUNS[name], "half": half, "most": most, "words": words})
        if bars:
            yield queue, bars
