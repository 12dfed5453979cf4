"""The kinds of values in requests, each with its check and its JSON Schema."""

import re
import uuid
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from queue_app import conf
from queue_app.api.serializers.base import Check, Field, ListOf, OneOrSeveral, Schema
from queue_app.core.options import API_NAMES, DEFAULTS, FILTERS, OPTIONS, Door, Duration, Names, Text, Whole, at
from queue_app.core.parsing import timestamp
from queue_app.core.payload import dump_json
from queue_app.core.priorities import BAND_NAMES, parse_band
from queue_app.exceptions import InvalidTaskData
from queue_app.models.fields import NAME_LENGTH, USER_LENGTH
from queue_app.models.operation import REASON_LENGTH
from queue_app.models.queue import (
    MAX_FAIR_WEIGHT,
    MAX_FAIR_WEIGHTS,
    MIN_FAIR_WEIGHT,
    FairWeightsField,
    check_fair_weights,
)
from queue_app.services.enqueue.validate import check_capabilities, check_queue_name, check_text

TEXT_LENGTH: Final = 255
MAX_CHOICES: Final = 20  # values of one filter
NAME: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": NAME_LENGTH,
    "pattern": r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$",
}
UUID: Final[Schema] = {"type": "string", "format": "uuid"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
OBJECT: Final[Schema] = {"type": "object"}
FAIR_WEIGHTS: Final[Schema] = {
    "type": "object",
    "maxProperties": MAX_FAIR_WEIGHTS,
    "propertyNames": {"minLength": 1, "maxLength": USER_LENGTH},
    "additionalProperties": {"type": "number", "minimum": MIN_FAIR_WEIGHT, "maximum": MAX_FAIR_WEIGHT},
}
_UUID: Final = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER: Final = (int, float)


def text(most: int = TEXT_LENGTH, least: int = 1, **options: Any) -> Field:
    """Visible text of a bounded length."""
    return Field(
        partial(check_text, limit=most, allow_blank=not least),
        {"type": "string", "maxLength": most} | ({"minLength": least} if least else {}),
        **options,
    )


def reason(**options: Any) -> Field:
    """The reason of an action, which may be empty."""
    return text(REASON_LENGTH, 0, **options)


def tail(most: int | Callable[[], int], after: str = "", **options: Any) -> Field:
    """Any text; its last ``most`` characters are kept, and characters that a row cannot hold are escaped.

    With ``after``, a longer text is kept from such a character on: a part of a secret would not be masked.
    """

    def check(value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise InvalidTaskData(name, f"{name} must be a string.", code="string_expected")
        length = most if isinstance(most, int) else most()
        kept = value.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
        if len(kept) <= length:
            return kept
        cut = kept[-length:] if length else ""
        return cut.partition(after)[2] if after in cut and after else cut

    return Field(check, {"type": "string"}, **options)


def name(**options: Any) -> Field:
    """The name of a queue or capability."""
    return Field(lambda value, _: check_queue_name(value), NAME, **options)


def word(known: Iterable[str], code: str = "unknown_choice", **options: Any) -> Field:
    """One of the ``known`` words."""
    words = [str(one) for one in known]
    return Field(choice(words, code), {"type": "string", "enum": words}, **options)


def choice(known: Collection[str], code: str) -> Check:
    """Return a check for one of the ``known`` words."""

    def check(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in known:
            listed = ", ".join(one or '""' for one in known)
            raise InvalidTaskData(name, f"{value!r:.60} is unknown; {name:.80} takes {listed}.", code=code)
        return value

    return check


def band(**options: Any) -> Field:
    """The name of a band."""
    return Field(
        lambda value, name: parse_band(check_text(value, name, TEXT_LENGTH), field=name),
        {"type": "string", "enum": [*BAND_NAMES, "medium"]},
        **options,
    )


def identifier(**options: Any) -> Field:
    """A UUID."""
    return Field(uuid_of, UUID, **options)


def uuid_of(value: Any, name: str) -> uuid.UUID:
    """Accept a UUID in its usual spelling."""
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise InvalidTaskData(name, f"{name} must be a UUID.", code="invalid_id")
    return uuid.UUID(value)


def moment(check: Callable[[datetime], Any] = lambda found: found, **options: Any) -> Field:
    """A date and time with a zone."""
    return Field(lambda value, name: check(timestamp(value, name)), TIME, **options)


def digits(value: str, name: str) -> int:
    """Accept a number in digits that a row can hold."""
    if not re.fullmatch("[0-9]{1,9}", value, re.ASCII):
        raise InvalidTaskData(name, f"{name} must be a whole number.", code="integer_expected")
    return int(value)


def flag(**options: Any) -> Field:
    """True or false."""

    def check(value: Any, name: str) -> bool:
        if not isinstance(value, bool):
            raise InvalidTaskData(name, f"{name} must be true or false.", code="boolean_expected")
        return value

    parse = choice(("true", "false"), "boolean_expected")
    return Field(check, {"type": "boolean"}, lambda value, name: parse(value, name) == "true", **options)


def whole(low: int, high: int, **options: Any) -> Field:
    """A whole number."""

    def check(value: Any, name: str) -> int:
        if type(value) is float and value.is_integer():  # JSON Schema, too, counts 3.0 as an integer
            value = int(value)
        if type(value) is not int:
            raise InvalidTaskData(name, f"{name} must be a whole number.", code="integer_expected")
        return _within(value, name, low, high)

    def parse(value: str, name: str) -> int:
        if not _WHOLE.fullmatch(value):
            raise InvalidTaskData(name, f"{name} must be a whole number.", code="integer_expected")
        return int(value)

    return Field(check, {"type": "integer", "minimum": low, "maximum": high}, parse, **options)


def number(low: float, high: float, *, above: bool = False, **options: Any) -> Field:
    """A number from ``low`` to ``high``; with ``above``, greater than ``low``."""

    def check(value: Any, name: str) -> float:
        if type(value) not in _NUMBER:
            raise InvalidTaskData(name, f"{name} must be a number.", code="number_expected")
        if above and value == low:
            raise InvalidTaskData(name, f"{name} must be more than {low:g}.", code="out_of_range")
        return float(_within(value, name, low, high))

    return Field(check, {"type": "number", "exclusiveMinimum" if above else "minimum": low, "maximum": high}, **options)


def _within[N: float](value: N, name: str, low: N, high: N) -> N:
    if not low <= value <= high:
        message = f"{name} must be between {_plain(low)} and {_plain(high)}."
        raise InvalidTaskData(name, message, code="out_of_range", limit=int(high))
    return value


def _plain(bound: float) -> float:
    return int(bound) if float(bound).is_integer() else bound


def json_object(value: Any, name: str) -> dict[str, Any]:
    """Accept a JSON object."""
    if not isinstance(value, dict):
        raise InvalidTaskData(name, f"{name} must be an object with string keys.", code="object_expected")
    return value


def _weights(value: Any, name: str) -> dict[str, Any]:
    try:
        check_fair_weights(found := json_object(value, name))
    except ValidationError as error:
        raise InvalidTaskData(name, str(error.message)) from None
    return found


def payload_object(**options: Any) -> Field:
    """A JSON object that the services check further."""
    return Field(json_object, OBJECT, **options)


def payload(**options: Any) -> Field:
    """Any JSON value, as text; null is nothing."""
    return Field(lambda value, name: dump_json(value, field=name, limits=conf.get().payload), {}, **options)


def several(child: Field, **options: Any) -> OneOrSeveral:
    """A filter that takes one value or several."""
    return OneOrSeveral(child, MAX_CHOICES, least=1, **options)


def sorted_set(child: Field, most: int, **options: Any) -> ListOf:
    """A list without order; repeats are dropped."""
    return ListOf(child, most, into=lambda items: tuple(sorted(set(items))), **options)


def options_at(door: Door, *, nullable: bool) -> dict[str, Field]:
    """Return the fields of the options that may be set at a door, by their names; null is a missing one."""
    return {
        API_NAMES[each]: _option(each, allow_null=nullable or DEFAULTS[each] is None, help_text=about.sentence)
        for each, about in at(door).items()
    }


def option_filters() -> dict[str, Field]:
    """Return the fields of the options that lists of tasks can be filtered by."""
    return {API_NAMES[each]: _option(each, help_text="Exactly this value.") for each in FILTERS}


def _option(option: str, **more: Any) -> Field:
    if option != API_NAMES[option]:
        more["source"] = option
    match OPTIONS[option].kind:
        case Names(most):
            return ListOf(name(), most, into=check_capabilities, **more)
        case Text(most, blank):
            return text(most, int(not blank), **more)
        case Whole(low, high):
            return whole(low, high, **more)
        case Duration(high):
            return number(0, high, above=True, **more)


def column(model: type[models.Model], column_name: str, **options: Any) -> Field:
    """Return the field of a model's column, with the column's choices and limits; null if the column has null."""
    found: Any = model._meta.get_field(column_name)  # noqa: SLF001 - Django's documented way to a model's fields
    lows = [0, *(v.limit_value for v in found.validators if isinstance(v, MinValueValidator))]
    highs = [MAX_NUMBER, *(v.limit_value for v in found.validators if isinstance(v, MaxValueValidator))]
    options = {"allow_null": found.null, "help_text": str(found.help_text)} | options
    if isinstance(found, FairWeightsField):
        return Field(_weights, FAIR_WEIGHTS, **options)
    if found.choices:
        words = [*([""] if found.blank else []), *(value for value, _ in found.choices)]
        known = choice(words, "unknown_choice")

        def check(value: Any, name: str) -> Any:
            return known(found.to_python(value) if isinstance(value, str) else value, name)

        return Field(check, {"type": "string", "enum": words}, **options)
    for kind, make in _COLUMNS:
        if isinstance(found, kind):
            return make(max(lows), min(highs), **options)
    return payload_object(**options)


MAX_NUMBER: Final = 10**9
MAX_TEXT: Final = 10_000
_COLUMNS: Final[tuple[tuple[Any, Callable[..., Field]], ...]] = (
    (models.IntegerField, whole),
    (models.FloatField, number),
    (models.BooleanField, lambda _low, _high, **options: flag(**options)),
    (models.DateTimeField, lambda _low, _high, **options: moment(**options)),
    ((models.CharField, models.TextField), lambda _low, _high, **options: multiline(**options)),
)


def multiline(**options: Any) -> Field:
    """Text of several lines, such as a description."""

    def check(value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise InvalidTaskData(name, f"{name} must be a string.", code="string_expected")
        if len(value) > MAX_TEXT:
            message = f"{name} has {len(value)} characters; the limit is {MAX_TEXT}."
            raise InvalidTaskData(name, message, limit=MAX_TEXT)
        if "\x00" in value:
            raise InvalidTaskData(name, f"{name} contains a NUL character.", code="invalid_characters")
        return value

    return Field(check, {"type": "string", "maxLength": MAX_TEXT}, **options)
