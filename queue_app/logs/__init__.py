"""Log lines as JSON, one object per line, for log collectors.

Everything except printable ASCII is escaped, so that text from clients (names, errors) cannot
start a new line or control a terminal. Passwords in URLs and values with secret names (such as
``password``) are masked. Lines are limited to 16 kB, because collectors cut longer ones.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from queue_app import registry
from queue_app.core.redaction import MASK, is_secret, redact

MAX_MESSAGE: Final = 4_000  # characters
MAX_STACK: Final = 8_000  # characters; the end is kept, because it shows the error
MAX_FIELD: Final = 1_000  # characters
MAX_FIELDS: Final = 50
MAX_LINE: Final = 16_000  # bytes
_MAX_DEPTH: Final = 4

#: Attribute of a record with a mapping whose items become fields of the line.
ATTRIBUTE: Final = "taskqueue"
_OWN: Final = frozenset({"time", "level", "logger", "message", "stack", "error"})
#: Attributes that workers add to each record of a task, with the prefix ``taskqueue_``.
FROM_WORKERS: Final = ("task_id", "task_type", "trace_id")
_PLAIN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", ATTRIBUTE}


class JSONFormatter(logging.Formatter):
    """Format records as JSON objects.

    Each line has ``time`` (UTC), ``level``, ``logger`` and ``message``; with an exception also
    ``error`` (its class) and ``stack``. The items of ``extra`` follow; a name that is taken gets
    an underscore. Empty fields are left out. The formatter never raises.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
        }
        facts = getattr(record, ATTRIBUTE, None)
        fields["message"] = _message_of(record, trusted=facts is not None)
        fields |= _extras_of(record, facts)
        if record.exc_info and record.exc_info[0] is not None:
            kind = record.exc_info[0]
            fields["error"] = f"{kind.__module__}.{kind.__qualname__}"
            fields["stack"] = self._stack_of(record)
        elif isinstance(facts, Mapping) and facts.get("traceback"):  # raised in another process
            fields["stack"] = redact(str(facts["traceback"])[-MAX_STACK:])
        elif record.stack_info:
            fields["stack"] = redact(record.stack_info[-MAX_STACK:])
        return _fitting(fields)

    def _stack_of(self, record: logging.LogRecord) -> str:
        try:
            assert record.exc_info  # noqa: S101 - for the type checker
            return redact(self.formatException(record.exc_info)[-MAX_STACK:])
        except Exception:  # noqa: BLE001 - log the rest of the record
            return "(the traceback cannot be formatted)"


def _message_of(record: logging.LogRecord, *, trusted: bool) -> str:
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001 - wrong arguments of a log call must not lose the line
        text = f"(cannot be formatted) {record.msg!s:.200}"
    text = text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"
    return text if trusted else redact(text)


def _extras_of(record: logging.LogRecord, facts: Any) -> dict[str, Any]:
    given = {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
    for name in FROM_WORKERS:
        value = given.pop(f"{ATTRIBUTE}_{name}", None)
        given.setdefault(name, value)
    if isinstance(facts, Mapping):
        given = {name: value for name, value in given.items() if name not in facts}
    extras: dict[str, Any] = {}
    for key, value in _items(given, _MAX_DEPTH):
        if value is not None and value != "":
            extras[f"{key}_" if key in _OWN else key] = value
    if isinstance(facts, Mapping):  # the queue's own names and numbers need no masking
        for key, value in facts.items():
            if value is not None and value != "" and key != "traceback":
                extras[f"{key}_" if key in _OWN else key] = value[:MAX_FIELD] if isinstance(value, str) else value
    return extras


def _items(given: Mapping[Any, Any], depth: int) -> Iterator[tuple[str, Any]]:
    names = _declared()
    for name, value in list(given.items())[:MAX_FIELDS]:
        key = str(name)[:MAX_FIELD]
        yield key, MASK if is_secret(key, names) and value not in (None, "") else _plain(value, depth)


def _declared() -> frozenset[str]:
    try:
        return registry.all_sensitive_names()
    except Exception:  # noqa: BLE001 - a line that is logged before the settings are loaded
        return frozenset()


def _plain(value: Any, depth: int) -> Any:
    """Return a value that JSON can hold, of limited size."""
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no infinities and no NaN
    if isinstance(value, Mapping) and depth:
        return dict(_items(value, depth - 1))
    if isinstance(value, list | tuple) and depth:
        return [_plain(item, depth - 1) for item in value[:MAX_FIELDS]]
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - a broken __str__ must not lose the line
        text = f"(a {type(value).__name__} that cannot be shown)"
    return redact(text if len(text) <= MAX_FIELD else f"{text[:MAX_FIELD]}…")


def _fitting(fields: dict[str, Any]) -> str:
    """Return the line; shorten the stack, then the message, until it fits."""
    line = _dump(fields)
    for name, kept in (("stack", 2_000), ("message", 1_000)):
        if len(line) > MAX_LINE and isinstance(fields.get(name), str):
            fields[name] = fields[name][-kept:] if name == "stack" else fields[name][:kept]
            line = _dump(fields)
    if len(line) > MAX_LINE:
        line = _dump({name: fields[name] for name in ("time", "level", "logger", "message")} | {"shortened": True})
    return line


def _dump(fields: dict[str, Any]) -> str:
    try:
        line = json.dumps(fields, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        line = json.dumps({name: str(value)[:MAX_FIELD] for name, value in fields.items()}, ensure_ascii=True)
    return line.replace("\x7f", "\\u007f")  # the only control character that JSON does not escape


def printable(text: str) -> str:
    """Return a text without control characters, for formats that do not escape them."""
    return "".join(character if character.isprintable() else " " for character in text)
