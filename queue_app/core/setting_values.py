"""Build a tree of dataclasses from a nested mapping and the environment; collect all problems."""

import dataclasses
import logging
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from queue_app.exceptions import near_matches

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
_CHOICES: dict[str, tuple[str, ...]] = {"access": ("local", "token", "staff", "open")}


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
