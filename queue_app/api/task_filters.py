"""The filter of tasks in a request: the same names in a query string and in the body of a bulk action."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from queue_app import conf
from queue_app.api.fields import Reader, choice, json_object, once, several, text, uuid_of
from queue_app.core.parsing import timestamp
from queue_app.core.payload import MAX_SAFE_INTEGER, dump_json
from queue_app.core.priorities import Band, parse_band
from queue_app.core.states import PENDING_NAME, Status
from queue_app.exceptions import InvalidTaskData
from queue_app.services.enqueue.validate import check_queue_name
from queue_app.services.read.task_filter import TIMES, TaskFilter, seeks_hidden

MAX_PARAMETERS: Final = 5
MAX_PATH: Final = 5
ERROR_LENGTH: Final = 200
STATUS_NAMES: Final = (PENDING_NAME, *(status.value for status in Status))
PARAMETERS_PREFIX: Final = "parameters__"
TIME_NAMES: Final = tuple(f"{time}_{suffix}" for time in TIMES for suffix in ("after", "before"))
#: Filters that take several values: a task must match one of them, or all in the case of capabilities.
SEVERAL: Final = ("status", "priority", "effective_priority", "queue", "task_type", "capability")
NAMES: Final = (*SEVERAL, "user", "worker", "error", *TIME_NAMES)
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,20})?", re.ASCII)
_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}


def read_filter(reader: Reader, names: Iterable[str]) -> TaskFilter:
    """Return the filter that the reader holds as lists of strings; ``names`` are the names in the request."""
    times: dict[str, Any] = {name: reader.optional(name, once(timestamp)) for name in TIME_NAMES}
    task_types = reader.optional("task_type", several(text)) or ()
    return TaskFilter(
        statuses=reader.optional("status", several(choice(STATUS_NAMES, "unknown_status"))) or (),
        bands=reader.optional("priority", several(_band)) or (),
        effective_bands=reader.optional("effective_priority", several(_band)) or (),
        queues=reader.optional("queue", several(_queue)) or (),
        task_types=task_types,
        capabilities=reader.optional("capability", several(_queue)) or (),
        user=reader.optional("user", once(text)),
        worker_id=reader.optional("worker", once(uuid_of)),
        error=reader.optional("error", once(_error)),
        parameters=_parameters(reader, [name for name in names if name.startswith(PARAMETERS_PREFIX)], task_types),
        **times,
    )


def read_body_filter(given: Any) -> TaskFilter:
    """Return the filter in a body: strings, lists of strings, and ``parameters``; raise all errors together."""
    data = {name: value for name, value in json_object(given, "filter").items() if value is not None}
    parameters = data.pop("parameters", None)
    values = {name: value if isinstance(value, list) else [value] for name, value in data.items()}
    bad = [name for name, items in values.items() if not (items and all(isinstance(item, str) for item in items))]
    groups: list[list[dict[str, Any]]] = []
    with Reader({name: items for name, items in values.items() if name not in bad}, NAMES) as reader:
        for name in bad:
            message = f"{name!r:.80} must be a string or a list of strings."
            reader.add_error(InvalidTaskData(f"filter.{name}"[:100], message, code="string_expected"))
        wanted = read_filter(reader, ())
        if parameters is not None:
            try:
                contained = json_object(parameters, "filter.parameters")
                dump_json(contained, field="filter.parameters", limits=conf.get().payload)
                _refuse_hidden(contained, wanted.task_types, "filter.parameters")
                groups = [[contained]]
            except InvalidTaskData as error:
                reader.add_error(error)
    return replace(wanted, parameters=groups)


def _parameters(reader: Reader, names: list[str], task_types: Sequence[str]) -> list[list[dict[str, Any]]]:
    groups: list[list[dict[str, Any]]] = []
    if len(names) > MAX_PARAMETERS:
        message = f"At most {MAX_PARAMETERS} parameters can be searched at once."
        reader.add_error(InvalidTaskData("parameters", message, code="too_many", limit=MAX_PARAMETERS))
        return groups
    for name in names:
        path = name.removeprefix(PARAMETERS_PREFIX).split("__")
        if len(path) > MAX_PATH or not all(path):
            message = f"Name 1 to {MAX_PATH} keys, like parameters__customer__id=7."
            reader.add_error(InvalidTaskData(name, message, code="unknown_parameter"))
        elif (found := reader.optional(name, once(_parameter))) is not None:
            groups.append([_nested(path, value) for value in found])
            try:
                _refuse_hidden(groups[-1][0], task_types, name)
            except InvalidTaskData as error:
                reader.add_error(error)
    return groups


def _refuse_hidden(contained: dict[str, Any], task_types: Sequence[str], name: str) -> None:
    """Refuse to search for a value that is never displayed: a caller could find a secret by trying values."""
    if seeks_hidden(contained, task_types):
        message = f"{name:.80}: this value is hidden, so it cannot be searched for."
        raise InvalidTaskData(name, message, code="sensitive_parameter")


def _parameter(value: str, name: str) -> list[Any]:
    """Return what a value in a query string may mean: the string itself, and its value as JSON."""
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


def _band(value: str, name: str) -> Band:
    return parse_band(text(value, name), field=name)


def _queue(value: str, name: str) -> str:
    try:
        return check_queue_name(value)
    except InvalidTaskData as error:
        raise InvalidTaskData(name, error.message, code=error.code, limit=error.limit) from None


def _error(value: str, name: str) -> str:
    if len(text(value, name)) > ERROR_LENGTH:
        message = f"{name} takes at most {ERROR_LENGTH} characters."
        raise InvalidTaskData(name, message, code="too_long", limit=ERROR_LENGTH)
    return value
