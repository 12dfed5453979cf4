"""Check new tasks before anything is stored; each error names its field."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.tasks.base import DEFAULT_TASK_QUEUE_NAME
from django.utils.json import normalize_json

from queue_app import codecs, conf
from queue_app.core.ids import uuid7
from queue_app.core.limits import lane_name
from queue_app.core.options import (
    DEFAULTS,
    KEY_LENGTH,
    MAX_CAPABILITIES,
    OPTIONS,
    Duration,
    Names,
    Text,
    Whole,
)
from queue_app.core.payload import PayloadLimits, dump_json
from queue_app.core.priorities import Band, band_from_django, parse_band
from queue_app.core.records import NewTask, TaskRow, TaskSpec
from queue_app.core.unique import LATEST_HAS_A_KEY, rule_of
from queue_app.exceptions import InvalidTaskData, UnserializableParameters
from queue_app.models.fields import NAME_LENGTH, TYPE_LENGTH
from queue_app.models.operation import REASON_LENGTH
from queue_app.models.queue import NAME_PATTERN
from queue_app.registry import AnyTask
from queue_app.sql.database import clock
from queue_app.tasks import QueueTask

MAX_DELAY = timedelta(days=3660)
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_NAME = re.compile(NAME_PATTERN)


def check_task(new: NewTask, registered: AnyTask | None = None) -> TaskRow:
    """Return the row of a new task; raise ``InvalidTaskData`` for what must not be stored.

    Options that ``new`` leaves open come from the ``registered`` task.
    """
    row = check_call(check_spec(new, registered), new.args, new.parameters)
    if new.metadata is None:
        return row
    return row._replace(metadata=_texts((), new.metadata, conf.get().payload)[1])


def check_spec(new: NewTask, registered: AnyTask | None = None) -> TaskSpec:
    """Return the options that all calls of a task share; raise ``InvalidTaskData``.

    Options that ``new`` leaves open come from the ``registered`` task, whose type the caller has checked.
    """
    queue, band = new.queue, Band.NORMAL
    if queue is None:
        queue = DEFAULT_TASK_QUEUE_NAME if registered is None else registered.queue_name
    if new.priority is not None:
        band = parse_band(new.priority)
    elif registered is not None:
        band = band_from_django(registered.priority)
    task_type = check_task_type(new.task_type) if registered is None else new.task_type
    queue, options = check_queue_name(queue), _options(new.options, registered)
    capabilities, user, key = options["capabilities"], options["user"], options["concurrency_key"]
    unique = None if options["unique"] is None else rule_of(options["unique"])
    if key and unique is not None and unique.on_conflict == "latest":
        raise InvalidTaskData("unique", LATEST_HAS_A_KEY)
    return TaskSpec(
        task_type=task_type,
        queue=queue,
        priority=int(band),
        run_after=check_run_after(new.run_after if new.delay is None else _after(new.delay)),
        lane=lane_name(queue, task_type, capabilities, user, key, options["weight"]),
        **options | {"unique": unique},
    )


def _options(given: Mapping[str, Any], registered: AnyTask | None) -> dict[str, Any]:
    """Return all options, checked; the missing ones are those of the registered task, but not its user."""
    own = registered if isinstance(registered, QueueTask) else None
    options = dict(DEFAULTS)
    for name, default in DEFAULTS.items():
        value = given.get(name)
        if value is None and own is not None and name != "user":
            value = getattr(own, name)
        if value is not None and value is not default:
            options[name] = value if name == "unique" else _CHECKS[name](value)
    return options


def _after(delay: float) -> datetime | None:
    """Return the time ``delay`` seconds from now by PostgreSQL's clock; ``None`` for no delay."""
    if type(delay) not in (int, float):
        raise InvalidTaskData("delay", "delay must be a number of seconds.", code="number_expected")
    limit = int(MAX_DELAY.total_seconds())
    if not 0 <= delay <= limit:  # false for NaN too
        raise InvalidTaskData(
            "delay", f"delay must lie between 0 and {limit} seconds.", code="out_of_range", limit=limit
        )
    return clock() + timedelta(seconds=delay) if delay else None


def check_call(spec: TaskSpec, args: Sequence[Any], parameters: dict[str, Any]) -> TaskRow:
    """Return the row of one call of a checked task; raise ``InvalidTaskData`` for bad parameters."""
    args_text, parameters_text = _texts(args, parameters, conf.get().payload)
    return TaskRow(uuid7(), spec, args_text, parameters_text)


def check_payloads(calls: Iterable[tuple[Sequence[Any], dict[str, Any]]]) -> Iterator[tuple[str, str]]:
    """Yield (args, parameters) of each call as JSON text; raise ``InvalidTaskData`` for what must not be stored."""
    limits = conf.get().payload
    return (_texts(args, parameters, limits) for args, parameters in calls)


def _texts(args: Sequence[Any], parameters: dict[str, Any], limits: PayloadLimits) -> tuple[str, str]:
    if type(parameters) is not dict:
        raise InvalidTaskData("parameters", "parameters must be an object with string keys.", code="object_expected")
    text = dump_json(parameters, field="parameters", limits=limits) if parameters else "{}"
    if type(args) not in (list, tuple):
        raise InvalidTaskData("args", "args must be a list.", code="list_expected")
    return dump_json(list(args), field="args", limits=limits) if args else "[]", text


