"""The doctor reports a LOGGING that hides failures of tasks. Each case configures a process of its own."""

import json
import subprocess
import sys

import pytest

from queue_app.core.finding import Level

CONSOLE = {"class": "logging.StreamHandler"}
EXAMINE = """
import json, logging, sys
from logging.config import dictConfig
import django
from django.conf import settings
settings.LOGGING_CONFIG = None
django.setup()
from queue_app.services import doctor
logging.getLogger(doctor.LOGGER)  # exists before LOGGING is read, as after an import in the settings
dictConfig({"version": 1, "disable_existing_loggers": False} | json.loads(sys.argv[1]))
[finding] = doctor.check_logging()
print(json.dumps([finding.level, finding.message, finding.hint]))
"""


@pytest.mark.parametrize(
    ("configured", "level", "text"),
    [
        ({}, Level.OK, "no handler for the queue"),
        ({"handlers": {"a": CONSOLE}, "root": {"handlers": ["a"]}}, Level.OK, "has a handler"),
        ({"handlers": {"a": CONSOLE}, "loggers": {"taskqueue": {"handlers": ["a"]}}}, Level.OK, "has a handler"),
        ({"disable_existing_loggers": True}, Level.FAIL, "switches the logger 'taskqueue' off"),
        ({"loggers": {"taskqueue": {"level": "CRITICAL"}}}, Level.FAIL, "nothing of the level ERROR"),
        ({"handlers": {"a": CONSOLE | {"level": "CRITICAL"}}, "root": {"handlers": ["a"]}}, Level.FAIL, "no handler"),
        ({"handlers": {"a": CONSOLE}, "loggers": {"shop": {"handlers": ["a"]}}}, Level.OK, "no handler for the queue"),
    ],
)
def test_what_logging_shows(configured, level, text):
    ran = subprocess.run(
        [sys.executable, "-c", EXAMINE, json.dumps(configured)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    found, message, hint = json.loads(ran.stdout)
    assert (found, text in message) == (level, True), message
    assert bool(hint) == (level is Level.FAIL)
