"""Rules between the fields of a body: each checks their values, and says itself as JSON Schema."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from queue_app.exceptions import InvalidTaskData

type Values = Mapping[str, Any]


class Rule(NamedTuple):
    """``check`` takes valid values, and returns the error if they do not go together."""

    check: Callable[[Values], InvalidTaskData | None]
    schema: dict[str, Any]


def not_both(one: str, other: str) -> Rule:
    """Refuse two fields at once; null is nothing."""

    def check(values: Values) -> InvalidTaskData | None:
        if values.get(one) is None or values.get(other) is None:
            return None
        return InvalidTaskData(other, f"Give {one} or {other}, not both.", code="conflicting_fields")

    given = {name: {"not": {"type": "null"}} for name in (one, other)}
    return Rule(check, {"not": {"required": [one, other], "properties": given}})


def one_of(one: str, other: str, missing: str) -> Rule:
    """Demand one of two fields; ``missing`` says so."""

    def check(values: Values) -> InvalidTaskData | None:
        if one not in values and other not in values:
            return InvalidTaskData(one, missing, code="required")
        return not_both(one, other).check(values)

    then = {"not": {"required": [other]}}
    return Rule(check, {"if": {"required": [one]}, "then": then, "else": {"required": [other]}})


def a_change(*, has_reason: bool = False) -> Rule:
    """Demand at least one field besides the reason, where the body has one."""

    def check(values: Values) -> InvalidTaskData | None:
        if values.keys() - {"reason"}:
            return None
        return InvalidTaskData("body", "Name at least one field to change.", code="body_required")

    fields = {"required": ["reason"]}
    counted = {"if": fields, "then": {"minProperties": 2}, "else": {"minProperties": 1}}
    return Rule(check, counted if has_reason else {"minProperties": 1})


def needs(field: str, choices: Iterable[str], name: str, missing: str) -> Rule:
    """Demand ``name`` where ``field`` is one of the choices; ``missing`` says so."""
    found = frozenset(choices)

    def check(values: Values) -> InvalidTaskData | None:
        if values[field] not in found or values.get(name) is not None:
            return None
        return InvalidTaskData(name, missing, code="required")

    then = {"required": [name], "properties": {name: {"not": {"type": "null"}}}}
    return Rule(check, {"if": {"properties": {field: {"enum": sorted(found)}}}, "then": then})


def in_order(column: str, time: str = "") -> Rule:
    """Refuse a range of a time, which the query calls ``time``, that ends before it begins."""
    name = time or column

    def check(values: Values) -> InvalidTaskData | None:
        after, before = values.get(f"{column}_after"), values.get(f"{column}_before")
        if after is None or before is None or before >= after:
            return None
        message = f"{name}_before lies before {name}_after, so nothing can match. Exchange them."
        return InvalidTaskData(f"{name}_before", message, code="reversed_range")

    return Rule(check, {})
