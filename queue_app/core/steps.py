"""Steps and signals of a task: what an attempt has done or waits for, and later attempts need not do again."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from queue_app.exceptions import InvalidTaskData, suggestion

# The declared payload of a signal: its fields, as a form shows them and as a check requires them.
#
# A declaration is ``{"approved": bool, "size": ["S", "L"], "note": {"type": "string", "required": False}}``. Its full
# form, which is stored, has for each field the words of JSON Schema ``type``, ``enum``, ``title``, ``description``, and
# besides ``required``.

type Fields = dict[str, dict[str, Any]]

MAX_FIELDS: Final = 30
MAX_TEXT: Final = 2_000  # characters
#: Name of a type -> the Python types of its values.
TYPES: Final[dict[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
}
_SHORT: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}
_WORDS: Final = frozenset({"type", "enum", "title", "description", "required"})


def read_schema(schema: Any) -> Fields | None:
    """Return the full form of a declaration; raise ``ValueError`` if it is none."""
    if schema is None:
        return None
    if not isinstance(schema, Mapping) or not 0 < len(schema) <= MAX_FIELDS:
        raise ValueError(
            f'schema must name 1 to {MAX_FIELDS} fields, such as {{"approved": bool}}, not {schema!r:.100}.'
        )
    return {str(name): _read_field(name, given) for name, given in schema.items()}


def read_schemas(signals: Any) -> dict[str, Fields | None]:
    """Return the full form of the declarations of a task, {signal: its fields}; raise ``ValueError``."""
    if not isinstance(signals, Mapping) or not all(isinstance(name, str) and name for name in signals):
        raise ValueError(
            f'signals must be {{name: fields}}, such as {{"approved": {{"ok": bool}}}}, not {signals!r:.100}.'
        )
    return {name: read_schema(fields) for name, fields in signals.items()}


def check_declared(signals: Mapping[str, Fields | None] | None, name: str, payload: Any) -> None:
    """Raise ``InvalidTaskData`` unless a task that declares its signals takes this one."""
    if signals is None:
        return
    if name not in signals:
        taken = ", ".join(signals) or "none"
        raise InvalidTaskData("name", f"The task takes no signal {name!r:.60}. It takes {taken}.")
    check_payload(signals[name], payload)


def _read_field(name: Any, given: Any) -> dict[str, Any]:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"A field of a schema needs a name such as approved, not {name!r:.60}.")
    if isinstance(given, type) and given in _SHORT:
        return {"type": _SHORT[given]}
    if isinstance(given, list | tuple):
        given = {"enum": list(given)}
    if not isinstance(given, Mapping) or not given.keys() <= _WORDS:
        raise ValueError(
            f"The field {name!r} must be bool, int, float, str, a list of choices or a dictionary with"
            f" {', '.join(sorted(_WORDS))}, not {given!r:.100}."
        )
    field = {"type": "string", **given}
    choices = field.get("enum", ["-"])
    if field["type"] not in TYPES:
        raise ValueError(
            f"The type of the field {name!r} must be one of {', '.join(TYPES)}, not {field['type']!r:.60}."
        )
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) and each for each in choices):
        raise ValueError(f"The choices of the field {name!r} must be a list of texts, not {choices!r:.60}.")
    if "enum" in field and field["type"] != "string":
        raise ValueError(f"The field {name!r} has choices, so its type is string.")
    return field


def listed(fields: Fields) -> list[dict[str, Any]]:
    """Return the fields as they are stored: as a list, because PostgreSQL does not keep the order of an object."""
    return [{"name": name, **field} for name, field in fields.items()]


def fields_of(stored: list[dict[str, Any]]) -> Fields:
    """Return the fields of a stored list."""
    return {field["name"]: {word: value for word, value in field.items() if word != "name"} for field in stored}


def check_payload(fields: Fields | None, payload: Any) -> None:
    """Raise ``InvalidTaskData`` unless the payload has the declared fields; without a declaration, all fit."""
    if fields is None:
        return
    if not isinstance(payload, dict):
        raise _invalid(f"payload must be an object with {', '.join(fields)}.")
    for name in payload:
        if name not in fields:
            hint = suggestion(str(name), fields) or f" It has {', '.join(fields)}."
            raise _invalid(f"payload has no field {str(name)!r:.60}.{hint}")
    for name, field in fields.items():
        if payload.get(name) is None:
            if field.get("required", True):
                raise _invalid(f"payload lacks the field {name!r}.")
            continue
        value = payload[name]
        if type(value) not in TYPES[field["type"]]:
            raise _invalid(f"{name} must be of the type {field['type']}, not {value!r:.60}.")
        if "enum" in field and value not in field["enum"]:
            raise _invalid(f"{name} must be one of {', '.join(field['enum'])}, not {value!r:.60}.")


def _invalid(message: str) -> InvalidTaskData:
    return InvalidTaskData("payload", message, code="invalid_payload")


#: Maximum characters of a step's name.
STEP_NAME_LENGTH: Final = 200


class StepKind(StrEnum):
    """What a task did in a step."""

    STEP = "step"  # called a function
    SLEEP = "sleep"
    SIGNAL = "signal"  # waited for a signal, or still waits
    TIMEOUT = "timeout"  # waited for a signal that did not arrive in time


class Step(NamedTuple):
    """One step, as it is stored."""

    position: int  # 1 for the first step of the task
    name: str
    kind: str
    value: str | None = None  # JSON text; None for null
    until: datetime | None = None  # end of a sleep, or of the time to wait
    signal: str = ""  # name of the signal
    is_done: bool = True  # false while the task waits for the signal


_ADVICE: Final = (
    "While tasks of a type run, keep the names and the order of its steps: restore the former code and replay the task,"
    " or register the new code as another task type."
)


def changed(position: int, stored: str, now: str | None) -> str:
    """Say that an earlier attempt stored another step at a position (``now`` is ``None``: none is called there)."""
    instead = "the function ended without it" if now is None else f"it is {now!r}"
    return f"Step {position} of this task was {stored!r} when an earlier attempt stored it; now {instead}. {_ADVICE}"


def moved(name: str, before: int, now: int) -> str:
    """Say that an earlier attempt stored a step at another position."""
    return f"{name!r} was step {before} of this task when an earlier attempt stored it; now it is step {now}. {_ADVICE}"


def repeated(name: str) -> str:
    """Say that two steps have the same name, and what to do."""
    return f"The task has called the step {name!r} already. Give each step a name of its own, such as '{name} 2'."
