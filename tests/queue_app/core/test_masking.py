"""Values that are masked because of their key."""

from __future__ import annotations

import pytest

from queue_app.core.masking import MASK, is_secret, mask


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "Password",
        "db_password",
        "userPassword",
        "api_token",
        "APIKey",
        "api-key",
        "x-api-key",
        "client_secret",
        "Authorization",
        "private_key",
        "privateKey",
        "AWS_ACCESS_KEY",
        "credentials",
        "session cookie",
    ],
)
def test_secret(key):
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "key",
        "max_tokens",
        "tokens",
        "primary_key",
        "passage",
        "secretary",
        "author",
        "keyboard",
        "ключ",
        "passport",
    ],
)
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
