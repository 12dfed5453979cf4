"""Several processes on one database and one index, and the history of every transition."""

# ruff: noqa: F401 - fixtures are used by name
from tests.queue_app.conftest import engine, forgetful_process, history, index, index_way, rows, scene
from tests.queue_app.services.conftest import transactional_db
from tests.workers.conftest import fleet, log
