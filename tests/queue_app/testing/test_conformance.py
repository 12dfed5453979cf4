"""The conformance suite on our backends, on Django's and on django-tasks-db, with their known differences."""

# ruff: noqa: RUF012 - the attributes of a suite are settings
import logging
import sys

import pytest
from django.contrib import admin
from django.core.management import call_command
from django.db import connection

from queue_app.services.upkeep.promote import make_due
from queue_app.testing.conformance import TASKS_MODULE, BackendConformance
from tests.workers.stage import StillWorker


@pytest.fixture(autouse=True)
def no_tasks_left(known_tasks):
    """Remove the tasks of the suite: other tests check the registry."""
    yield
    sys.modules.pop(TASKS_MODULE, None)


@pytest.mark.usefixtures("engine")
class TestOurs(BackendConformance):
    backend = {"BACKEND": "queue_app.backend.TaskQueueBackend"}
    transactional = True

    def run_pending(self):
        make_due()
        StillWorker(concurrency=1).until_empty()


@pytest.mark.django_db
class TestInTests(BackendConformance):
    backend = {"BACKEND": "queue_app.testing.TestingBackend"}
    transactional = True

    def run_pending(self):
        self.default.drain()


class TestImmediate(BackendConformance):
    backend = {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}
    immediate = True


class TestDummy(BackendConformance):
    backend = {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}
    runs = False


@pytest.fixture
def peer_installed(transactional_db, settings):
    """Install the app and its table for one test."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_tasks_db"]
    from django_tasks_db.models import DBTaskResult  # noqa: PLC0415 - models need an installed app

    with connection.schema_editor() as editor:
        editor.create_model(DBTaskResult)
    yield
    with connection.schema_editor() as editor:
        editor.delete_model(DBTaskResult)
    if admin.site.is_registered(DBTaskResult):
        admin.site.unregister(DBTaskResult)


@pytest.fixture
def quiet_peer():
    """Restore the loggers, which its command configures permanently."""
    loggers = [logging.getLogger(name) for name in ("django.tasks", "django_tasks_db")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers = handlers


@pytest.mark.usefixtures("quiet_peer", "peer_installed")
class TestDjangoTasksDb(BackendConformance):
    backend = {"BACKEND": "django_tasks_db.backend.DatabaseBackend"}
    transactional = True
    known_differences = {
        "test_signals_of_a_task_that_succeeds": "its worker sends the backend itself as the sender, not its class",
        "test_signals_of_a_task_that_fails": "the same, for the signal that a task has started",
    }

    def run_pending(self):
        call_command(
            "db_worker", batch=True, interval=0, startup_delay=False, reload=False, queue_name="*", verbosity=0
        )


def test_a_known_difference_must_name_a_test():
    with pytest.raises(TypeError, match="test_nonsense"):
        type("Wrong", (BackendConformance,), {"known_differences": {"test_nonsense": "?"}})
