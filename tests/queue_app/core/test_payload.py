"""dump_json: plain JSON within limits, or an error with the path of the invalid value."""

import json
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum

import pytest
from django.utils.safestring import mark_safe
from hypothesis import given, settings, strategies as st

from queue_app.core.payload import PayloadLimits, dump_json
from queue_app.exceptions import InvalidTaskData, PayloadTooLarge, UnserializableParameters

LIMITS = PayloadLimits()


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Plain(Enum):
    X = "x"


def nested(levels: int, kind: type = list) -> object:
    """Return nested containers."""
    value: object = kind()
    for _ in range(levels - 1):
        value = [value] if kind is list else {"k": value}
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ({}, "{}"),
        ({"a": [1, -2.5, True, None, "ü\n"]}, '{"a":[1,-2.5,true,null,"ü\\n"]}'),
        ((1, (2,)), "[1,[2]]"),
        ("😀", '"😀"'),
        (2**53, "9007199254740992"),
        ({"": {"": ""}}, '{"":{"":""}}'),
        (1e308, "1e+308"),
        ([Colour.RED, Number.ONE, mark_safe("x")], '["red",1,"x"]'),
    ],
)
def test_plain_values(value, text):
    assert dump_json(value, field="args", limits=LIMITS) == text


NOT_JSON = {
    "bytes": (b"x", "not_json"),
    "Decimal": (Decimal(1), "not_json"),
    "set": ({1}, "not_json"),
    "object": (object(), "not_json"),
    "enum": (Plain.X, "not_json"),
    "NaN": (float("nan"), "non_finite_number"),
    "infinity": (float("inf"), "non_finite_number"),
    "beyond 2^53": (2**53 + 1, "number_out_of_range"),
    "5000 digits": (10**5000, "number_out_of_range"),
    "NUL": ("a\x00b", "nul_not_allowed"),
    "lone surrogate": ("a\ud800", "invalid_unicode"),
}


@pytest.mark.parametrize("case", NOT_JSON)
def test_other_values_are_refused_with_their_path(case):
    value, code = NOT_JSON[case]
    with pytest.raises(UnserializableParameters) as refused:
        dump_json({"list": [0, {"deep": value}]}, field="parameters", limits=LIMITS)
    assert (refused.value.field, refused.value.code) == ("parameters.list[1].deep", code)
    assert "parameters.list[1].deep" in str(refused.value)
    assert isinstance(refused.value, TypeError)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (1, "not_json"),
        ("a\x00", "nul_not_allowed"),
        ("\udc00", "invalid_unicode"),
    ],
)
def test_keys_are_plain_text(key, code):
    for value, path in (({"a": {key: 1}}, "parameters.a"), ({key: 1}, "parameters"), ({"ok": 1, key: 1}, "parameters")):
        with pytest.raises(UnserializableParameters) as refused:
            dump_json(value, field="parameters", limits=LIMITS)
        assert (refused.value.field, refused.value.code) == (path, code)


@pytest.mark.parametrize("kind", [list, dict])
def test_depth(kind):
    dump_json(nested(32, kind), field="args", limits=LIMITS)
    for levels in (33, 900, 100_000):
        with pytest.raises(PayloadTooLarge) as refused:
            dump_json(nested(levels, kind), field="args", limits=LIMITS)
        assert (refused.value.code, refused.value.limit, refused.value.field) == ("too_deep", 32, "args")


def test_a_value_that_contains_itself():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(PayloadTooLarge) as refused:
        dump_json(loop, field="args", limits=LIMITS)
    assert refused.value.code == "too_deep"


@pytest.mark.parametrize(
    "wide", [lambda n: [0] * n, lambda n: {str(i): 0 for i in range(n)}, lambda n: [[0]] * (n // 2)]
)
def test_number_of_values(wide):
    limits = PayloadLimits(max_nodes=101)
    dump_json(wide(100), field="args", limits=limits)
    with pytest.raises(PayloadTooLarge) as refused:
        dump_json(wide(102), field="args", limits=limits)
    assert (refused.value.code, refused.value.limit) == ("too_many_nodes", 101)


def test_a_very_wide_value_is_refused_without_being_walked():
    with pytest.raises(PayloadTooLarge):
        dump_json({"a": [0] * 1_000_000}, field="args", limits=LIMITS)


@pytest.mark.parametrize("letter", ["x", "ü", "😀"])
def test_size_counts_bytes(letter):
    width = len(letter.encode())
    limits = PayloadLimits(max_bytes=2 + 10 * width)
    dump_json(letter * 10, field="args", limits=limits)
    with pytest.raises(PayloadTooLarge) as refused:
        dump_json(letter * 11, field="args", limits=limits)
    assert (refused.value.code, refused.value.limit) == ("payload_too_large", limits.max_bytes)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=40)
@given(json_values)
def test_accepted_values_survive_a_round_trip(value):
    code = refusal(value, LIMITS.max_nodes)
    assert code in {"", "nul_not_allowed", "invalid_unicode", "too_deep"}
    if not code:
        assert json.loads(dump_json(value, field="args", limits=LIMITS)) == value


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.characters() | st.lists(st.none()) | st.binary()


def refusal(value: object, max_nodes: int) -> str:
    """Return the code with which a value is refused, "" if it is accepted."""
    try:
        dump_json(value, field="parameters", limits=PayloadLimits(max_nodes=max_nodes))
    except InvalidTaskData as refused:
        return refused.code
    return ""


@given(st.dictionaries(st.characters() | st.integers(), anything, max_size=20), st.integers(1, 20))
def test_a_flat_object_which_is_checked_quickly_is_refused_as_one_within_a_list(value, max_nodes):
    assert refusal(value, max_nodes) == refusal([value], max_nodes + 1)
