"""Tasks with arguments that JSON cannot hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any

from queue_app import task
from queue_app.codecs import Codec

got: list[Any] = []


class Colour(Enum):
    RED = 1
    BLUE = 2


class Size(StrEnum):
    LARGE = "large"


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str = "EUR"
    note: str = field(default="", init=False)


class Temperature:
    def __init__(self, kelvin: float) -> None:
        self.kelvin = kelvin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Temperature) and other.kelvin == self.kelvin

    __hash__ = None


class TemperatureCodec(Codec):
    name, type = "kelvin", Temperature

    def encode(self, value: Temperature) -> float:
        return value.kelvin


@task
def take(value: Any, more: Any = None) -> Any:
    got.append(value)
    return value


@task
async def take_async(value: Any) -> Any:
    got.append(value)
    return value


@task
def next_day(day: date) -> date:
    return date.fromordinal(day.toordinal() + 1)