def result_text(value: Any, limits: PayloadLimits | None = None) -> str | None:
    """Return a task's return value as JSON text, ``None`` for null; ``limits`` are by default those of payloads.

    Raises ``TypeError`` for a type that JSON cannot hold, as Django's backends do, and ``InvalidTaskData`` otherwise.

    Values of the project's codecs get their forms. Any other mapping, any sequence and UTF-8 bytes become plain JSON as
    in Django. Keys that are not strings are refused at every depth, in results as in parameters: JSON would turn them
    into strings, and 1 and "1" into one key.
    """
    if value is None:
        return None
    if codecs.are_on():
        value = codecs.encode(value, "result")
    limits = limits or conf.get().payload
    try:
        return dump_json(value, field="result", limits=limits)
    except UnserializableParameters as refused:
        try:
            plain = normalize_json(value)
        except (TypeError, ValueError, RecursionError):
            if refused.code != UnserializableParameters.code:
                raise refused from None
            raise TypeError(refused.message) from None
        return dump_json(plain, field="result", limits=limits)


def check_task_type(name: Any) -> str:
    """Return ``name`` if it can name a task type, known or not."""
    return check_text(name, "task_type", TYPE_LENGTH)


def check_request_id(value: Any) -> str:
    """Return ``value`` if it can name a request, and so be its idempotency key."""
    return check_text(value, "request_id", KEY_LENGTH)


def check_queue_name(name: Any) -> str:
    """Return ``name`` if it can name a queue."""
    return _name(name, "queue")


def check_signal_name(name: Any) -> str:
    """Return ``name`` if it can name a signal."""
    return _name(name, "name")


def check_capabilities(names: Any) -> tuple[str, ...]:
    """Return the capabilities as a lane names them: sorted and without repeats."""
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
    """Return ``value`` if it is an aware time between the year 2000 and ten years from now."""
    if value is None:
        return None
    when = check_aware(value, "run_after")
    if not EARLIEST <= when <= datetime.now(UTC) + MAX_DELAY:
        raise InvalidTaskData(
            "run_after", "run_after must lie between the year 2000 and ten years from now.", code="date_out_of_range"
        )
    return when


def check_until(value: Any) -> datetime:
    """Return ``value`` if it is an aware time up to ten years from now."""
    until = check_aware(value, "until")
    if until > datetime.now(UTC) + MAX_DELAY:
        raise InvalidTaskData("until", "until must lie at most ten years from now.", code="date_out_of_range")
    return until


def check_aware(value: Any, field: str) -> datetime:
    """Return ``value`` if it is a time with a zone."""
    if not isinstance(value, datetime):
        raise InvalidTaskData(field, f"{field} must be a date and time.", code="datetime_expected")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidTaskData(field, f"{field} needs a time zone.", code="timezone_required")
    return value


def check_reason(value: Any) -> str:
    """Return the reason of a staff action: one line of text, which may be empty."""
    return check_text(value, "reason", REASON_LENGTH, allow_blank=True)


def _name(value: Any, field: str) -> str:
    if not isinstance(value, str) or len(value) > NAME_LENGTH or not _NAME.match(value):
        raise InvalidTaskData(
            field,
            f"{value!r:.60} is not a name: use up to {NAME_LENGTH} letters, digits, dots, dashes and underscores, "
            "beginning with a letter or digit.",
            code="invalid_name",
        )
    return value


def check_text(value: Any, field: str, limit: int, *, allow_blank: bool = False) -> str:
    """Return ``value`` if it is visible text of at most ``limit`` characters."""
    if not isinstance(value, str):
        such_as = ", such as user.get_username()" if field == "user" else ""
        raise InvalidTaskData(field, f"{field} must be a string{such_as}.", code="string_expected")
    if not (value.strip(" ") or allow_blank):
        raise InvalidTaskData(field, f"{field} must not be empty.", code="blank")
    if len(value) > limit:
        raise InvalidTaskData(field, f"{field} has {len(value)} characters; the limit is {limit}.", limit=limit)
    if not (value.isascii() and value.isprintable()) and any(
        unicodedata.category(character)[0] == "C" for character in value
    ):
        raise InvalidTaskData(field, f"{field} contains control or invisible characters.", code="invalid_characters")
    return value


def check_integer(value: Any, field: str, low: int, high: int) -> int:
    """Return ``value`` if it is a whole number within these bounds."""
    if type(value) is not int:
        raise InvalidTaskData(field, f"{field} must be a whole number.", code="integer_expected")
    if not low <= value <= high:
        raise InvalidTaskData(field, f"{field} must lie between {low} and {high}.", code="out_of_range", limit=high)
    return value


def _seconds(value: Any, field: str, high: float) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if type(value) not in (int, float):
        raise InvalidTaskData(field, f"{field} must be a number of seconds.", code="number_expected")
    if not 0 < value <= high:  # false for NaN too
        raise InvalidTaskData(
            field, f"{field} must be more than 0 and at most {high:.0f} seconds.", code="out_of_range"
        )
    return float(value)


def _check_of(name: str) -> Callable[[Any], Any]:
    """Return the check of an option, which returns the form in which a row keeps it."""
    match OPTIONS[name].kind:
        case Names():
            return check_capabilities
        case Text(most, blank):
            return lambda value: check_text(value, name, most, allow_blank=blank)
        case Whole(low, high):
            return lambda value: check_integer(value, name, low, high)
        case Duration(longest):
            return lambda value: _seconds(value, name, longest)


_CHECKS: Final = {name: _check_of(name) for name in OPTIONS}
