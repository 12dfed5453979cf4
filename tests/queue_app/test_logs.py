"""Log lines as JSON: one record is one line."""

import json
import logging
import sys

import pytest

from queue_app.core.redaction import redact
from queue_app.logs import ATTRIBUTE, MAX_LINE, JSONFormatter


def line(message="said", *args, exc_info=None, **extra):
    record = logging.getLogger("shop").makeRecord(
        "shop", logging.INFO, "shop.py", 1, message, args, exc_info, extra=extra or None
    )
    text = JSONFormatter().format(record)
    assert "\n" not in text
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= MAX_LINE
    return json.loads(text)


class Broken:
    def __str__(self):
        raise RuntimeError


def raised(error):
    try:
        raise error  # noqa: TRY301 - to have a traceback
    except Exception:  # noqa: BLE001
        return sys.exc_info()


def test_fields_of_every_line():
    found = line("%s sold", "apples", shelf=3)
    assert found.pop("time").endswith("+00:00")
    assert found == {"level": "INFO", "logger": "shop", "message": "apples sold", "shelf": 3}


@pytest.mark.parametrize("text", ['a\r\n{"level":"ERROR"}', "\x1b[2J", "\x7f\x85\u2028\u202e\x00", "\ud800", 'a"b\\'])
def test_text_of_clients_stays_in_its_field(text):
    found = line("got %s", text, shelf=text, **{ATTRIBUTE: {"task_type": text}})
    assert (found["message"], found["shelf"]) == (f"got {text}", text)
    assert found["task_type"] == text
    assert found["level"] == "INFO"


def test_names_that_are_taken_get_an_underscore():
    assert line(level="deep", error="none") | {"time": ""} == {
        "time": "", "level": "INFO", "logger": "shop", "message": "said", "level_": "deep", "error_": "none",
    }  # fmt: skip


def test_secrets_are_masked():
    found = line("redis://u:hunter2@host failed, password=hunter2", api_key="hunter2", deep={"token": "hunter2"})
    assert "hunter2" not in json.dumps(found)
    assert "hunter2" not in json.dumps(line(exc_info=raised(ValueError("Bearer hunter2hunter2"))))


def test_an_exception_comes_with_its_stack():
    found = line(exc_info=raised(ValueError("two\nlines")))
    assert found["error"] == "builtins.ValueError"
    assert found["stack"].endswith("ValueError: two\nlines")
    text = {"traceback": "Traceback of elsewhere"}
    assert line(**{ATTRIBUTE: text})["stack"] == "Traceback of elsewhere"


def test_nothing_raises():
    endless = {}
    endless["self"] = endless
    assert line("%d", "x")["message"] == "(cannot be formatted) %d"
    found = line("%s", Broken(), broken=Broken(), nan=float("nan"), big=10**30, endless=endless, empty="", none=None)
    assert found["message"] == "(cannot be formatted) %s"
    assert (found["broken"], found["nan"]) == ("(a Broken that cannot be shown)", "nan")
    assert found["big"] == str(10**30)
    assert "empty" not in found
    assert "none" not in found
    odd = type("Odd", (Broken, Exception), {})()
    assert line(exc_info=raised(odd))["error"].endswith("Odd")


def test_long_lines_are_cut():
    found = line("é" * 10**6, exc_info=raised(ValueError("é" * 10**6)), **{f"f{i}": "é" * 10**5 for i in range(100)})
    assert found["level"] == "INFO"
    assert line("x" * 10**6, exc_info=raised(ValueError("y" * 10**5)))["stack"].endswith("yyy")


@pytest.mark.parametrize("text", ["é" * 200_000, "a-" * 100_000, "://" * 20_000])
def test_long_words_take_little_time(text):
    assert redact(text) == text
