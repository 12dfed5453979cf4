"""Parse input from outside strictly: UTF-8, JSON, times with a zone, values of settings."""

import dataclasses
import json
import logging
import math
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NoReturn

from queue_app.exceptions import InvalidTaskData, PayloadTooLarge, near_matches

INTEGER_DIGITS: Final = 20
#: A day inside of what ``datetime`` can hold: sums with small differences stay within.
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
_TIME: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}(?P<time>[T ]\d{2}:\d{2}(:\d{2}([.,]\d{1,9})?)?(?P<zone>Z|[+-]\d{2}:?\d{2})?)?",
    re.IGNORECASE | re.ASCII,
)


def decode_text(raw: bytes, *, field: str, subject: str) -> str:
    """Decode plain UTF-8; raise ``InvalidTaskData`` for anything else."""
    if b"\x00" in raw or raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise InvalidTaskData(
            field, f"{subject} must be UTF-8 without a byte order mark and without NUL bytes.", code="utf8_required"
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidTaskData(
            field, f"{subject} is not UTF-8: byte {error.start} does not fit.", code="utf8_required"
        ) from None


def load_json(text: str, *, field: str, subject: str, max_depth: int) -> Any:
    """Parse JSON text.

    Raises ``InvalidTaskData`` for invalid JSON, for numbers that JSON readers would round or
    refuse, and for duplicate keys; ``PayloadTooLarge`` if the nesting exhausts the parser.
    """
    try:
        return json.loads(
            text,
            parse_constant=partial(_refuse_constant, field),
            parse_float=partial(_parse_float, field),
            parse_int=partial(_parse_integer, field),
            object_pairs_hook=partial(_parse_object, field),
        )
    except json.JSONDecodeError as error:
        raise InvalidTaskData(
            field,
            f"{subject} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}.",
            code="invalid_json",
        ) from None
    except RecursionError:
        raise PayloadTooLarge(
            field, f"{subject} is nested deeper than {max_depth} levels.", code="too_deep", limit=max_depth
        ) from None


def timestamp(value: Any, name: str) -> datetime:
    """Parse an RFC 3339 date and time with a zone, in ASCII digits."""
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is not None and match["zone"] is None:
        raise InvalidTaskData(
            name, f"{name} needs a time and a time zone, like 2030-01-31T12:00:00Z.", code="timezone_required"
        )
    try:
        if match is not None:
            moment = datetime.fromisoformat(match[0].upper())
            check_range(name, moment)
            return moment.astimezone(UTC)  # because PostgreSQL reads no offset beyond 15:59
    except InvalidTaskData:
        raise
    except ValueError:
        pass
    raise InvalidTaskData(
        name, f"{name} must be a date and time with its zone, like 2030-01-31T12:00:00Z.", code="datetime_expected"
    )


def check_range(field: str, value: datetime | None) -> None:
    """Raise ``InvalidTaskData`` for a time at the ends of the calendar, near which sums overflow."""
    if value is not None and not EARLIEST <= value <= LATEST:
        message = f"{field} must lie between {EARLIEST.date()} and {LATEST.date()} in UTC."
        raise InvalidTaskData(field, message, code="date_out_of_range")


def _refuse_constant(field: str, text: str) -> NoReturn:
    raise InvalidTaskData(field, f"{text} is not a JSON number.", code="non_finite_number")


def _parse_float(field: str, text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidTaskData(field, f"{text:.40} is beyond the numbers of JSON.", code="number_out_of_range")
    return value


def _parse_integer(field: str, text: str) -> int:
    if len(text) > INTEGER_DIGITS:
        raise InvalidTaskData(
            field, f"{text[:10]}… has {len(text)} digits; pass it as a string.", code="number_too_long"
        )
    return int(text)


def _parse_object(field: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidTaskData(field, f"The key {twice!r:.80} occurs twice in one object.", code="duplicate_key")
    return result


# Build a tree of dataclasses from a nested mapping and the environment; collect all problems.

ENVIRONMENT_PREFIX = "TASKQUEUE__"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of ``TASKQUEUE``: the key, what is wrong, and what to do."""

    key: str
    message: str
    hint: str

    def __str__(self) -> str:
        """Return what is wrong with the key, as a sentence."""
        return " ".join(filter(None, ("TASKQUEUE", self.key, self.message)))


def merge_environment(raw: Mapping[str, Any], environ: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    """Return ``raw``, overridden by every ``TASKQUEUE__A__B`` of the environment."""
    merged: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in raw.items()}
    for name in sorted(environ):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        path = name.removeprefix(ENVIRONMENT_PREFIX).split("__")
        value = _FromEnvironment(environ[name])
        match path:
            case [key]:
                merged[key] = value
            case [section, key]:
                inner = merged.setdefault(section, {})
                if isinstance(inner, dict):
                    inner[key] = value
            case _:
                problems.append(Problem(name, "has too many parts.", "Use TASKQUEUE__KEY or TASKQUEUE__SECTION__KEY."))
    return merged


class _FromEnvironment(str):
    """Text from the environment, which is converted to the type of its setting."""

    __slots__ = ()


def build[T](kind: type[T], raw: Any, path: str, problems: list[Problem]) -> T:
    """Return a ``kind`` filled from the mapping ``raw``; append problems under their paths."""
    hints = typing.get_type_hints(kind)
    if not isinstance(raw, Mapping):
        problems.append(Problem(path, f"is {raw!r:.40}.", f"Make it a dict with keys {', '.join(_keys(kind))}."))
        return kind()
    values: dict[str, Any] = {}
    for key, value in raw.items():
        where = f"{path}.{key}" if path else str(key)
        name = str(key).lower()
        if not isinstance(key, str) or key != key.upper() or name not in hints:
            matches = near_matches(str(key).upper(), _keys(kind))
            hint = f"Did you mean {matches[0]!r}?" if matches else f"Known keys: {', '.join(_keys(kind))}."
            problems.append(Problem(where, "is not a setting of the task queue.", hint))
        elif dataclasses.is_dataclass(hints[name]):
            values[name] = build(typing.cast("type[Any]", hints[name]), value, where, problems)
        else:
            try:
                values[name] = _read(hints[name], value, name)
            except ValueError as error:
                shown = "cannot be used" if name in _SECRET else f"is {value!r:.60}"
                problems.append(Problem(where, f"{shown}.", str(error)))
    return kind(**values)


def _keys(kind: type[Any]) -> Iterator[str]:
    return (f.name.upper() for f in dataclasses.fields(kind))


#: Minimum of a number, if it is not 1 for whole numbers and 0.01 for others.
_MINIMUM: Mapping[str, float] = {
    "look_ahead_ms": 0, "grace_seconds": 0, "max_length": 0, "max_lines": 0,
    "submits_per_minute": 0, "reads_per_minute": 0, "heavy_per_minute": 0,
    "failed_logins_per_minute": 0,
}  # fmt: skip
_MAXIMUM = 10**12
#: The prefix stands in braces at the start of every key, and in glob patterns.
_KEY_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)
#: Settings whose values no message repeats.
_SECRET = frozenset({"keys", "token", "webhooks"})
#: Examples of dicts of dicts.
_EXAMPLES: dict[str, str] = {
    "schedules": '{"nightly": {"task": "shop.tasks.report", "cron": "0 3 * * *"}}',
    "webhooks": '{"crm": {"url": "https://crm.example.com/hook", "secrets": ["whsec_…"]}}',
}
#: Allowed values of texts.
_CHOICES: dict[str, tuple[str, ...]] = {"access": ("local", "token", "staff", "open"), "index": ("redis", "rows")}


def _read(hint: Any, value: Any, name: str) -> Any:
    """Return ``value`` as ``hint``; raise ``ValueError`` with what to use instead."""
    if hint is str:
        return _read_text(value, name)
    if hint is bool:
        return _read_switch(value)
    if hint is int or hint is float:
        return _read_number(hint, value, _MINIMUM.get(name, 1 if hint is int else 0.01))
    if hint == dict[str, str]:
        if isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values()):
            return dict(value)
        raise ValueError('Use a dict of dotted paths such as {"search": "shop.probes.search_load"}.')
    if typing.get_origin(hint) is dict:
        if isinstance(value, Mapping) and all(isinstance(each, Mapping) for each in value.values()):
            return dict(value)
        raise ValueError(f"Use a dict such as {_EXAMPLES[name]}.")
    if isinstance(value, _FromEnvironment):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple) and all(isinstance(item, str) and item for item in value):
        return list(value)
    raise ValueError("Use a list of strings.")


def _read_text(value: Any, name: str) -> str:
    if not (isinstance(value, str) and value):
        raise ValueError("Use a non-empty string.")
    if name == "user" and value.count("*") > 1:
        raise ValueError("Use at most one *.")
    if name == "key_prefix" and not _KEY_PREFIX.fullmatch(value):
        raise ValueError("Use at most 100 letters, digits and the signs _ - . : (braces and globs mean something).")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ValueError(f"Use one of {', '.join(_CHOICES[name])}.")
    if name == "level" and value.upper() not in logging.getLevelNamesMapping():
        raise ValueError(f"Use one of {', '.join(logging.getLevelNamesMapping())}.")
    return str(value)


_SWITCHES = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _read_switch(value: Any) -> bool:
    if isinstance(value, _FromEnvironment) and value.lower() in _SWITCHES:
        return _SWITCHES[value.lower()]
    if type(value) is bool:
        return value
    raise ValueError("Use True or False.")


def _read_number(hint: type[int | float], value: Any, minimum: float) -> float:
    kind = "a whole number" if hint is int else "a number"
    wanted = f"Use {kind} of at least {minimum}."
    is_text = isinstance(value, _FromEnvironment)
    if not (is_text or type(value) is int or (hint is float and type(value) is float)):
        raise ValueError(wanted)
    try:
        number = hint(value)
    except ValueError:
        raise ValueError(wanted) from None
    if not minimum <= number <= _MAXIMUM:
        raise ValueError(wanted)
    return number
