"""Check what a caller asks for, before anything is stored; each error names its field."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils.json import normalize_json

from queue_app import conf
from queue_app.core.ids import uuid7
from queue_app.core.lanes import lane_name
from queue_app.core.payload import PayloadLimits, dump_json
from queue_app.core.priorities import parse_band
from queue_app.core.records import NewTask
from queue_app.exceptions import InvalidTaskData, UnserializableParameters
from queue_app.models.columns import (
    CONCURRENCY_KEY_LENGTH,
    KEY_LENGTH,
    MAX_WEIGHT,
    NAME_LENGTH,
    TYPE_LENGTH,
    USER_LENGTH,
)
from queue_app.models.queue import NAME_PATTERN
from queue_app.sql.insert import TaskRow, TaskSpec

MAX_CAPABILITIES = 20
MAX_RETRIES = 100
MAX_TIMEOUT_SECONDS = 7 * 86_400.0
MAX_DELAY = timedelta(days=3660)
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_NAME = re.compile(NAME_PATTERN)


def check_task(new: NewTask) -> TaskRow:
    """Return the row of a new task; raise ``InvalidTaskData`` for what must not be stored."""
    return check_call(check_spec(new), new.args, new.parameters)


def check_spec(new: NewTask) -> TaskSpec:
    """Return what all calls of a task share, without its parameters; raise ``InvalidTaskData``."""
    task_type, queue = check_task_type(new.task_type), check_queue_name(new.queue)
    capabilities = check_capabilities(new.capabilities)
    key = new.idempotency_key
    user = _text(new.user, "user", USER_LENGTH, allow_blank=True)
    concurrency_key, weight = check_concurrency_key(new.concurrency_key), check_weight(new.weight)
    return TaskSpec(
        task_type=task_type,
        queue=queue,
        priority=int(parse_band(new.priority)),
        capabilities=capabilities,
        user=user,
        max_retries=_integer(new.max_retries, "max_retries", 0, MAX_RETRIES),
        timeout=_seconds(new.timeout, "timeout"),
        retry_delay=_seconds(new.retry_delay, "retry_delay"),
        run_after=check_run_after(new.run_after),
        idempotency_key=None if key is None else _text(key, "idempotency_key", KEY_LENGTH),
        concurrency_key=concurrency_key,
        weight=weight,
        lane=lane_name(queue, task_type, capabilities, user, concurrency_key, weight),
    )


def check_call(spec: TaskSpec, args: Sequence[Any], parameters: dict[str, Any]) -> TaskRow:
    """Return the row of one call of a checked task; raise ``InvalidTaskData`` for bad parameters."""
    return TaskRow(uuid7(), spec, *next(check_payloads([(args, parameters)])))


def check_payloads(calls: Iterable[tuple[Sequence[Any], dict[str, Any]]]) -> Iterator[tuple[str, str]]:
    """Yield (args, parameters) of each call as JSON text; raise ``InvalidTaskData`` at one that must not be stored."""
    limits = conf.get().payload
    for args, parameters in calls:
        text = _parameters_text(parameters, limits)
        if type(args) not in (list, tuple):
            raise InvalidTaskData("args", "args must be a list.", code="list_expected")
        yield dump_json(list(args), field="args", limits=limits) if args else "[]", text


def check_parameters(parameters: Any) -> str:
    """Return the parameters as JSON text; raise ``InvalidTaskData`` for what must not be stored."""
    return _parameters_text(parameters, conf.get().payload)


def _parameters_text(parameters: Any, limits: PayloadLimits) -> str:
    if type(parameters) is not dict:
        raise InvalidTaskData("parameters", "parameters must be an object with string keys.", code="object_expected")
    return dump_json(parameters, field="parameters", limits=limits) if parameters else "{}"


def result_text(value: Any) -> str | None:
    """Return what a task returned as JSON text, ``None`` for null; raise ``InvalidTaskData`` for what JSON cannot hold.

    What is no plain JSON is made so as Django does it: any mapping, any sequence, bytes
    that are UTF-8. Keys that are no strings are refused at every depth, in results as in
    parameters: JSON would turn them into strings, and 1 and "1" into one.
    """
    if value is None:
        return None
    limits = conf.get().payload
    try:
        return dump_json(value, field="result", limits=limits)
    except UnserializableParameters as refused:
        try:
            plain = normalize_json(value)
        except (TypeError, ValueError, RecursionError):
            raise refused from None
        return dump_json(plain, field="result", limits=limits)


def check_task_type(name: Any) -> str:
    """Return ``name`` when it can be a task type's name; whether it is one the registry knows."""
    return _text(name, "task_type", TYPE_LENGTH)


