"""The backend of tests for a test or a block, eager or not, and what its context reports."""

import logging
from datetime import timedelta
from functools import partial

import pytest
from django.core.management import call_command
from django.db import connection
from django.tasks import TaskResultStatus, task_backends
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from django.utils import timezone

from queue_app import task
from queue_app.backend import TaskQueueBackend
from queue_app.index import get_index
from queue_app.testing import MemoryBackend, drain, enqueued, freeze, override_queue
from queue_app.testing.clock import current

ran: list[int] = []


@task
def note(number: int) -> int:
    ran.append(number)
    return number


@task(takes_context=True, timeout=10, max_retries=0)
def long(context, seconds: float, more: float = 0) -> None:
    context.progress(0.5, "half")
    if more:
        context.extend(more)
    with context.shield():
        current().advance(seconds)


@task(max_retries=0)
def breaks() -> None:
    raise ValueError("no good")


@pytest.fixture(autouse=True)
def clean():
    ran.clear()


@pytest.mark.django_db
def test_eager_tasks_run_when_they_are_enqueued():
    with override_queue(eager=True) as backend:
        assert isinstance(backend, MemoryBackend)
        assert note.enqueue(1).return_value == 1
        later = note.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(2)
        assert (ran, later.status) == ([1], TaskResultStatus.READY)
    assert isinstance(task_backends["default"], TaskQueueBackend)


def test_the_checks_know_its_options():
    with override_queue(eager=True, limits={"default": {"paused": True}}) as backend:
        assert backend.check() == []


@pytest.mark.django_db
@override_queue(limits={"default": {"rate_count": 1, "rate_seconds": 60}})
def test_a_function_with_limits():
    note.enqueue(1)
    note.enqueue(2)
    assert len(drain()) == 1


@override_queue(eager=True)
class EagerCase(TestCase):
    """A test case of Django."""

    def setUp(self):
        self.first = note.enqueue(1)

    def test_setup_runs_with_the_backend_too(self):
        assert self.first.return_value == note.enqueue(1).return_value == 1


@override_queue()
class DatabaselessCase(SimpleTestCase):
    """A test case that may not use the database."""

    def test_it_is_told_what_to_do(self):
        for use in (partial(note.enqueue, 1), drain, enqueued):
            with pytest.raises(AssertionError, match="subclass TestCase"):
                use()

    def test_functions_need_no_database(self):
        with freeze() as clock:
            clock.advance(5)
            assert (note.func(1), timezone.now()) == (1, clock.now)


def test_after_the_test_case_the_project_has_its_backend():
    assert isinstance(task_backends["default"], TaskQueueBackend)


@pytest.mark.task_queue(eager=True)
def test_the_marker_makes_the_fixture_eager(task_queue):
    assert note.enqueue(3).return_value == 3
    assert isinstance(task_queue, MemoryBackend)


@pytest.mark.task_queue(real=True)
def test_the_marker_keeps_the_real_queue_and_names_its_index_for_the_test_database(task_queue):
    assert isinstance(task_queue, TaskQueueBackend)
    assert get_index().keys.prefix.endswith(f"-{connection.settings_dict['NAME']}}}")


@override_queue(real=True)
class WorkerCase(TransactionTestCase):
    """A test case of Django whose database is emptied after each test, with an index that is not."""

    def test_a_worker_runs_a_task(self):
        result = note.enqueue(4)
        call_command("runworker", burst=True, verbosity=0)
        result.refresh()
        assert result.return_value == 4

    test_a_worker_runs_a_task_again = test_a_worker_runs_a_task


def test_a_real_queue_is_neither_eager_nor_limited():
    with pytest.raises(TypeError, match="leave eager and limits out"):
        override_queue(real=True, eager=True).enable()


def test_progress_and_more_time(task_queue):
    with freeze():
        slow, extended = long.enqueue(11), long.enqueue(11, more=5)
        drain()
        assert (slow.progress.fraction, slow.progress.message) == (0.5, "half")
        assert (task_queue.get_result(slow.id).status, task_queue.get_result(extended.id).status) == (
            TaskResultStatus.FAILED,
            TaskResultStatus.SUCCESSFUL,
        )
        assert note.enqueue(1).progress is None


def test_the_error_of_a_failed_task_is_in_the_output_of_the_test(task_queue, caplog):
    caplog.set_level(logging.ERROR, "taskqueue")
    breaks.enqueue()
    drain()
    (record,) = caplog.records
    assert "no retries are left, it is a dead letter now" in record.getMessage()
    assert "ValueError: no good" in caplog.text
