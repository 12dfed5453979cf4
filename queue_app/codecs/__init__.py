"""Codecs: values that JSON cannot hold, as arguments and results, in a form that people can read.

A project turns codecs on in the setting ``CODECS``. A value is stored as an object with one key, such as
``{"$decimal": "19.90"}``. Decoding knows only the codecs in the setting, so stored data never choose what is imported.
"""

from __future__ import annotations

import binascii
import dataclasses
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache
from types import NoneType
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from queue_app import conf
from queue_app.codecs.ready import READY, Codec as Codec, DataclassCodec, EnumCodec
from queue_app.exceptions import (
    ArgumentGone,
    ArgumentUnreadable,
    CodecMissing,
    InvalidTaskData,
    UnserializableParameters,
    near_matches,
)

#: Deeper values are left to the check of payloads, which refuses them.
MAX_DEPTH: Final = 64
_PLAIN: Final = frozenset({str, int, float, bool, NoneType})
#: Tag around a dict of the caller that looks like the form of a codec.
_ESCAPE: Final = "$dict"


def codec_of(name: str) -> Codec:
    """Return the codec that an entry of ``CODECS`` stands for; raise ``ImproperlyConfigured``."""
    if name in READY:
        return READY[name]()
    try:
        kind = import_string(name)
    except ImportError as error:
        meant = near_matches(name, READY)
        hint = f" Did you mean {' or '.join(map(repr, meant))}?" if meant else ""
        raise ImproperlyConfigured(f"TASKQUEUE CODECS: {name!r} cannot be imported: {error}.{hint}") from None
    if isinstance(kind, type) and issubclass(kind, Codec):
        return kind()
    if isinstance(kind, type) and issubclass(kind, Enum):
        return EnumCodec(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return DataclassCodec(kind)
    raise ImproperlyConfigured(f"TASKQUEUE CODECS: {name!r} is no Enum, no dataclass and no queue_app.codecs.Codec.")


@lru_cache(maxsize=8)
def _tables(names: tuple[str, ...]) -> tuple[dict[type[Any], Codec], dict[str, Codec]]:
    """Return the codecs by type and by tag."""
    found = [codec_of(name) for name in names]
    return {codec.type: codec for codec in found}, {f"${codec.name}": codec for codec in found}


def are_on() -> bool:
    """Return whether the project turned any codec on."""
    return bool(conf.get().codecs)


def problems() -> Iterator[str]:
    """Yield what is wrong with the setting ``CODECS``."""
    for name in conf.load()[0].codecs:
        try:
            codec_of(name)
        except Exception as error:  # noqa: BLE001 - the module of a project may raise anything
            yield str(error)


def encode(value: Any, field: str) -> Any:
    """Return a value with the forms of codecs in place of what JSON cannot hold.

    Values without a codec stay, and the check of payloads refuses them. Raises ``UnserializableParameters`` for a value
    that its codec refuses, with the path of the value.
    """
    return _encoded(value, field, _tables(tuple(conf.get().codecs))[0], 0)


def _encoded(value: Any, path: str, codecs: dict[type[Any], Codec], depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN or depth > MAX_DEPTH:
        return value
    if isinstance(value, dict):
        found = {key: _encoded(item, f"{path}.{key}", codecs, depth + 1) for key, item in value.items()}
        return {_ESCAPE: found} if _tag(value) is not None else found
    codec = next((codecs[base] for base in kind.__mro__ if base in codecs), None)
    if codec is not None:
        try:
            plain = codec.encode(value)
        except (ValueError, TypeError) as error:
            raise UnserializableParameters(path, f"{path} {error}.") from None
        return {f"${codec.name}": _encoded(plain, path, codecs, depth + 1)}
    if isinstance(value, list | tuple):
        return [_encoded(item, f"{path}[{at}]", codecs, depth + 1) for at, item in enumerate(value)]
    return value


def _tag(value: dict[Any, Any]) -> str | None:
    """Return the only key of a dict if it begins with a dollar sign."""
    if len(value) == 1:
        (key,) = value
        if isinstance(key, str) and key.startswith("$"):
            return key
    return None


def decode(value: Any) -> Any:
    """Return stored JSON with the values that the forms of codecs stand for.

    Raises ``CodecMissing`` for a form whose codec is not in ``CODECS``, ``ArgumentGone`` for an instance that was
    deleted, and ``ArgumentUnreadable`` for a form that its codec does not understand.
    """
    return _decoded(value, _tables(tuple(conf.get().codecs))[1])


def check_forms(value: Any, field: str) -> None:
    """Raise ``InvalidTaskData`` for submitted JSON with a form that ``decode`` would not understand."""
    try:
        _decoded(value, _tables(tuple(conf.get().codecs))[1], only_check=True)
    except (ArgumentUnreadable, CodecMissing) as error:
        raise InvalidTaskData(field, f"{field}: {error}") from None


def _decoded(value: Any, codecs: dict[str, Codec], *, only_check: bool = False) -> Any:
    if isinstance(value, list):
        return [_decoded(item, codecs, only_check=only_check) for item in value]
    if not isinstance(value, dict):
        return value
    tag = _tag(value)
    inner = value if tag is None else value[tag]
    if tag is None or (tag == _ESCAPE and isinstance(inner, dict)):
        return {key: _decoded(item, codecs, only_check=only_check) for key, item in inner.items()}
    inner = _decoded(inner, codecs, only_check=only_check)
    codec = codecs.get(tag)
    if codec is None:
        if tag[1:] in READY or "." in tag:
            raise CodecMissing(f"An argument needs the codec {tag[1:]!r}, which is not in TASKQUEUE CODECS.")
        return {tag: inner}
    try:
        return codec.check(inner) if only_check else codec.decode(inner)
    except (ValueError, TypeError, ArithmeticError, LookupError, binascii.Error) as error:
        raise ArgumentUnreadable(f"{value!r:.100} is no {codec.name}: {error}") from None


def encode_call(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the arguments of a call as they are stored; other types than the queue takes stay for its checks."""
    encoded = encode(args, "args") if type(args) in {list, tuple} else args
    if type(kwargs) is not dict:
        return encoded, kwargs
    return encoded, {name: encode(value, f"parameters.{name}") for name, value in kwargs.items()}


def may_hold_forms(*texts: str) -> bool:
    """Return whether codecs are on and stored JSON texts may contain a form of one."""
    return any('{"$' in text for text in texts) and are_on()


def decode_call(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments for the function; raise as ``decode`` does."""
    return decode(args), {name: decode(value) for name, value in kwargs.items()}


def real_result(value: Any) -> Any:
    """Return a stored result with real values; as it is stored if its codecs are gone or an instance was deleted."""
    if not are_on():
        return value
    try:
        return decode(value)
    except (CodecMissing, ArgumentGone, ArgumentUnreadable):
        return value