def check_request_id(value: Any) -> str:
    """Return ``value`` when it can name a request, and be its idempotency key."""
    return _text(value, "request_id", KEY_LENGTH)


def check_queue_name(name: Any) -> str:
    """Return ``name`` when it can be a queue's name."""
    return _name(name, "queue")


def check_capabilities(names: Any) -> tuple[str, ...]:
    """Return the capabilities sorted and without repeats, as they name a lane."""
    if not names:
        return ()
    if isinstance(names, str) or not isinstance(names, list | tuple | set | frozenset):
        raise InvalidTaskData("capabilities", "capabilities must be a list of names.", code="list_expected")
    if len(names) > MAX_CAPABILITIES:
        raise InvalidTaskData(
            "capabilities", f"A task may require at most {MAX_CAPABILITIES} capabilities.", limit=MAX_CAPABILITIES
        )
    return tuple(sorted({_name(name, "capabilities") for name in names}))


def check_run_after(value: Any) -> datetime | None:
    """Return ``value`` when it is an aware time between 2000 and ten years ahead."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidTaskData("run_after", "run_after must be a date and time.", code="datetime_expected")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidTaskData("run_after", "run_after needs a time zone.", code="timezone_required")
    if not EARLIEST <= value <= datetime.now(UTC) + MAX_DELAY:
        raise InvalidTaskData(
            "run_after", "run_after must lie between the year 2000 and ten years from now.", code="date_out_of_range"
        )
    return value


def check_concurrency_key(value: Any) -> str:
    """Return ``value`` when it can be a concurrency key; empty for none."""
    return _text(value, "concurrency_key", CONCURRENCY_KEY_LENGTH, allow_blank=True)


def check_weight(value: Any) -> int:
    """Return ``value`` when it is a number of slots that a task can take."""
    weight = _integer(value, "weight", 1, MAX_WEIGHT)
    if weight is None:
        raise InvalidTaskData("weight", "weight must be a whole number.", code="integer_expected")
    return weight


def check_reason(value: Any, limit: int) -> str:
    """Return what staff give as the reason of an action: one line of text, which may be empty."""
    return _text(value, "reason", limit, allow_blank=True)


def _name(value: Any, field: str) -> str:
    if not isinstance(value, str) or len(value) > NAME_LENGTH or not _NAME.match(value):
        raise InvalidTaskData(
            field,
            f"{value!r:.60} is not a name: use up to {NAME_LENGTH} letters, digits, dots, dashes and underscores, "
            "beginning with a letter or digit.",
            code="invalid_name",
        )
    return value


def _text(value: Any, field: str, limit: int, *, allow_blank: bool = False) -> str:
    if not isinstance(value, str):
        raise InvalidTaskData(field, f"{field} must be a string.", code="string_expected")
    if not (value or allow_blank):
        raise InvalidTaskData(field, f"{field} must not be empty.", code="blank")
    if len(value) > limit:
        raise InvalidTaskData(field, f"{field} has {len(value)} characters; the limit is {limit}.", limit=limit)
    if not (value.isascii() and value.isprintable()) and any(
        unicodedata.category(character)[0] == "C" for character in value
    ):
        raise InvalidTaskData(field, f"{field} contains control or invisible characters.", code="invalid_characters")
    return value


def _integer(value: Any, field: str, low: int, high: int) -> int | None:
    if value is None:
        return None
    if type(value) is not int:
        raise InvalidTaskData(field, f"{field} must be a whole number.", code="integer_expected")
    if not low <= value <= high:
        raise InvalidTaskData(field, f"{field} must lie between {low} and {high}.", code="out_of_range", limit=high)
    return value


def _seconds(value: Any, field: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if type(value) not in (int, float):
        raise InvalidTaskData(field, f"{field} must be a number of seconds.", code="number_expected")
    if not 0 < value <= MAX_TIMEOUT_SECONDS:  # false for NaN too
        raise InvalidTaskData(
            field, f"{field} must be more than 0 and at most {MAX_TIMEOUT_SECONDS:.0f} seconds.", code="out_of_range"
        )
    return float(value)
