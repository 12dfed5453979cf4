"""Values that are masked because of their key."""

from __future__ import annotations

import pytest

from queue_app.core.redaction import MASK, is_secret, mask, redact_value, secrets_of, unmask
from queue_app.exceptions import InvalidTaskData

SECRET = (
    "password, Password, db_password, userPassword, api_token, APIKey, api-key, x-api-key, client_secret,"
    " Authorization, private_key, privateKey, AWS_ACCESS_KEY, credentials, session cookie"
)
HARMLESS = ", key, max_tokens, tokens, primary_key, passage, secretary, author, keyboard, ключ, passport"


@pytest.mark.parametrize("key", SECRET.split(", "))
def test_secret(key):
    assert is_secret(key)


@pytest.mark.parametrize("key", HARMLESS.split(", "))
def test_not_secret(key):
    assert not is_secret(key)


def test_mask_replaces_whole_values_at_any_depth_and_nothing_else():
    value = {"a": [1, {"token": {"deep": 1}, "b": None}], "password": "", "pin": 1, "secret": None, "api_key": 0}
    assert mask(value) == {
        "a": [1, {"token": MASK, "b": None}],
        "password": "",
        "pin": 1,
        "secret": None,
        "api_key": MASK,
    }
    assert value["a"][1]["token"] == {"deep": 1}


# -- unmask: unchanged parts keep their real values, and no mask becomes a value ---------------------


URL = "https://me:swordfish@example.org/"
SHOWN_URL = f"https://me:{MASK}@example.org/"


def edit(original, edited):
    return unmask(edited, redact_value(original, secrets_of(original)), original)


# original, edited, expected
@pytest.mark.parametrize(
    ("original", "edited", "meant"),
    [
        ({"password": "pw", "n": 1}, {"password": MASK, "n": 2}, {"password": "pw", "n": 2}),
        ({"password": "pw"}, {"password": "new"}, {"password": "new"}),
        ({"password": "pw", "n": 1}, {"n": 1}, {"n": 1}),
        ({"password": "pw"}, {"password": MASK, "x": [1, None]}, {"password": "pw", "x": [1, None]}),
        ({"a": {"token": ["t", 1]}}, {"a": {"token": MASK, "b": 1}}, {"a": {"token": ["t", 1], "b": 1}}),
        ({"url": URL, "n": 1}, {"url": SHOWN_URL, "n": 2}, {"url": URL, "n": 2}),
        ({"url": URL}, {"url": URL, "n": 1}, {"url": URL, "n": 1}),
        ({"log": f"said {MASK}"}, {"log": f"said {MASK}", "n": 1}, {"log": f"said {MASK}", "n": 1}),
        ({"n": 1}, {"n": True}, {"n": True}),
        ({"n": 1}, {"n": 1.0}, {"n": 1.0}),
        ({}, {"n": 1}, {"n": 1}),
    ],
)
def test_what_is_meant(original, edited, meant):
    found = edit(original, edited)
    assert found == meant
    assert repr(found) == repr(meant), "types too"


TWO = [{"token": "one", "n": 1}, {"token": "two", "n": 2}]


@pytest.mark.parametrize(
    ("edited", "meant"),
    [
        ([{"token": MASK, "n": 1}, {"token": MASK, "n": 3}], [{"token": "one", "n": 1}, {"token": "two", "n": 3}]),
        ([{"token": MASK, "n": 2}, {"token": MASK, "n": 1}], TWO[::-1]),
        ([{"token": MASK, "n": 2}], TWO[1:]),
        (
            [{"token": MASK, "n": 2}, {"token": "new", "n": 3}, {"token": MASK, "n": 1}],
            [TWO[1], {"token": "new", "n": 3}, TWO[0]],
        ),
    ],
)
def test_items_of_a_list_keep_their_own_secrets(edited, meant):
    assert edit({"hosts": TWO}, {"hosts": edited}) == {"hosts": meant}


@pytest.mark.parametrize(
    ("original", "edited", "path"),
    [
        ({"password": "pw"}, {"note": MASK}, "parameters.note"),
        ({"n": 1}, {"password": MASK}, "parameters.password"),
        ({"password": "pw", "n": 1}, {"password": MASK, "n": MASK}, "parameters.n"),
        ({"password": "pw"}, {"password": [MASK]}, "parameters.password[0]"),
        ({"password": "pw"}, {"password": f"{MASK}x"}, "parameters.password"),
        ({"url": URL}, {"url": f"{SHOWN_URL}other"}, "parameters.url"),
        ({"hosts": TWO}, {"hosts": [{"token": MASK, "n": 9}]}, "parameters.hosts[0].token"),
        ({"a": 1}, {"a": {"deep": [{"token": MASK}]}}, "parameters.a.deep[0].token"),
        ({"hosts": [{"token": "x"}, {"token": "y"}]}, {"hosts": [{"token": MASK}]}, "parameters.hosts[0].token"),
    ],
)
def test_a_mask_elsewhere_is_refused(original, edited, path):
    with pytest.raises(InvalidTaskData) as refused:
        edit(original, edited)
    assert (refused.value.field, refused.value.code) == (path, "masked_value")
