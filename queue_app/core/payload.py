"""Check parameters and results: plain JSON of limited size, depth and number of values.

The check runs before anything is stored, because deep or unusual JSON would break the process that
reads it later. Errors name the path of the invalid value.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json import encoder as json_encoder
from typing import Any, Final

from queue_app.exceptions import PayloadTooLarge, UnserializableParameters

#: Codecs that the app brings, for values of types with the same name (``queue_app.codecs.ready``).
READY_CODECS: Final = frozenset({"decimal", "uuid", "datetime", "date", "time", "timedelta", "bytes"})
#: Integers outside +-2^53 lose digits in JavaScript and in Lua.
MAX_SAFE_INTEGER: Final = 2**53
#: Maximum growth of UTF-8 text when every letter is written as a JSON escape (control characters grow more).
ESCAPED_FACTOR: Final = 3
#: Bytes allowed in a request beside the payload: names, numbers, times, white space.
BESIDE_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadLimits:
    """Maximum bytes of JSON text, levels of nesting and number of values of a payload."""

    max_bytes: int = 256 * 1024  # bytes of JSON text, each for parameters, positional arguments and result
    max_depth: int = 32  # levels of nesting
    max_nodes: int = 10_000  # number of values

    @property
    def wire_bytes(self) -> int:
        """Maximum bytes of a payload of ``max_bytes`` as another JSON writer may send it."""
        return ESCAPED_FACTOR * self.max_bytes


def _make_encode() -> Callable[[Any], str]:
    """Return a function that writes compact JSON; ``JSONEncoder.encode`` builds a new C encoder for each value."""
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
    make: Any = getattr(json_encoder, "c_make_encoder", None)
    try:
        parts = make(None, encoder.default, json_encoder.encode_basestring, None, ":", ",", False, False, False)
    except TypeError:  # this Python has no C encoder, or one with other arguments
        return encoder.encode
    return lambda value: "".join(parts(value, 0))


_encode: Final = _make_encode()
#: Objects with fewer values are checked value by value, which is faster than a search of their text.
_FEW: Final = 16
_LONG_INTEGER: Final = re.compile(r"\d{16}")


def dump_json(value: Any, *, field: str, limits: PayloadLimits) -> str:
    """Return ``value`` as compact JSON text.

    Raises ``UnserializableParameters`` for a value that is not plain JSON and
    ``PayloadTooLarge`` beyond a limit, both with the path of the value.
    """
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        _check(value, field, limits)
        raise UnserializableParameters(field, f"{field} cannot be written as JSON: {error}") from None
    if not _is_flat(value, limits) and (
        _may_be_invalid(text, limits) or (isinstance(value, dict) and not all(isinstance(key, str) for key in value))
    ):
        _check(value, field, limits)
    size = len(text) if text.isascii() else len(text.encode())
    if size > limits.max_bytes:
        raise PayloadTooLarge(
            field,
            f"{field} takes {size} bytes of JSON; the limit is {limits.max_bytes}. "
            "Store large data elsewhere and pass its key.",
            limit=limits.max_bytes,
        )
    return text


def _is_flat(value: Any, limits: PayloadLimits) -> bool:
    """Whether this is an object of a few valid scalars, as most parameters are."""
    if type(value) is not dict or len(value) >= min(_FEW, limits.max_nodes) or limits.max_depth < 1:
        return False
    for key, item in value.items():
        if type(key) is not str or not key.isascii() or "\x00" in key:
            return False
        kind = type(item)
        if kind is str:
            if not item.isascii() or "\x00" in item:
                return False
        elif kind is int:
            if not -MAX_SAFE_INTEGER <= item <= MAX_SAFE_INTEGER:
                return False
        elif kind is not bool and kind is not float and item is not None:  # NaN was refused before
            return False
    return True


def _may_be_invalid(text: str, limits: PayloadLimits) -> bool:
    """Whether the JSON text may contain an invalid value.

    Counts characters, which is many times cheaper than a walk through the values. It has false
    positives, but no false negatives.
    """
    objects, lists = text.count("{"), text.count("[")
    return (
        objects > text.startswith("{")  # an inner object may have non-string keys
        or objects + lists > limits.max_depth
        or objects + lists + text.count(",") >= limits.max_nodes
        or "\\u0000" in text
        or not text.isascii()
        or _LONG_INTEGER.search(text) is not None
    )


def _check(root: Any, field: str, limits: PayloadLimits) -> None:
    """Check every value, without recursion, so that depth cannot exhaust the stack."""
    nodes = 0
    pending: list[tuple[Any, str, int]] = [(root, field, 1)]
    while pending:
        value, path, depth = pending.pop()
        nodes += 1
        children = len(value) if isinstance(value, dict | list | tuple) else 0
        if nodes + len(pending) + children > limits.max_nodes:
            raise PayloadTooLarge(
                field,
                f"{field} holds more than {limits.max_nodes} values.",
                code="too_many_nodes",
                limit=limits.max_nodes,
            )
        if not isinstance(value, dict | list | tuple):
            _check_scalar(value, path)
        elif depth > limits.max_depth:
            raise PayloadTooLarge(
                field,
                f"{field} is nested deeper than {limits.max_depth} levels.",
                code="too_deep",
                limit=limits.max_depth,
            )
        else:
            pending.extend(_children(value, path, depth + 1))


def _check_scalar(value: Any, path: str) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, int):
        if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
            raise UnserializableParameters(
                path, f"{path} is an integer beyond ±2^53; pass it as a string.", code="number_out_of_range"
            )
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise UnserializableParameters(path, f"{path} is not a finite number.", code="non_finite_number")
    else:
        kind = type(value)
        name = kind.__name__.lower()
        codec = f"the codec {name!r}" if name in READY_CODECS else "a codec"
        raise UnserializableParameters(
            path,
            f"Unsupported type: {path} is a {kind.__module__}.{kind.__qualname__}, which JSON cannot hold; "
            "pass plain strings, numbers, lists and dicts (a model instance by its primary key),"
            f" or turn {codec} on in TASKQUEUE CODECS.",
        )


def _children(value: Any, path: str, depth: int) -> list[tuple[Any, str, int]]:
    if not isinstance(value, dict):
        return [(item, f"{path}[{position}]", depth) for position, item in enumerate(value)]
    for key in value:
        if not isinstance(key, str):
            raise UnserializableParameters(path, f"{path} has the key {key!r:.80}; JSON keys are strings.")
        _check_text(key, path)
    return [(item, f"{path}.{key}", depth) for key, item in value.items()]


def _check_text(text: str, path: str) -> None:
    if "\x00" in text:
        raise UnserializableParameters(
            path, f"{path} contains a NUL character, which PostgreSQL cannot store.", code="nul_not_allowed"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UnserializableParameters(
                path, f"{path} contains an unpaired surrogate, which is not valid Unicode.", code="invalid_unicode"
            ) from None


def storable_text(text: str) -> str:
    """Return the text without what PostgreSQL refuses: null characters and lone surrogates."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def storable(value: Any) -> Any:
    """Return a JSON value whose texts are ``storable_text``."""
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, Mapping):
        return {storable_text(key): storable(item) for key, item in value.items()}
    return [storable(item) for item in value] if isinstance(value, list) else value
