"""The forms of a schedule, its preview, and its backfill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django import forms
from django.contrib.admin.widgets import AdminSplitDateTime
from django.forms import modelform_factory
from django.utils import timezone
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.forms import ReasonField, ReasonForm
from queue_app.core.masking import unmask
from queue_app.core.recurrence import Recurrence
from queue_app.dashboard import schedules as pages
from queue_app.dashboard.translation import translate
from queue_app.displayed_payload import displayed_payload
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Schedule
from queue_app.models.columns import NAME_LENGTH
from queue_app.services.enqueue.validate import check_text
from queue_app.services.operations.request import MAX_RATE, MIN_RATE
from queue_app.services.schedules import edit

PAYLOAD: Final = ("args", "parameters")
_SPLIT: Final = dict.fromkeys(("anchor", "starts_at", "ends_at"), forms.SplitDateTimeField)

CHANGED: Final = _lazy(
    "The schedule was changed meanwhile, by someone else or by a program. Nothing of yours was stored: open the page"
    " again, and repeat your change."
)

WhenForm = modelform_factory(
    Schedule,
    fields=[name for name in edit.WHEN if name != "jitter"],
    field_classes=_SPLIT,
    widgets=dict.fromkeys(_SPLIT, AdminSplitDateTime),
)


class ScheduleForm(ReasonForm):
    """A schedule; what is left empty of the task's options is that of the registered task."""

    #: The version of the schedule that the form showed.
    version = forms.CharField(label="", required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            self.initial["version"] = edit.version_of(self.instance)
        for name in edit.TASK_OPTIONS:
            if name in self.fields:
                self.fields[name].required = False
        if self.instance.pk is None:
            self.initial.setdefault("zone", timezone.get_default_timezone_name())
            self.initial["priority"] = self.initial["weight"] = None
        elif "parameters" in self.fields:
            _secrets, shown_args, parameters = displayed_payload(
                self.instance.task_type, self.instance, hide_encrypted=True
            )
            self.shown = {"args": shown_args, "parameters": parameters}
            self.initial.update(self.shown)
        if "task_type" in self.fields:
            self.fields["task_type"].widget.attrs["list"] = "tq-task-types"

    def clean(self) -> dict[str, Any]:
        """Check the schedule as the service does, so that the form can show what is wrong."""
        values: dict[str, Any] = super().clean() or {}
        if self.instance.pk is not None and values.get("version") != edit.version_of(self.instance):
            self.add_error(None, CHANGED)
        if self.errors:
            return values
        given = {name: values[name] for name in edit.FIELDS if name in values}
        now = edit.from_json(edit.values_of(self.instance)) if self.instance.pk else {}
        try:
            if "name" in values:
                check_text(values["name"], "name", NAME_LENGTH)
            for name in PAYLOAD if self.instance.pk else ():
                if name in given:
                    given[name] = unmask(given[name], self.shown[name], now[name], name)
            empty = {name for name in edit.TASK_OPTIONS if given.get(name) in (None, "", [])}
            known = {name: value for name, value in (now | given).items() if name not in empty}
            filled = edit.with_options(known)
            edit.check_values(filled, is_new=not self.instance.pk or any(now[n] != filled[n] for n in edit.WHEN))
        except InvalidTaskData as error:
            self.add_error(error.field if error.field in self.fields else None, error.message)
            return values
        return values | {name: filled[name] for name in given if name in filled}


class BackfillForm(forms.Form):
    start = forms.SplitDateTimeField(label=_lazy("From"), widget=AdminSplitDateTime)
    end = forms.SplitDateTimeField(label=_lazy("Until, not included"), widget=AdminSplitDateTime)
    rate = forms.FloatField(
        label=_lazy("Tasks per second"), required=False, min_value=MIN_RATE, max_value=MAX_RATE,
        help_text=_lazy("Empty: as fast as possible."),
    )  # fmt: skip
    reason = ReasonField()


def preview(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the next ticks of a posted form in words and as a list, or what is wrong with it."""
    form = WhenForm(data)
    form.full_clean()
    values = form.cleaned_data
    try:
        recurrence = Recurrence(
            cron=values.get("cron") or "",
            every=values.get("every"),
            anchor=values.get("anchor"),
            instants=tuple(edit.times(values.get("instants") or [])),
            zone=values.get("zone") or "",
            starts_at=values.get("starts_at"),
            ends_at=values.get("ends_at"),
        )
        recurrence.check()
    except InvalidTaskData as error:
        return {"problem": error.message}
    return {"words": translate(recurrence.words), "coming": pages.coming(recurrence, timezone.now())}
