"""The forms of dead letters: a reason and a pace for many, edited parameters for one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib.admin.helpers import ActionForm
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.core.masking import MASK
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.operations.request import MAX_RATE, MIN_RATE, ReplayOptions, check_options


class DeadLetterActionForm(ActionForm):
    """The list's actions with a reason, and a pace for a replay.

    What is wrong with them is said by ``read_action``: Django answers an invalid form of this
    kind with "No action selected".
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
    """Return the reason, and how to replay, of a posted action; raise ``InvalidTaskData``."""
    reason, rate = str(data.get("reason", "")).strip(), str(data.get("rate", "")).strip()
    check_reason(reason, REASON_LENGTH)
    try:
        options = ReplayOptions(rate=float(rate) if rate else None)
    except ValueError:
        options = ReplayOptions(rate=math.nan)
    check_options(options)
    return reason, options


class EditForm(forms.Form):
    """Parameters to replay with, and why."""

    parameters = forms.CharField(
        strip=False,
        widget=forms.Textarea(attrs={"class": "vLargeTextField tq-json", "rows": 16, "spellcheck": "false"}),
        label=_lazy("Parameters"),
        help_text=format_lazy(
            _lazy("A JSON object. Leave a masked value ({mask}) where it is to keep it, or write a new one there."),
            mask=MASK,
        ),
    )
    reason = forms.CharField(
        label=_lazy("Reason"), required=False, max_length=REASON_LENGTH, widget=forms.TextInput({"class": "vTextField"})
    )

    def clean_parameters(self) -> dict[str, Any]:
        """Return the JSON object; what of it may be stored is the service's decision."""
        try:
            value = json.loads(self.cleaned_data["parameters"], object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(_("This is not JSON: %(error)s") % {"error": error}) from None
        if not isinstance(value, dict):
            text = _("Parameters are a JSON object: names in quotes, with their values, in braces.")
            raise forms.ValidationError(text)
        return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found
