"""Real commits, as for the services."""

from tests.queue_app.services.conftest import hand, transactional_db  # noqa: F401 - used by name
