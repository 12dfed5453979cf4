"""``runworker --with-scheduler``: workers that are each other's schedulers."""

import signal
from datetime import timedelta

import pytest
from django.utils import timezone

from queue_app.diagnose.system import why_unled
from queue_app.models import Task
from queue_app.registry import type_of
from tests.integration.app import tasks
from tests.integration.processes import eventually
from tests.support.engine import put, status

pytestmark = pytest.mark.integration

HURRY = {f"TASKQUEUE__SCHEDULER__{name}_SECONDS": value for name, value in {"DUE": "0.1", "LEADER": "3"}.items()}


def due(log: str, text: str):
    """Return a delayed task whose time has come."""
    found = put(type_of(tasks.note), args=[log, text], run_after=timezone.now() + timedelta(hours=1))
    Task.objects.filter(pk=found).update(run_after=timezone.now())
    return found


def test_one_of_two_workers_leads_and_the_other_takes_over(fleet, engine, log):
    first = fleet.worker("--with-scheduler", **HURRY)
    eventually(lambda: not why_unled(), "the first leads")
    fleet.worker("--with-scheduler", **HURRY)
    delayed = due(log, "a")
    eventually(lambda: status(delayed) == "completed", "it became due and ran")
    first.send(signal.SIGKILL)
    delayed = due(log, "b")
    eventually(lambda: status(delayed) == "completed", "the other worker leads")


def test_it_resigns_when_its_worker_stops(fleet, engine):
    worker = fleet.worker("--with-scheduler", TASKQUEUE__SCHEDULER__LEADER_SECONDS="600")
    eventually(lambda: not why_unled(), "it leads")
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert why_unled(), "the lead would lapse after ten minutes only"


def test_the_workers_under_a_supervisor_have_schedulers(fleet, engine, log):
    fleet.worker("--with-scheduler", "--processes", "2", **HURRY)
    delayed = due(log, "a")
    eventually(lambda: status(delayed) == "completed", "it became due and ran")
