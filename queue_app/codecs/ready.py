"""The codecs that a project turns on by name, and the codecs for its Enums and dataclasses."""

from __future__ import annotations

import base64
import dataclasses
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, ClassVar, Final
from uuid import UUID

from django.apps import apps
from django.core.exceptions import ObjectDoesNotExist
from django.db import DEFAULT_DB_ALIAS, models
from django.utils.dateparse import parse_duration
from django.utils.duration import duration_iso_string

from queue_app.exceptions import ArgumentGone

MAX_BYTES: Final = 64 * 1024


class Codec:
    """Stores values of ``type``, and of its subclasses, under ``$name``; both methods handle plain JSON."""

    name: ClassVar[str]
    type: ClassVar[type[Any]]

    def encode(self, value: Any) -> Any:
        """Return a value as JSON; values in it may need codecs themselves."""
        return str(value)

    def decode(self, value: Any) -> Any:
        """Return the value; raise ``ValueError`` or ``TypeError`` for JSON that ``encode`` does not make."""
        return self.type(value)

    def check(self, value: Any) -> None:
        """Raise what ``decode`` raises for a form that it does not understand."""
        self.decode(value)


class DecimalCodec(Codec):
    """``{"$decimal": "19.90"}``."""

    name, type = "decimal", Decimal


class UuidCodec(Codec):
    """``{"$uuid": "…"}``."""

    name, type = "uuid", UUID


class PathCodec(Codec):
    """``{"$path": "/srv/a.txt"}``."""

    name, type = "path", PurePath

    def decode(self, value: Any) -> Path:
        return Path(value)


class _Iso(Codec):
    def encode(self, value: Any) -> str:
        return str(value.isoformat())

    def decode(self, value: Any) -> Any:
        return self.type.fromisoformat(value)


class DatetimeCodec(_Iso):
    """``{"$datetime": "2026-01-31T12:00:00+00:00"}``; a zone is stored as its offset."""

    name, type = "datetime", datetime


class DateCodec(_Iso):
    """``{"$date": "2026-01-31"}``."""

    name, type = "date", date

    def encode(self, value: date) -> str:
        if isinstance(value, datetime):  # a subclass of date
            raise TypeError("is a datetime, which needs the codec 'datetime'")
        return super().encode(value)


class TimeCodec(_Iso):
    """``{"$time": "12:00:00"}``."""

    name, type = "time", time


class TimedeltaCodec(Codec):
    """``{"$timedelta": "P0DT01H30M00S"}``, in ISO 8601."""

    name, type = "timedelta", timedelta

    def encode(self, value: timedelta) -> str:
        return duration_iso_string(value)

    def decode(self, value: Any) -> timedelta:
        found = parse_duration(value)
        if found is None:
            raise ValueError("no duration in ISO 8601")
        return found


class BytesCodec(Codec):
    """``{"$bytes": "aGVsbG8="}``, in Base64, of at most 64 KiB."""

    name, type = "bytes", bytes

    def encode(self, value: bytes) -> str:
        if len(value) > MAX_BYTES:
            raise ValueError(f"has {len(value)} bytes; the limit is {MAX_BYTES}. Store them elsewhere, pass their key")
        return base64.b64encode(value).decode()

    def decode(self, value: Any) -> bytes:
        return base64.b64decode(value, validate=True)


class ModelCodec(Codec):
    """``{"$model": ["shop.order", 7]}``: a saved instance, which the worker reads again."""

    name, type = "model", models.Model

    def encode(self, value: models.Model) -> list[Any]:
        """Return the model, the primary key, and the database if it is not ``default``."""
        if value.pk is None or value._state.adding:  # noqa: SLF001 - Django documents it
            raise ValueError("is not saved, so no worker can read it")
        key = value.pk if type(value.pk) in {int, str} else value.serializable_value("pk")
        key = key if type(key) in {int, str} else str(key)
        found, database = [value._meta.label_lower, key], value._state.db  # noqa: SLF001 - as above
        return found if database in {None, DEFAULT_DB_ALIAS} else [*found, database]

    def decode(self, value: Any) -> models.Model:
        """Read the instance; raise ``ArgumentGone`` if it was deleted."""
        label, key, *database = value
        manager = apps.get_model(label)._base_manager  # noqa: SLF001 - Django documents it
        try:
            found: models.Model = manager.using(*database or [DEFAULT_DB_ALIAS]).get(pk=key)
        except ObjectDoesNotExist:
            raise ArgumentGone(f"The {label} {key} no longer exists.") from None
        return found

    def check(self, value: Any) -> None:
        """Look the model up; the instance may be deleted later anyway."""
        label, _key, *_database = value
        apps.get_model(label)


class EnumCodec(Codec):
    """``{"$shop.types.Color": "RED"}``."""

    def __init__(self, kind: type[Enum]) -> None:
        self.name, self.type = _path(kind), kind  # type: ignore[misc] # one codec for each class

    def encode(self, value: Enum) -> str:
        return value.name

    def decode(self, value: Any) -> Enum:
        members: dict[str, Enum] = self.type.__members__
        if value not in members:
            raise ValueError(f"{self.name} has no member {value!r:.40}")
        return members[value]


class DataclassCodec(Codec):
    """``{"$shop.types.Money": {"amount": …}}``."""

    def __init__(self, kind: type[Any]) -> None:
        self.name, self.type = _path(kind), kind  # type: ignore[misc] # as above

    def encode(self, value: Any) -> dict[str, Any]:
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}

    def decode(self, value: Any) -> Any:
        return self.type(**value)


READY: Final[dict[str, type[Codec]]] = {
    kind.name: kind
    for kind in (
        DecimalCodec, UuidCodec, PathCodec, DatetimeCodec, DateCodec, TimeCodec, TimedeltaCodec, BytesCodec, ModelCodec
    )
}  # fmt: skip


def _path(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
