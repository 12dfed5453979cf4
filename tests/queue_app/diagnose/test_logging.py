"""The doctor reports a LOGGING that hides failures of tasks. Each case configures a process of its own."""

import json
import subprocess
import sys

import pytest

from queue_app.core.reasons import Level

CONSOLE = {"class": "logging.StreamHandler"}
#: Sets Django up once, and examines each configuration in a process that is forked from there.
EXAMINE = """
import json, logging, os, sys
from logging.config import dictConfig
import django
from django.conf import settings
settings.LOGGING_CONFIG = None
django.setup()
from queue_app.diagnose import doctor
logging.getLogger(doctor.LOGGER)  # exists before LOGGING is read, as after an import in the settings
for configured in json.loads(sys.argv[1]):
    if os.fork() == 0:
        dictConfig({"version": 1, "disable_existing_loggers": False} | configured)
        [finding] = doctor.check_logging()
        print(json.dumps([finding.level, finding.message, finding.hint]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, configured
"""
CASES = [
    ({}, Level.OK, "no handler for the queue"),
    ({"handlers": {"a": CONSOLE}, "root": {"handlers": ["a"]}}, Level.OK, "has a handler"),
    ({"handlers": {"a": CONSOLE}, "loggers": {"taskqueue": {"handlers": ["a"]}}}, Level.OK, "has a handler"),
    ({"disable_existing_loggers": True}, Level.FAIL, "switches the logger 'taskqueue' off"),
    ({"loggers": {"taskqueue": {"level": "CRITICAL"}}}, Level.FAIL, "nothing of the level ERROR"),
    ({"handlers": {"a": CONSOLE | {"level": "CRITICAL"}}, "root": {"handlers": ["a"]}}, Level.FAIL, "no handler"),
    ({"handlers": {"a": CONSOLE}, "loggers": {"shop": {"handlers": ["a"]}}}, Level.OK, "no handler for the queue"),
]


@pytest.fixture(scope="module")
def findings() -> list[list[str]]:
    ran = subprocess.run(
        [sys.executable, "-c", EXAMINE, json.dumps([configured for configured, _, _ in CASES])],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize(("number", "level", "text"), [(at, level, text) for at, (_, level, text) in enumerate(CASES)])
def test_what_logging_shows(findings, number, level, text):
    found, message, hint = findings[number]
    assert (found, text in message) == (level, True), message
    assert bool(hint) == (level is Level.FAIL)
