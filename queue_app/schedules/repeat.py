"""When a schedule repeats, as fields: "each day at 02:00". Other shapes are cron expressions, intervals or times."""

import re
from collections.abc import Mapping
from typing import Any, Final

from django import forms
from django.utils.dates import WEEKDAYS
from django.utils.translation import gettext_lazy as _lazy

OTHER: Final = ""
INTERVAL: Final = "interval"
LAST: Final = "L"
UNITS: Final = ((60, _lazy("minutes")), (3600, _lazy("hours")), (86_400, _lazy("days")))
DAYS: Final = tuple((str((day + 1) % 7), name) for day, name in WEEKDAYS.items())
#: {value: (words, cron expression, fields that it needs)}
SHAPES: Final = {
    "daily": (_lazy("every day"), "{minute} {hour} * * *", ("at",)),
    "weekdays": (_lazy("Monday to Friday"), "{minute} {hour} * * MON-FRI", ("at",)),
    "weekly": (_lazy("on days of the week"), "{minute} {hour} * * {days}", ("days", "at")),
    "monthly": (_lazy("on a day of the month"), "{minute} {hour} {day} * *", ("day", "at")),
    INTERVAL: (_lazy("again and again, after a time"), "", ("number", "unit")),
    OTHER: (_lazy("otherwise: by what More says"), "", ()),
}
FIELDS: Final = ("repeats", "days", "day", "at", "number", "unit")
#: What each shape needs, for the page's script: it hides the other fields.
_NEEDS: Final = ";".join(f"{name}:{','.join(needs)}" for name, (_words, _cron, needs) in SHAPES.items())
_CRON: Final = re.compile(
    r"(?P<minute>\d+) (?P<hour>\d+) (?P<day>\*|L|\d+) \* (?P<days>\*|MON-FRI|1-5|[0-6](?:,[0-6])*)"
)


class RepeatForm(forms.Form):
    """The frequent shapes of a recurrence; ``recurrence`` returns them as the columns of a schedule."""

    repeats = forms.ChoiceField(
        label=_lazy("Repeats"), required=False, choices=[(name, shape[0]) for name, shape in SHAPES.items()],
        widget=forms.Select({"data-tq-needs": _NEEDS}),
    )  # fmt: skip
    days = forms.MultipleChoiceField(
        label=_lazy("Days"), required=False, choices=DAYS, widget=forms.CheckboxSelectMultiple
    )
    day = forms.ChoiceField(
        label=_lazy("Day"), required=False,
        choices=[("", "---------"), *((str(day), str(day)) for day in range(1, 32)), (LAST, _lazy("the last one"))],
    )  # fmt: skip
    at = forms.TimeField(label=_lazy("At"), required=False, widget=forms.TimeInput({"type": "time"}, format="%H:%M"))
    number = forms.IntegerField(label=_lazy("Every"), required=False, min_value=1, max_value=100_000)
    unit = forms.TypedChoiceField(label=_lazy("Unit"), required=False, choices=UNITS, coerce=int)

    def recurrence(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the columns; ``None`` if others say when it repeats. Reports what is missing as errors of the form."""
        shape = values.get("repeats", OTHER)
        if shape == OTHER:
            return None
        for name in SHAPES[shape][2]:
            if values.get(name) in (None, "", []) and name not in self.errors:
                self.add_error(name, forms.Field.default_error_messages["required"])
        if self.errors.keys() & set(FIELDS):
            return None
        if shape == INTERVAL:
            return {"cron": "", "every": float(values["number"] * values["unit"]), "instants": []}
        at, days = values["at"], ",".join(values.get("days") or ())
        cron = SHAPES[shape][1].format(minute=at.minute, hour=at.hour, day=values.get("day"), days=days)
        return {"cron": cron, "every": None, "anchor": None, "instants": []}


def fields_of(cron: str, every: float | None) -> dict[str, Any]:
    """Return the values of the form for a recurrence."""
    if every and (unit := next((size for size, _name in reversed(UNITS) if every % size == 0), None)):
        return {"repeats": INTERVAL, "number": int(every // unit), "unit": unit}
    if (found := _CRON.fullmatch(cron.upper())) is None or "*" not in (found["day"], found["days"]):
        return {"repeats": OTHER}
    values: dict[str, Any] = {"at": f"{int(found['hour']):02}:{int(found['minute']):02}"}
    if found["day"] != "*":
        return values | {"repeats": "monthly", "day": found["day"]}
    if found["days"] in ("MON-FRI", "1-5"):
        return values | {"repeats": "weekdays"}
    if found["days"] != "*":
        return values | {"repeats": "weekly", "days": found["days"].split(",")}
    return values | {"repeats": "daily"}
