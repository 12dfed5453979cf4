"""Arguments are compared with what a function takes."""

from __future__ import annotations

import functools
import inspect

import pytest
from django.tasks import task

from queue_app.core.signatures import check_arguments, displayed, taken_by
from queue_app.exceptions import WrongArguments


def plain(a, b=2):
    """Take one or two."""


def keyword_only(a, *, b, c="swordfish"):
    """Take a keyword."""


def positional_only(a, /, b=1):
    """Take a position."""


def anything(*args, **kwargs):
    """Take all."""


@functools.wraps(plain)
def adds_an_argument(*args, **kwargs):
    """Call ``plain`` with another argument than the caller's."""


CALLS = [
    (plain, [1], {}, True),
    (plain, [1], {"b": 2}, True),
    (plain, [], {}, False),
    (plain, [1, 2, 3], {}, False),
    (plain, [1], {"a": 1}, False),
    (plain, [], {"a": 1, "c": 1}, False),
    (keyword_only, [1], {"b": 2}, True),
    (keyword_only, [1], {}, False),
    (positional_only, [1], {}, True),
    (positional_only, [1], {"b": 2}, True),
    (positional_only, [], {"a": 1}, False),
    (anything, [1, 2], {"x": 1}, True),
    (adds_an_argument, [], {}, True),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "fits"), CALLS)
def test_it_agrees_with_python(function, args, kwargs, fits):
    made = task(function)
    try:
        inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    except TypeError:
        assert not fits
        with pytest.raises(WrongArguments) as refused:
            check_arguments(made, args, kwargs)
        assert refused.value.code == "wrong_arguments"
        assert isinstance(refused.value, TypeError)
        assert function.__name__ in str(refused.value)
    else:
        assert fits
        check_arguments(made, args, kwargs)


def with_context(context, order_id):
    """Take the context first."""


def test_the_context_is_not_an_argument():
    made = task(takes_context=True)(with_context)
    check_arguments(made, [1], {})
    check_arguments(made, [], {"order_id": 1})
    with pytest.raises(WrongArguments, match=r"with_context\(order_id\) cannot be called"):
        check_arguments(made, [1, 2], {})


def test_defaults_are_not_displayed():
    assert displayed(taken_by(keyword_only, takes_context=False).signature) == "(a, *, b, c=…)"
