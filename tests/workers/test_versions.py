"""A changed signature while old calls wait, and while old workers run."""

import pytest
from django.tasks.exceptions import InvalidTask

from queue_app import registry, task
from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.models import TaskAttempt, TaskPayload, TaskResult
from queue_app.services.lifecycle.actions import run_again, run_now
from tests.support.engine import row, status


def cents(version, args, kwargs):
    """Version 1 took an amount in euros."""
    return [], {"order": kwargs.get("order", args[0] if args else None), "cents": int(kwargs["euros"] * 100)}


def charge_now(order: int, cents: int) -> str:
    return f"{order}: {cents}"


def charge_then(order: int, euros: float) -> str:
    return f"{order}: {euros}"


charge_now.__qualname__ = charge_then.__qualname__ = charge_now.__name__ = charge_then.__name__ = "charge"
charge = charge_now  # where a task function is looked up
OLD, NEW = task(charge_then), task(version=2, upgrade=cents)(charge_now)


@pytest.fixture
def deployed(known_tasks):
    """Let this process have the code of one of the versions."""
    return lambda version: known_tasks.update({registry.type_of(NEW): version})


def test_an_old_call_gets_the_new_arguments(hire, deployed):
    deployed(OLD)
    result = OLD.enqueue(7, euros=1.5)
    assert TaskPayload.objects.get(pk=result.id).metadata is None
    deployed(NEW)
    hire().until_empty()
    assert TaskResult.objects.get(pk=result.id).value == "7: 150"


def test_a_call_of_a_new_name_goes_to_a_worker_that_knows_it(hire, known_tasks):
    """Old workers that wait too are not woken, and do not get it: it never has to be offered again."""
    known = known_tasks.pop(registry.type_of(NEW))
    old = [hire(name=f"old {n}") for n in range(3)]
    known_tasks[registry.type_of(NEW)] = known
    new = hire(name="new")
    for worker in (new, *old):
        worker.run_once()
    result = NEW.enqueue(7, cents=150)
    assert get_index().wait_for_call(new.id, 60)
    assert not any(get_index().wait_for_call(worker.id, 0.01) for worker in old)
    assert [worker.until_empty() for worker in (*old, new)] == [0, 0, 0, 1]
    assert TaskResult.objects.get(pk=result.id).value == "7: 150"


def test_a_new_call_waits_for_a_worker_with_the_new_code(hire, deployed):
    deployed(NEW)
    result = NEW.enqueue(7, cents=150)
    assert TaskPayload.objects.get(pk=result.id).metadata == {"task_version": 2}
    deployed(OLD)
    hire().until_empty()
    waiting = row(result.id)
    assert (waiting.status, waiting.failures) == (Status.SCHEDULED, 0)
    deployed(NEW)
    run_now(result.id)
    hire().until_empty()
    assert TaskResult.objects.get(pk=result.id).value == "7: 150"


def test_an_old_worker_does_not_ask_for_a_new_call_under_a_new_name(hire, known_tasks):
    former = registry.type_of(OLD)
    old = {**known_tasks, former: OLD}
    known_tasks.update(old)
    renamed = task(version=2, upgrade=cents, task_type="charge_renamed", aliases=[former])(charge_now)
    new = {**old, former: renamed, "charge_renamed": renamed}
    known_tasks.update(new)
    after = renamed.enqueue(7, cents=150)
    known_tasks.clear()
    known_tasks.update(old)
    before = OLD.enqueue(8, euros=2)
    hire().until_empty()
    assert (row(after.id).status, row(after.id).attempt) == (Status.QUEUED, 0)
    assert TaskResult.objects.get(pk=before.id).value == "8: 2"
    later = OLD.enqueue(9, euros=2)
    known_tasks.update(new)
    hire().until_empty()
    assert {TaskResult.objects.get(pk=pk).value for pk in (after.id, later.id)} == {"7: 150", "9: 200"}


def test_a_copy_of_an_old_call_is_old(hire, deployed):
    deployed(OLD)
    first = OLD.enqueue(7, euros=2)
    deployed(NEW)
    again = run_again(first.id)
    hire().until_empty()
    assert {TaskResult.objects.get(pk=pk).value for pk in (first.id, again.id)} == {"7: 200"}


def test_a_failing_upgrade_is_retried(hire, deployed):
    deployed(OLD)
    result = OLD.enqueue(7, euros=2)
    TaskPayload.objects.update(parameters={})
    deployed(NEW)
    hire().until_empty()
    assert status(result.id) == Status.SCHEDULED
    assert TaskAttempt.objects.get().exception_class == "builtins.KeyError"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": 0, "upgrade": cents}, "from 1 to 1000000, not 0"),
        ({"version": "2", "upgrade": cents}, "from 1 to 1000000, not '2'"),
        ({"version": 2}, "needs upgrade, a function"),
        ({"upgrade": cents}, "upgrade needs a version above 1"),
    ],
)
def test_bad_versions(options, message):
    with pytest.raises(InvalidTask, match=message):
        task(**options)(charge_now)
