"""Forms of the admin: reasons of edits, options of operations, edited parameters."""

import json
import re
from collections.abc import Callable
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy, ngettext

from queue_app.admin.task_detail import pretty
from queue_app.dashboard import labels
from queue_app.exceptions import InvalidTaskData
from queue_app.models.operation import REASON_LENGTH
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.operations.request import OPTIONS, OperationOptions

# Short definitions of columns and permissions for the admin's pages.


def permission(codename: str) -> Callable[[Any, HttpRequest], bool]:
    """Return a method of a ``ModelAdmin`` that checks whether the user has a permission."""

    def has_permission(_admin: Any, request: HttpRequest) -> bool:
        return request.user.has_perm(f"queue_app.{codename}")

    return has_permission


def column(title: Any, text: Callable[[Any], Any], **options: Any) -> Callable[[Any, Any], Any]:
    """Return a column of a list (or a field of a page) that shows ``text(object)``; options as ``admin.display``."""

    def show(_admin: Any, found: Any) -> Any:
        return text(found)

    admin.display(show, description=title, **options)
    return show


def time_column(name: str, title: Any) -> Callable[[Any, Any], Any]:
    """Return a column for the time in the field ``name``, written in the viewer's time zone."""

    def text(found: Any) -> Any:
        value = getattr(found, name)
        return "-" if value is None else labels.exact_moment(value)

    return column(title, text, ordering=name)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 task`` or ``2 tasks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def with_number(text: Any, number: int, **more: Any) -> str:
    """Return a text that has a plural by ``n``, with the number as ``shown``."""
    return str(text % {"n": number, "shown": f"{number:,}", **more})


def two_lines(first: Any, second: Any) -> SafeString:
    """Return a cell with a small second line."""
    return format_html('{}<br><small class="tq-below">{}</small>', first, second)


def preformatted(text: str) -> SafeString:
    """Return a text with its line breaks and spaces."""
    return format_html('<pre class="tq-pre">{}</pre>', text)


def json_block(value: Any) -> SafeString | str:
    """Return a JSON value, indented; "none" for an empty one."""
    return preformatted(pretty(value)) if value else _("none")


HALF_PAIR: Final = _lazy("It contains half of a surrogate pair (\\ud800 to \\udfff), which is no text: remove it.")


class NamedFieldsForm(forms.ModelForm):  # type: ignore[type-arg]  # generic in the stubs only
    """A row that staff edit in a list. Django gives its fields no labels; screen readers need them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["aria-label"] = f"{self.instance}: {field.label}"


class ReasonField(forms.CharField):
    """The reason of an action, checked as the services check it."""

    def __init__(self, **options: Any) -> None:
        own: dict[str, Any] = {"label": _lazy("Reason"), "widget": forms.TextInput({"class": "vTextField"})}
        super().__init__(**{"required": False, "max_length": REASON_LENGTH} | own | options)

    def clean(self, value: Any) -> str:
        """Return the reason. Raises ``ValidationError``."""
        try:
            return check_reason(super().clean(value))
        except InvalidTaskData as error:
            raise forms.ValidationError(error.message) from None


def posted_reason(request: HttpRequest) -> str:
    """Return the reason in a posted form that has no other field. Raises ``InvalidTaskData``."""
    return check_reason(request.POST.get("reason", "").strip())


class ReasonForm(forms.ModelForm):  # type: ignore[type-arg]  # generic in the stubs only
    reason = ReasonField(
        label=_lazy("Reason of the change"), help_text=_lazy("Shown in the history and the audit log.")
    )


def operation_number(name: str, **options: Any) -> forms.Field:
    """Return the field of an option of operations, with the bounds that ``OPTIONS`` declares."""
    kind, lowest, highest, _about = OPTIONS[name]
    field: Any = forms.IntegerField if kind is int else forms.FloatField
    return field(min_value=lowest, max_value=highest, required=False, **options)  # type: ignore[no-any-return]


class StoredJSONField(forms.JSONField):
    """A field for JSON that PostgreSQL can store; what it cannot store is shown again as it was typed."""

    def to_python(self, value: Any) -> Any:
        """Return the value; refuse halves of surrogate pairs, which are no text."""
        found = super().to_python(value)
        if _has_surrogates(found):
            raise forms.ValidationError(HALF_PAIR)
        return found

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return the value to show again; Django would decode the escapes that the page cannot hold."""
        found = super().bound_data(data, initial)
        return InvalidJSONInput(data) if _has_surrogates(found) else found


#: Beginning of a unit, in English and German -> seconds; the first that fits counts.
_UNITS: Final = {"ms": 0.001, "min": 60, "st": 3600, "s": 1, "h": 3600, "d": 86_400, "t": 86_400, "w": 604_800}
_LENGTH: Final = re.compile(r"([0-9.,]+)\s*([a-z]+)")


class TimeField(forms.FloatField):
    """A number of seconds that people read and write with a unit, such as ``7 days``; without one it is in seconds."""

    widget = forms.TextInput

    def to_python(self, value: Any) -> Any:
        """Return the seconds. Raises ``ValidationError``."""
        found = _LENGTH.fullmatch(str(value or "").strip().lower())
        size = next((size for unit, size in _UNITS.items() if found and found[2].startswith(unit)), None)
        if found is None or size is None:
            return super().to_python(value)
        number = super().to_python(found[1].replace(",", "."))
        return None if number is None else round(number * size, 6)

    def prepare_value(self, value: Any) -> Any:
        """Return a stored value in the largest unit in which it is whole."""
        if not isinstance(value, int | float):
            return value
        if value and value % 86_400 == 0:
            return ngettext("%(n)s day", "%(n)s days", int(value // 86_400)) % {"n": int(value // 86_400)}
        unit = next((unit for unit in ("h", "min") if value and value % _UNITS[unit] == 0), "s")
        return f"{value / _UNITS[unit]:.15g} {unit}"

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether what was typed is another time."""
        try:
            return bool(self.to_python(data) != initial)
        except forms.ValidationError:
            return True


def _has_surrogates(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


class ConfirmForm(forms.Form):
    """The reason of an action that is wide or cannot be undone."""

    reason = ReasonField(widget=forms.TextInput({"class": "vTextField", "autofocus": True}), required=True)


class OperationForm(ConfirmForm):
    """How an operation works: which tasks first, how many, how fast."""

    limit = operation_number("limit", label=_lazy("Only the first"), help_text=_lazy("Empty: all."))
    order = forms.ChoiceField(
        choices=[("oldest", _lazy("oldest first")), ("newest", _lazy("newest first"))],
        required=False, label=_lazy("Order"),
    )  # fmt: skip
    rate = operation_number("rate", label=_lazy("Per second"), help_text=_lazy("Empty: no limit."))
    field_order = ("limit", "order", "rate", "reason")

    def options_of[O: OperationOptions](self, kind: type[O]) -> O:
        """Return the options in the form."""
        given = {name: self.cleaned_data[name] for name in ("limit", "order", "rate")}
        return kind(**{name: value for name, value in given.items() if value not in (None, "")})


def read_json(text: str) -> Any:
    """Return the value of a JSON text; raise ``ValidationError``."""
    try:
        found = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise forms.ValidationError(_("This is not JSON: %(error)s") % {"error": error}) from None
    if _has_surrogates(found):
        raise forms.ValidationError(HALF_PAIR)
    return found


class JSONText(forms.CharField):
    """A field for JSON of any kind, which keeps a wrong text as it was typed; empty: null."""

    def clean(self, value: Any) -> Any:
        """Return the value. Raises ``ValidationError``."""
        text = super().clean(value)
        return read_json(text) if text else None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found
