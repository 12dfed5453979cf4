"""Which tasks a request means: the same words in a query string and in the body of an action on many."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from queue_app import conf
from queue_app.api.fields import Reader, json_object, task_id, text
from queue_app.core.parsing import timestamp
from queue_app.core.payload import MAX_SAFE_INTEGER, dump_json
from queue_app.core.priorities import Band, parse_band
from queue_app.core.states import PENDING_NAME, Status
from queue_app.exceptions import InvalidTaskData
from queue_app.services.enqueue.validate import check_queue_name
from queue_app.services.read.task_filter import TIMES, TaskFilter, seeks_hidden

MAX_CHOICES: Final = 20
MAX_PARAMETERS: Final = 5
MAX_PATH: Final = 5
ERROR_LENGTH: Final = 200
STATUS_NAMES: Final = (PENDING_NAME, *(status.value for status in Status))
PARAMETERS_PREFIX: Final = "parameters__"
TIME_NAMES: Final = tuple(f"{time}_{suffix}" for time in TIMES for suffix in ("after", "before"))
#: May be given more than once, or with commas: any of them (of capabilities: all).
SEVERAL: Final = ("status", "priority", "effective_priority", "queue", "task_type", "capability")
NAMES: Final = (*SEVERAL, "user", "worker", "error", *TIME_NAMES)
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,20})?", re.ASCII)
_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}


def read_filter(reader: Reader, values: Mapping[str, list[str]]) -> TaskFilter:
    """Return the filter that named lists of strings stand for; the reader, which holds the same, notes the errors."""
    times: dict[str, Any] = {name: reader.optional(name, once(timestamp)) for name in TIME_NAMES}
    task_types = reader.optional("task_type", several(text)) or ()
    return TaskFilter(
        statuses=reader.optional("status", several(_status)) or (),
        bands=reader.optional("priority", several(_band)) or (),
        effective_bands=reader.optional("effective_priority", several(_band)) or (),
        queues=reader.optional("queue", several(_queue)) or (),
        task_types=task_types,
        capabilities=reader.optional("capability", several(_queue)) or (),
        user=reader.optional("user", once(text)),
        worker_id=reader.optional("worker", once(task_id)),
        error=reader.optional("error", once(_error)),
        parameters=_parameters(reader, [name for name in values if name.startswith(PARAMETERS_PREFIX)], task_types),
        **times,
    )


def read_body_filter(given: Any) -> TaskFilter:
    """Return the filter in a body: strings or lists of strings, and ``parameters`` as an object.

    Raises every error in it at once.
    """
    data = json_object(given, "filter")
    values: dict[str, Any] = {}
    reader = Reader(values)
    for name, value in data.items():
        if name == "parameters" or value is None:
            continue
        items = value if isinstance(value, list) else [value]
        if all(isinstance(item, str) for item in items) and items:
            values[name] = items
        else:
            reader.note(InvalidTaskData(f"filter.{name}"[:100], f"{name!r:.80} must be a string or a list of strings.",
                                        code="string_expected"))  # fmt: skip
    reader.refuse_others(NAMES)
    wanted = read_filter(reader, {})
    groups: list[list[dict[str, Any]]] = []
    if data.get("parameters") is not None:
        try:
            contained = json_object(data["parameters"], "filter.parameters")
            dump_json(contained, field="filter.parameters", limits=conf.get().payload)
            _check_shown(contained, wanted.task_types, "filter.parameters")
            groups = [[contained]]
        except InvalidTaskData as error:
            reader.note(error)
    reader.finish()
    return replace(wanted, parameters=groups)


def _parameters(reader: Reader, names: list[str], task_types: Sequence[str]) -> list[list[dict[str, Any]]]:
    groups: list[list[dict[str, Any]]] = []
    if len(names) > MAX_PARAMETERS:
        reader.note(
            InvalidTaskData(
                "parameters", f"At most {MAX_PARAMETERS} parameters at once.", code="too_many", limit=MAX_PARAMETERS
            )
        )
        return groups
    for name in names:
        path = name.removeprefix(PARAMETERS_PREFIX).split("__")
        if len(path) > MAX_PATH or not all(path):
            reader.note(
                InvalidTaskData(
                    name, f"Name one to {MAX_PATH} keys, like parameters__customer__id=7.", code="unknown_parameter"
                )
            )
        elif (found := reader.optional(name, once(_parameter))) is not None:
            groups.append([_nested(path, value) for value in found])
            try:
                _check_shown(groups[-1][0], task_types, name)
            except InvalidTaskData as error:
                reader.note(error)
    return groups


def _check_shown(contained: dict[str, Any], task_types: Sequence[str], name: str) -> None:
    """Refuse to look for what nobody is shown, else a secret could be found by trying."""
    if seeks_hidden(contained, task_types):
        raise InvalidTaskData(
            name, f"{name:.80}: this value is hidden, so it cannot be searched for.", code="sensitive_parameter"
        )


def _parameter(value: str, name: str) -> list[Any]:
    """Return what a value in a query string may stand for: a string, and what it is as JSON."""
    if "\x00" in value or not all(map(_encodable, (value, name))) or "\x00" in name:
        raise InvalidTaskData(name, "Names and values must be text without NUL.", code="invalid_characters")
    found: list[Any] = [value]
    if value in _WORDS:
        found.append(_WORDS[value])
    elif _NUMBER.fullmatch(value):
        number = json.loads(value)
        if math.isfinite(number) and abs(number) <= MAX_SAFE_INTEGER:
            found.append(number)
    return found


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested


def _status(value: str, name: str) -> str:
    if value not in STATUS_NAMES:
        raise InvalidTaskData(
            name, f"{value!r:.60} is not a status; use {', '.join(STATUS_NAMES)}.", code="unknown_status"
        )
    return value


def _band(value: str, name: str) -> Band:
    return parse_band(text(value, name), field=name)


def _queue(value: str, name: str) -> str:
    try:
        return check_queue_name(value)
    except InvalidTaskData as error:
        raise InvalidTaskData(name, error.message, code=error.code, limit=error.limit) from None


def _error(value: str, name: str) -> str:
    if len(text(value, name)) > ERROR_LENGTH:
        raise InvalidTaskData(
            name, f"{name} takes at most {ERROR_LENGTH} characters.", code="too_long", limit=ERROR_LENGTH
        )
    return value


def once[T](check: Callable[[str, str], T]) -> Callable[[Any, str], T]:
    """Return ``check`` for a parameter that may be given once."""

    def check_only(values: list[str], name: str) -> T:
        if len(values) != 1:
            raise InvalidTaskData(name, f"{name:.80} may be given once.", code="repeated_parameter")
        return check(values[0], name)

    return check_only


def several[T](check: Callable[[str, str], T]) -> Callable[[Any, str], list[T]]:
    """Return ``check`` for a parameter that may be given several times, or with commas."""

    def check_all(values: list[str], name: str) -> list[T]:
        parts = [part for value in values for part in value.split(",")]
        if len(parts) > MAX_CHOICES:
            raise InvalidTaskData(
                name, f"{name} takes at most {MAX_CHOICES} values.", code="too_many", limit=MAX_CHOICES
            )
        return [check(part, name) for part in parts]

    return check_all
