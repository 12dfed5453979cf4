"""The arguments of a task as fields of a form: one for each parameter of its function, by its annotation.

A parameter whose annotation or value fits no field is JSON in a field of its own. Functions that no code knows, and
those that take any names, keep one field of JSON for all. A field that is posted as it was shown keeps its value
exactly, so masks, references and defaults stay.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from django import forms
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app import registry
from queue_app.admin.forms import ReasonField, read_json
from queue_app.admin.task_detail import pretty
from queue_app.core.redaction import MASK
from queue_app.core.signatures import hints_of, taken_by
from queue_app.encryption.displayed import argument_names

_TEXT: Final = {"class": "vTextField", "autocomplete": "off"}
_PLAIN: Final = {str: _lazy("text"), int: _lazy("whole number"), float: _lazy("number")}
_MANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
MISSING: Final = object()
JSON_AREA: Final = {"class": "vLargeTextField tq-json", "rows": 8, "spellcheck": "false"}


class Argument:
    """One parameter: its name, the values that it takes, and how a form shows it."""

    def __init__(self, name: str, hint: Any, *, has_default: bool, value: Any = MISSING) -> None:
        self.name, self.has_default, self.value = name, has_default, value
        options = [each for each in get_args(hint) if each is not NoneType] if _is_union(hint) else [hint]
        self.may_be_none = hint is None or (_is_union(hint) and NoneType in get_args(hint))
        self.kind: Any = options[0] if len(options) == 1 else None
        self.choices: tuple[Any, ...] = (True, False) if self.kind is bool else ()
        if get_origin(self.kind) is Literal:
            self.choices = get_args(self.kind)
        fits = value is MISSING or (value is None and self.may_be_none)
        if not (fits or value in self.choices or self._is_plain(value)):
            self.kind, self.choices = None, ()  # JSON

    def _is_plain(self, value: Any) -> bool:
        return self.kind in _PLAIN and (type(value) is self.kind or (self.kind is float and type(value) is int))

    @property
    def label(self) -> str:
        """What the field takes."""
        if self.choices:
            return ""
        kind = str(_PLAIN.get(self.kind, "JSON"))
        return _("%(kind)s; empty: the function's default") % {"kind": kind} if self.has_default else kind

    def shown(self, value: Any) -> str:
        """Return a value as the field shows it."""
        if value is MISSING or (value is None and self.may_be_none and self.kind is not None):
            return ""
        return value if self.kind is str and isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def render(self, name: str, text: str, *, is_wrong: bool) -> SafeString:
        attrs = {"id": f"id_{name}"} | ({"aria-invalid": "true"} if is_wrong else {})
        if self.choices:
            known = [(self.shown(each), str(each)) for each in self.choices]
            blank = [("", "---------")] if self.has_default or self.may_be_none or not text else []
            return forms.Select(attrs, [*blank, *known]).render(name, text)
        if self.kind in _PLAIN and self.kind is not str:
            return forms.NumberInput(attrs | {"step": "any" if self.kind is float else "1"}).render(name, text)
        if self.kind is str and "\n" not in text:
            return forms.TextInput(_TEXT | attrs).render(name, text)
        return forms.Textarea(JSON_AREA | attrs | {"rows": 3}).render(name, text)

    def read(self, text: str) -> Any:
        """Return the value of a posted text; ``MISSING`` for the function's default. Raises ``ValidationError``."""
        text = text.replace("\r\n", "\n")
        if text == self.shown(self.value) and self.value is not MISSING:
            return self.value
        if not text.strip() and not (self.kind is str and not self.has_default):
            if self.has_default:
                return MISSING
            if self.may_be_none:
                return None
            raise forms.ValidationError(forms.Field.default_error_messages["required"])
        if self.kind is str and not self.choices:
            return text
        try:
            value = read_json(text.strip())
        except forms.ValidationError:
            if self.kind not in _PLAIN:
                raise
            value = None
        if self.choices and value not in self.choices:
            raise forms.ValidationError(_("Choose one of the values."))
        if self.kind in _PLAIN and not self._is_plain(value):
            raise forms.ValidationError(_("Enter a %(kind)s.") % {"kind": _PLAIN[self.kind]})
        return value


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def arguments_of(
    task_type: str, args: Any, parameters: Mapping[str, Any]
) -> tuple[list[Argument], list[Argument]] | None:
    """Return what a function takes as the positional arguments and the parameters of a call; ``None``: not known."""
    task = registry.find(task_type) if task_type else None
    taken = taken_by(task.func, takes_context=task.takes_context) if task else None
    if task is None or taken is None or any(each.kind in _MANY for each in taken.signature.parameters.values()):
        return None
    hints = hints_of(task.func)
    takes = list(taken.signature.parameters.values())
    positions = list(args.values()) if isinstance(args, Mapping) else list(args)
    first, rest = takes[: len(positions)], takes[len(positions) :]
    is_positional = any(each.kind is each.POSITIONAL_ONLY for each in rest)
    if len(positions) > len(takes) or parameters.keys() - {each.name for each in rest} or is_positional:
        return None
    return (
        [Argument(each.name, hints.get(each.name), has_default=False, value=value)
         for each, value in zip(first, positions, strict=True)],
        [Argument(each.name, hints.get(each.name), has_default=each.default is not each.empty,
                  value=parameters.get(each.name, MISSING)) for each in rest],
    )  # fmt: skip


