"""Check parameters and results: plain JSON of limited size, depth and number of values. References to results.

The check runs before anything is stored, because deep or unusual JSON would break the process that
reads it later. Errors name the path of the invalid value.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json import encoder as json_encoder
from typing import Any, Final

from queue_app.exceptions import InvalidTaskData, PayloadTooLarge, ResultMissing, UnserializableParameters

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


# References to the results of other tasks, in the arguments of a task.
#
# In code a reference is an object, in stored arguments a marked JSON object, and the worker gets the result in its
# place.

#: Keys that mark a reference: to one result, to a list of results, to the results of the tasks that a task added.
ONE: Final = "$result"
MANY: Final = "$results"
ADDED: Final = "$added_results"
_KINDS: Final = (ONE, MANY, ADDED)
#: Text that every stored reference contains.
MARK: Final = '"$'
_PATH: Final = "path"
_LATER: Final = "it exists once the task has run. Give it to a task as an argument of its own."


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of a task, or a part of it: ``node.result["address"]["city"]``."""

    kind: str
    ids: tuple[uuid.UUID, ...]
    path: tuple[str | int, ...] = ()

    __iter__ = None  # it has __getitem__, which alone would make Python iterate for ever

    def __bool__(self) -> bool:
        """Refuse: what the result is, is not known yet."""
        raise TypeError(f"A result cannot be tested here: {_LATER}")

    def __format__(self, spec: str) -> str:
        """Refuse: a text would contain the name of the reference."""
        raise TypeError(f"A result cannot be part of a text: {_LATER}")

    def __getitem__(self, key: str | int) -> Reference:
        """Return the reference to the value under a key, or at a place, of this result."""
        if type(key) not in (str, int):
            raise TypeError(f"A result has keys (text) and places (whole numbers), not {key!r:.60}.")
        return Reference(self.kind, self.ids, (*self.path, key))

    def as_json(self) -> dict[str, Any]:
        """Return the stored form."""
        ids = [str(task_id) for task_id in self.ids]
        return {self.kind: ids if self.kind == MANY else ids[0]} | ({_PATH: list(self.path)} if self.path else {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reference | None:
        """Return the reference that a JSON object stores; ``None`` if it is an ordinary object."""
        kind = next((kind for kind in _KINDS if kind in value), None)
        if kind is None or not value.keys() <= {kind, _PATH}:
            return None
        given = value[kind] if kind == MANY else [value[kind]]
        try:
            return cls(kind, tuple(map(uuid.UUID, given)), tuple(value.get(_PATH, ())))
        except (ValueError, AttributeError, TypeError):
            return None

    def within(self, value: Any) -> Any:
        """Return the part of a result that the path names; raise ``ResultMissing``."""
        for step, key in enumerate(self.path):
            try:
                value = value[key] if isinstance(value, dict) == isinstance(key, str) else value[None]
            except (KeyError, IndexError, TypeError):
                before = "".join(f"[{part!r}]" for part in self.path[:step])
                raise ResultMissing(
                    f"The result of the task {self.ids[0]}{' at ' + before if before else ''} has no {key!r}; "
                    f"it {_described(value)}."
                ) from None
        return value


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return f"has the keys {', '.join(map(repr, list(value)[:10])) or 'of an empty object'}"
    if isinstance(value, list):
        return f"is a list of {len(value)}"
    return "is null" if value is None else f"is a {type(value).__name__}"


def marked(value: Any, found: list[Reference]) -> Any:
    """Return arguments with every reference in its stored form; collect the references in ``found``.

    Raises ``InvalidTaskData`` for an object with a key that marks references.
    """
    if isinstance(value, Reference):
        found.append(value)
        return value.as_json()
    if isinstance(value, dict):
        for kind in _KINDS:
            if kind in value:
                raise InvalidTaskData(
                    "parameters", f"The key {kind!r} is reserved in the arguments of a workflow's task."
                )
        return {key: marked(item, found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [marked(item, found) for item in value]
    return value


def stored_in(value: Any) -> Iterator[Reference]:
    """Yield the references in stored arguments."""
    if isinstance(value, dict):
        reference = Reference.from_json(value)
        if reference is not None:
            yield reference
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from stored_in(item)


def filled(value: Any, result_of: Callable[[Reference], Any]) -> Any:
    """Return stored arguments with results in the places of references."""
    if isinstance(value, dict):
        reference = Reference.from_json(value)
        if reference is not None:
            return result_of(reference)
        return {key: filled(item, result_of) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, result_of) for item in value]
    return value


def chosen(
    reference: Reference, results: Mapping[uuid.UUID, Any], added: Mapping[uuid.UUID, Sequence[uuid.UUID]]
) -> Any:
    """Return what a reference stands for. A task that did not complete has the result null."""
    ids = added.get(reference.ids[0], ()) if reference.kind == ADDED else reference.ids
    values = [
        Reference(ONE, (task_id,), reference.path).within(results[task_id]) if task_id in results else None
        for task_id in ids
    ]
    return values[0] if reference.kind == ONE else values
