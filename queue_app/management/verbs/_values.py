"""Parse durations, times and parameters from the command line; format tables."""

import json
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from queue_app.core.options import Door, Duration, Names, Text, Whole, at

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_MAX = timedelta(days=3660)


def duration(text: str) -> timedelta:
    """Parse ``90s``, ``2h``, ``1d12h``."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        what = "has no unit" if text.replace(".", "", 1).isdigit() else "is not a duration"
        raise ArgumentTypeError(f"{text!r} {what}: use 90s, 15m, 2h, 1d12h, 4w")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < seconds <= _MAX.total_seconds():
        raise ArgumentTypeError("a duration must be above 0 and at most ten years")
    return timedelta(seconds=seconds)


def instant(text: str) -> datetime:
    """Parse a time with its zone, or a duration from now."""
    return _instant(text, forward=True)


def past_instant(text: str) -> datetime:
    """Parse a time with its zone, or a duration before now: ``2h`` is two hours ago."""
    return _instant(text, forward=False)


def _instant(text: str, *, forward: bool) -> datetime:
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        try:
            return timezone.now() + (duration(text) if forward else -duration(text))
        except ArgumentTypeError:
            raise ArgumentTypeError(
                f"{text!r} is neither a time such as 2030-01-31T08:00:00+01:00 nor a duration with a unit such as 15m"
            ) from None
    if timezone.is_naive(found):
        raise ArgumentTypeError(f"{text!r} has no time zone: end it with Z or an offset such as +01:00")
    return found


def parameter(text: str) -> tuple[str, str]:
    """Parse ``name=value``; the value is text."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def names(text: str) -> list[str]:
    """Return the names in a comma-separated text."""
    return [name.strip() for name in text.split(",") if name.strip()]


def json_value(text: str) -> Any:
    """Parse JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"not JSON: {error}") from None


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    found = json_value(text)
    if not isinstance(found, dict):
        raise ArgumentTypeError("not a JSON object, such as '{\"order\": 7}'")
    return found


def format_table(rows: list[list[str]]) -> list[str]:
    """Return a table as lines; the first column is left-aligned, the others are right-aligned."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def setting(text: str) -> tuple[str, str, Any]:
    """Parse ``queue:mail.max_concurrent=5``."""
    name, sign, value = text.partition("=")
    owner, dot, field = name.rpartition(".")
    if not (sign and dot and owner and field):
        raise ArgumentTypeError(f"{text!r} is not NAME.FIELD=VALUE, such as queue:mail.max_concurrent=5")
    try:
        return owner, field, None if value == "none" else json.loads(value)
    except ValueError:
        return owner, field, value


def settings_by_owner(settings: Iterable[tuple[str, str, Any]]) -> dict[str, dict[str, Any]]:
    """Return {owner: {field: value}} of what ``setting`` parsed."""
    found: dict[str, dict[str, Any]] = {}
    for owner, field, value in settings:
        found.setdefault(owner, {})[field] = value
    return found


_TYPES: Final[dict[type, tuple[type, str]]] = {Text: (str, "TEXT"), Whole: (int, "N"), Duration: (float, "SECONDS")}


def add_options(parser: ArgumentParser, door: Door, prefix: str = "") -> None:
    """Add an argument for each option of a task that may be set at a door."""
    for name, option in at(door).items():
        flag, text = f"--{option.flag or name.replace('_', '-')}", prefix + option.help
        if isinstance(option.kind, Names):
            parser.add_argument(flag, dest=name, action="append", metavar="NAME", help=f"{text}; repeatable")
        else:
            kind, metavar = _TYPES[type(option.kind)]
            parser.add_argument(flag, type=kind, metavar=option.metavar or metavar, help=text)
