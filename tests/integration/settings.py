"""Settings of the processes that tests start: those of the tests, with an app of tasks, and a log to read."""

from taskqueue_project.settings.test import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.integration.app"]  # noqa: F405
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"taskqueue": {"handlers": ["console"], "level": "INFO"}},
}
