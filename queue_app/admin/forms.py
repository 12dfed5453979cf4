"""Forms of the admin: reasons of edits, actions on dead letters, edited parameters."""

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ActionForm
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app.admin.task_detail import pretty
from queue_app.dashboard import labels
from queue_app.exceptions import InvalidTaskData
from queue_app.models.operation import REASON_LENGTH
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.operations.request import MAX_RATE, MIN_RATE, ReplayOptions, check_options

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
        return None if value is None else labels.exact_moment(value)

    return column(title, text, ordering=name)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 task`` or ``2 tasks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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

if TYPE_CHECKING:
    PlainModelForm = forms.ModelForm[Any]
else:
    PlainModelForm = forms.ModelForm


class NamedFieldsForm(PlainModelForm):
    """A row that staff edit in a list. Django gives its fields no labels; screen readers need them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["aria-label"] = f"{self.instance}: {field.label}"


class ReasonField(forms.CharField):
    """The reason of an action, checked as the services check it."""

    def __init__(self, **options: Any) -> None:
        own: dict[str, Any] = {"label": _lazy("Reason"), "widget": forms.TextInput({"class": "vTextField"})}
        super().__init__(required=False, max_length=REASON_LENGTH, **own | options)

    def clean(self, value: Any) -> str:
        """Return the reason. Raises ``ValidationError``."""
        try:
            return check_reason(super().clean(value))
        except InvalidTaskData as error:
            raise forms.ValidationError(error.message) from None


def posted_reason(request: HttpRequest) -> str:
    """Return the reason in a posted form that has no other field. Raises ``InvalidTaskData``."""
    return check_reason(request.POST.get("reason", "").strip())


class ReasonForm(PlainModelForm):
    reason = ReasonField(
        label=_lazy("Reason of the change"), help_text=_lazy("Shown in the history and the audit log.")
    )


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


def _has_surrogates(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


class DeadLetterActionForm(ActionForm):
    """The list's actions with a reason, and a rate for replays.

    ``read_action`` reports invalid values: Django answers an invalid form of this kind with
    "No action selected".
    """

    reason = forms.CharField(
        label=_lazy("Reason:"), required=False, widget=forms.TextInput({"maxlength": REASON_LENGTH})
    )
    rate = forms.CharField(
        label=_lazy("Replays per second:"),
        required=False,
        widget=forms.NumberInput({"min": MIN_RATE, "max": MAX_RATE, "step": "any"}),
    )


def read_action(data: Mapping[str, Any]) -> tuple[str, ReplayOptions]:
    """Return the reason and the replay options of a posted action. Raises ``InvalidTaskData``."""
    reason, rate = str(data.get("reason", "")).strip(), str(data.get("rate", "")).strip()
    check_reason(reason)
    try:
        options = ReplayOptions(rate=float(rate) if rate else None)
    except ValueError:
        options = ReplayOptions(rate=math.nan)
    check_options(options)
    return reason, options


def read_json(text: str) -> Any:
    """Return the value of a JSON text; raise ``ValidationError``."""
    try:
        found = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise forms.ValidationError(_("This is not JSON: %(error)s") % {"error": error}) from None
    if _has_surrogates(found):
        raise forms.ValidationError(HALF_PAIR)
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found
