"""Settings of a project of which two versions run at once: PYTHONPATH says which one a process has."""

from tests.integration.lean import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "rolling_shop"]  # noqa: F405
