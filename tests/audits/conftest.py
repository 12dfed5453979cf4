"""Servers, workers and clients for audits, which walk through every door of the project."""

# ruff: noqa: F401 - fixtures are used by name
from tests.queue_app.conftest import engine, forgetful_process, history, index, index_way
from tests.queue_app.services.conftest import transactional_db
from tests.workers.conftest import captured, exporter, hire, rows
