"""The demo checks the outcome of its tasks."""

import pytest

from queue_app.models import Task
from taskqueue_project.demo import tasks
from taskqueue_project.demo.verdict import _broken, _flaky


@pytest.mark.parametrize(
    ("ended", "as_expected"),
    [
        ({"status": "completed", "failures": 2, "attempt": 3}, True),
        ({"status": "completed", "failures": 2, "attempt": 5}, True),  # prefetched claims that were returned
        ({"status": "completed", "failures": 1, "attempt": 3}, False),
        ({"status": "executing", "failures": 2, "attempt": 3}, False),
    ],
)
def test_the_flaky_task_succeeds_after_two_failures_however_often_it_was_claimed(ended, as_expected):
    found = _flaky(Task(**ended))
    assert found.is_met is as_expected
    assert found.detail == f"{ended['status']} on attempt {ended['failures'] + 1}"
    assert tasks.SUCCEEDS_ON_ATTEMPT == 3


def test_the_failing_task_has_its_number_of_failures(db):
    assert _broken(Task(status="failed", failures=2, attempt=4)).detail == "failed after 2 attempts"


def test_a_missing_task_is_no_success():
    assert _flaky(None).is_met is False
