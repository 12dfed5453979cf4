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
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app import registry
from queue_app.admin.forms import JSONText, ReasonField, read_json
from queue_app.admin.pickers import Picker
from queue_app.admin.task_detail import pretty
from queue_app.core.priorities import Band
from queue_app.core.redaction import MASK
from queue_app.core.signatures import hints_of, taken_by
from queue_app.encryption.displayed import argument_names

_PLAIN: Final = {str: _lazy("text"), int: _lazy("whole number"), float: _lazy("number")}
_MANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
MISSING: Final = object()
JSON_AREA: Final = {"class": "vLargeTextField tq-json", "rows": 8, "spellcheck": "false"}


class Argument:
    """One parameter: its name, and the field for the values that it takes."""

    def __init__(self, name: str, hint: Any, *, has_default: bool, value: Any = MISSING) -> None:
        self.name, self.has_default, self.value = name, has_default, value
        options = [each for each in get_args(hint) if each is not NoneType] if _is_union(hint) else [hint]
        self.may_be_none = hint is None or (_is_union(hint) and NoneType in get_args(hint))
        self.kind: Any = options[0] if len(options) == 1 else None
        choices: tuple[Any, ...] = get_args(self.kind) if get_origin(self.kind) is Literal else ()
        self.choices = (True, False) if self.kind is bool else choices
        fits = value is MISSING or (value is None and self.may_be_none) or value in self.choices
        if not (fits or type(value) is self.kind in _PLAIN or (self.kind is float and type(value) is int)):
            self.kind, self.choices = None, ()  # JSON
        self.field = self._field()

    def _field(self) -> forms.Field:
        required = not (self.has_default or self.may_be_none)
        if self.choices:
            blank = [] if required and self.value is not MISSING else [("", "---------")]
            return forms.TypedChoiceField(
                choices=[*blank, *((self.shown(each), str(each)) for each in self.choices)], coerce=json.loads,
                required=required, empty_value=None, error_messages={"invalid_choice": _("Choose one of the values.")},
            )  # fmt: skip
        if self.kind in (int, float):
            return (forms.IntegerField if self.kind is int else forms.FloatField)(required=required)
        if self.kind is not str:
            return JSONText(required=required, widget=forms.Textarea(JSON_AREA | {"rows": 3}))
        is_long = "\n" in self.shown(self.value)
        line = forms.TextInput({"class": "vTextField", "autocomplete": "off"})
        area = forms.Textarea(JSON_AREA | {"rows": 3})
        return forms.CharField(required=False, strip=False, widget=area if is_long else line)

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

    def read(self, text: str) -> Any:
        """Return the value of a posted text; ``MISSING`` for the function's default. Raises ``ValidationError``."""
        text = text.replace("\r\n", "\n")
        if self.value is not MISSING and text == self.shown(self.value):
            return self.value
        return MISSING if self.has_default and not text.strip() else self.field.clean(text)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _positions(args: Any) -> list[Any]:
    """Return positional arguments, which a page shows by their names if it knows them."""
    return list(args.values()) if isinstance(args, Mapping) else list(args)


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
    positions = _positions(args)
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

    template_name = "admin/queue_app/includes/arguments.html"
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

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        wrong = {key: text for key, text in (attrs or {}).items() if key == "aria-invalid"}
        rows = []
        for each in self.arguments:
            field, text = f"{name}-{each.name}", str(value.get(each.name, ""))
            rows.append((field, each, each.field.widget.render(field, text, {"id": f"id_{field}"} | wrong)))
        return super().get_context(name, value, attrs) | {"rows": rows}


class ArgumentsField(forms.Field):
    """Arguments, each in its field, or all as JSON if ``arguments`` is ``None``: an object; with ``names``, a list."""

    def __init__(
        self, arguments: Sequence[Argument] | None, shown: Any, *, names: Sequence[str] | None = None, **options: Any
    ) -> None:
        widget = forms.Textarea(JSON_AREA) if arguments is None else ArgumentsWidget(arguments)
        super().__init__(required=False, widget=widget, initial=shown, **options)
        self.arguments, self.is_list, self.names = arguments, names is not None, names or ()

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
    by_position, by_name = arguments_of(task_type, args, parameters) or (None, None)
    positions = _positions(args)
    names = list(args) if isinstance(args, Mapping) else argument_names(task_type, len(positions))
    about, of_list = "", ""
    if MASK in json.dumps([positions, dict(parameters)]):
        about = _("To keep a hidden value, leave its mask (%(mask)s); to replace it, write a new value.")
        about %= {"mask": MASK}
    if by_name is None:
        of_list, about = (
            _("By their names in the function, in this order; or a JSON list."),
            f"{_('A JSON object.')} {about}",
        )
    return {
        "args": ArgumentsField(by_position, positions, names=names, label=_("Positional arguments"), help_text=of_list),
        "parameters": ArgumentsField(
            by_name, dict(parameters), label=_("Named arguments") if positions else _("Arguments"), help_text=about
        ),
    }


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


class NewTaskForm(forms.Form):
    """A new task: its type, its arguments, and where it waits."""

    task_type = forms.CharField(label=_lazy("Task type"), help_text=_lazy("Each of its arguments gets a field."))
    queue = forms.CharField(label=_lazy("Queue"), required=False, help_text=_lazy("Empty: that of the task type."))
    priority = forms.ChoiceField(
        label=_lazy("Priority"), required=False,
        choices=[("", _lazy("that of the task type")), *((band.label, _lazy(band.label)) for band in Band)],
    )  # fmt: skip
    reason = ReasonField()
    field_order = ("task_type", "parameters", "queue", "priority", "reason")

    def __init__(self, data: Any, initial: dict[str, str], user: Any) -> None:
        super().__init__(data, initial=initial)
        for name in ("task_type", "queue"):
            self.fields[name].widget = Picker(user, name)
        self.fields["task_type"].widget.attrs["data-tq-again"] = ""
        task_type = (data or initial).get("task_type", "")
        self.fields["parameters"] = argument_fields(task_type, [], {})["parameters"]
        self.order_fields(self.field_order)