class Posted(dict[str, str]):
    """The texts of the fields as they were posted."""


class ArgumentsWidget(forms.Widget):
    """The fields of some arguments; a posted JSON text for all of them counts too."""

    use_fieldset = True

    def __init__(self, arguments: Sequence[Argument]) -> None:
        super().__init__()
        self.arguments = arguments

    def id_for_label(self, id_: str) -> str:
        return ""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        if name in data:
            return data[name]
        return Posted((each.name, data.get(f"{name}-{each.name}", "")) for each in self.arguments)

    def value_omitted_from_data(self, data: Any, files: Any, name: str) -> bool:
        return False

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        if not self.arguments:
            return format_html('<p class="tq-quiet">{}</p>', _("It takes none."))
        is_wrong = bool((attrs or {}).get("aria-invalid"))
        rows = []
        for each in self.arguments:
            field = each.render(f"{name}-{each.name}", str(value.get(each.name, "")), is_wrong=is_wrong)
            rows.append((f"id_{name}-{each.name}", each.name, field, each.label))
        line = '<div class="tq-argument"><label for="{}"><code>{}</code></label> {} <span class="help">{}</span></div>'
        return format_html_join("", line, rows)


class ArgumentsField(forms.Field):
    """Arguments as a list (``is_list``) or an object: each in its field; all as JSON if ``arguments`` is ``None``."""

    def __init__(
        self,
        arguments: Sequence[Argument] | None,
        shown: Any,
        *,
        is_list: bool,
        names: Sequence[str] = (),
        **options: Any,
    ) -> None:
        widget = forms.Textarea(JSON_AREA) if arguments is None else ArgumentsWidget(arguments)
        super().__init__(required=False, widget=widget, initial=shown, **options)
        self.arguments, self.is_list, self.names = arguments, is_list, names

    def prepare_value(self, value: Any) -> Any:
        """Return what the widget shows: what was posted, or the arguments as they are."""
        if isinstance(value, Posted) or (self.arguments is None and isinstance(value, str)):
            return value
        if self.arguments is not None:
            return {each.name: each.shown(each.value) for each in self.arguments}
        return pretty(dict(zip(self.names, value, strict=True)) if self.is_list and self.names else value)

    def clean(self, value: Any) -> Any:
        """Return the arguments. Raises ``ValidationError`` with the name of each wrong one."""
        if not isinstance(value, Posted):
            return self.initial if value is None else self._of_text(value)
        found, problems = {}, []
        for each in self.arguments or ():
            try:
                found[each.name] = each.read(value[each.name])
            except forms.ValidationError as error:
                problems += [f"{each.name}: {message}" for message in error.messages]
        if problems:
            raise forms.ValidationError(problems)
        known = {name: each for name, each in found.items() if each is not MISSING}
        return list(known.values()) if self.is_list else known

    def _of_text(self, text: str) -> Any:
        value = read_json(text) if text.strip() or not self.is_list else self.initial
        if self.is_list and isinstance(value, dict) and set(value) == set(self.names):
            return [value[name] for name in self.names]
        if self.is_list and not isinstance(value, list):
            names = ", ".join(self.names) or _("no names are known")
            raise forms.ValidationError(
                _("A JSON list, or an object with exactly these names: %(names)s.") % {"names": names}
            )
        if not self.is_list and not isinstance(value, dict):
            raise forms.ValidationError(_('Arguments are a JSON object, for example {"order": 17}.'))
        return value

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.clean(data) != self.initial)
        except forms.ValidationError:
            return True


def argument_fields(task_type: str, args: Any, parameters: Mapping[str, Any]) -> dict[str, ArgumentsField]:
    """Return the fields ``args`` and ``parameters`` of a call as it is shown; of a secret argument, with its mask."""
    found = arguments_of(task_type, args, parameters)
    positions = list(args.values()) if isinstance(args, Mapping) else list(args)
    names = list(args) if isinstance(args, Mapping) else argument_names(task_type, len(positions))
    keep = ""
    if MASK in json.dumps([positions, dict(parameters)]):
        keep = _("To keep a hidden value, leave its mask (%(mask)s); to replace it, write a new value.") % {
            "mask": MASK
        }
    by_position, by_name = found or (None, None)
    return {
        "args": ArgumentsField(
            by_position, positions, is_list=True, names=names, label=_("Positional arguments"),
            help_text="" if found else _("By their names in the function, in this order; or a JSON list."),
        ),
        "parameters": ArgumentsField(
            by_name, dict(parameters), is_list=False, label=_("Named arguments") if positions else _("Arguments"),
            help_text=keep if found else f"{_('A JSON object.')} {keep}",
        ),
    }  # fmt: skip


class EditForm(forms.Form):
    """A call of a task to edit, with a reason."""

    reason = ReasonField()
    field_order = ("args", "parameters", "reason")

    def __init__(self, data: Any, task_type: str, args: Any, parameters: Mapping[str, Any]) -> None:
        super().__init__(data)
        self.fields |= argument_fields(task_type, args, parameters)
        if not args:
            del self.fields["args"]
        elif self.fields["parameters"].arguments == []:  # type: ignore[attr-defined]
            del self.fields["parameters"]
        self.order_fields(self.field_order)
