"""Tests of workflows commit for real, as those of services do."""

from tests.queue_app.services.conftest import hand, transactional_db  # noqa: F401
