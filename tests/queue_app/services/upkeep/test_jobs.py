"""The record of upkeep: when each job succeeded last, why one did not, and how far it has come."""

from datetime import timedelta

import pytest
from django.db import DatabaseError
from django.utils import timezone

from queue_app.models import MaintenanceJob
from queue_app.services.upkeep import jobs
from tests.support.engine import at_once
from tests.support.faults import failing

pytestmark = pytest.mark.both_ways


def test_a_success(rows):
    job = jobs.recorded("j")(lambda n: n)
    before = timezone.now()
    assert job(3) == 3
    row = MaintenanceJob.objects.get(pk="j")
    assert before <= row.started_at <= row.succeeded_at <= timezone.now()
    assert (row.done, row.error) == (3, "")
    assert 0 <= row.seconds < 60


def test_a_failure_keeps_the_last_success_and_says_why(rows):
    outcomes = [5, ValueError("a\nb" + "x" * 5000), 6]

    @jobs.recorded("j")
    def job() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    job()
    first = MaintenanceJob.objects.get()
    with pytest.raises(ValueError, match="a"):
        job()
    row = MaintenanceJob.objects.get()
    assert (row.succeeded_at, row.done) == (first.succeeded_at, 5)
    assert row.started_at > first.started_at
    assert row.error.startswith("ValueError: a bx")
    assert len(row.error) == 1000
    job()
    assert MaintenanceJob.objects.get().error == ""


def test_a_failing_database_is_reported_as_it_is(rows):
    @jobs.recorded("j")
    def job() -> int:
        raise RuntimeError("first")

    with failing(MaintenanceJob, "record", DatabaseError), pytest.raises(RuntimeError, match="first"):
        job()


def test_progress_and_record_do_not_overwrite_each_other(rows):
    assert jobs.progress("j") == {}
    jobs.save_progress("j", {"a": [1]})
    jobs.recorded("j")(lambda: 1)()
    assert jobs.progress("j") == {"a": [1]}
    jobs.save_progress("j", {})
    assert MaintenanceJob.objects.get().done == 1


def test_the_first_runs_at_once(rows):
    at_once([jobs.recorded("j")(lambda: 1)] * 4)
    assert MaintenanceJob.objects.get().done == 1


@pytest.mark.parametrize(("seconds_ago", "within"), [(None, False), (61, False), (59, True)])
def test_succeeded_within(rows, seconds_ago, within):
    at = None if seconds_ago is None else timezone.now() - timedelta(seconds=seconds_ago)
    MaintenanceJob.objects.create(name="j", succeeded_at=at)
    assert jobs.succeeded_within("j", 60) is within
    assert not jobs.succeeded_within("other", 60)
