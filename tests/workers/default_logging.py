"""Settings of a project that does not set LOGGING, as most do at first."""

from tests.integration.lean import *  # noqa: F403

LOGGING: dict[str, object] = {}
