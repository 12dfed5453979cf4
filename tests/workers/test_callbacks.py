"""Callbacks: exactly one follows each end of a task, whoever ends it."""

import sys

import pytest
from django.tasks.exceptions import InvalidTask

from queue_app import chain, registry, task
from queue_app.core.records import NewTask, Outcome, TaskFailure
from queue_app.core.states import Status
from queue_app.hooks.callbacks import problems
from queue_app.models import Queue, Task, TaskPayload
from queue_app.registry import type_of
from queue_app.services.enqueue.admission import expire_stale
from queue_app.services.enqueue.store import submit
from queue_app.services.lifecycle.actions import cancel, retry, run_now
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify import events
from queue_app.services.repair.reap import mark_dead, reap_overdue
from queue_app.sql.finish import held_by
from queue_app.testing import TestingBackend
from tests.support.engine import assert_index_agrees, at_once, status
from tests.workers import callback_tasks, hooked
from tests.workers.callback_tasks import heard, sorry, thanks, work


@pytest.fixture(autouse=True)
def clean():
    heard.clear()
    yield
    heard.clear()


@pytest.fixture
def held(engine):
    """Enqueue a task, and let a worker hold it; return the worker and the claimed task."""

    def hold(*args):
        result = work.enqueue(*args)
        hand = engine.worker(type_of(work))
        (claimed,) = claim(hand.profile, hand.id, 1)
        return hand, result, claimed

    return hold


def followers() -> list[tuple[str, list]]:
    types = dict(Task.objects.values_list("pk", "task_type"))
    rows = TaskPayload.objects.exclude(task__task_type=type_of(work)).order_by("task_id")
    return [(types[row.pk].rpartition(".")[2], row.args) for row in rows]


@pytest.mark.parametrize(
    ("how", "end", "follows"),
    [
        ("well", Status.COMPLETED, "thanks"),
        ("snooze", Status.COMPLETED, "thanks"),
        ("fail", Status.DEAD_LETTER, "sorry"),
        ("discard", Status.FAILED, "sorry"),
    ],
)
def test_one_callback_follows_the_end(hire, how, end, follows):
    result = work.enqueue(how)
    hire().until_empty()
    if how == "snooze":
        run_now(result.id)
        hire().until_empty()
    assert status(result.id) == end
    assert [each for each in heard if each[0] != "snoozed"] == [(follows, result.id)]
    assert_index_agrees()


def test_the_options_of_the_callback_and_the_user_apply(hire):
    work.using(user="ann").enqueue()
    hire().until_empty()
    (row,) = Task.objects.filter(task_type=type_of(thanks))
    assert (row.queue, row.user) == ("after", "ann")


@pytest.mark.parametrize("trouble", ["key", "metadata", "module"])
def test_a_callback_that_cannot_be_stored_does_not_stop_the_end(hire, settings, monkeypatch, caplog, trouble):
    result, other = work.enqueue("well"), work.enqueue("fail")
    if trouble == "key":
        settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": [], "TASKS": ["*.thanks"]}}
    elif trouble == "metadata":
        TaskPayload.objects.filter(pk=result.id).update(metadata={"on_success": 5})
    else:
        find = registry.find
        broken = lambda name: 1 / 0 if name == type_of(thanks) else find(name)  # noqa: E731
        monkeypatch.setattr(registry, "find", broken)
    hire().until_empty()
    assert (status(result.id), status(other.id)) == (Status.COMPLETED, Status.DEAD_LETTER)
    assert heard == [("sorry", other.id)]
    assert f"The callback of task {result.id}" in caplog.text


def test_forty_reports_at_once_add_one_callback(held):
    _hand, result, claimed = held()
    outcome = Outcome(claimed, claimed.started_at, claimed.started_at, "1")
    at_once([lambda: finish([outcome])] * 40)
    assert followers() == [("thanks", [result.id])]


def test_a_crash_before_the_commit_stores_neither_the_end_nor_the_callback(held, before):
    _hand, result, claimed = held()
    outcome = Outcome(claimed, claimed.started_at, claimed.started_at, "1")
    before(events, "push_on_commit", sys.exit)
    with pytest.raises(SystemExit):
        finish([outcome])
    assert status(result.id) == Status.EXECUTING
    assert followers() == []
    finish([outcome])
    assert followers() == [("thanks", [result.id])]


def test_on_failure_follows_a_task_whose_workers_die(held, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "RETRY": {"MAX_CRASHES": 1}}
    hand, result, _claimed = held()
    mark_dead(hand.id)
    assert status(result.id) == Status.DEAD_LETTER
    assert followers() == [("sorry", [result.id])]


def test_on_failure_follows_a_task_that_expires(engine):
    result = work.enqueue()
    Task.objects.update(queued_at="2026-01-01T00:00:00Z")
    assert expire_stale("default", 60) == 1
    assert followers() == [("sorry", [result.id])]


def test_nothing_follows_a_cancelled_task_nor_a_retry(held):
    cancel(work.enqueue().id)
    _hand, _result, claimed = held()
    failure = TaskFailure("ValueError", "no", "", retry_after=60)
    finish([Outcome(claimed, claimed.started_at, claimed.started_at, failure=failure)])
    assert [row[0] for row in followers()] == (["sorry"] if claimed.max_retries == 0 else [])


def test_each_run_of_a_retried_task_is_followed(hire):
    result = work.enqueue("discard")
    hire().until_empty()
    retry(result.id)
    hire().until_empty()
    assert heard == [("sorry", result.id)] * 2


def test_tasks_in_bulk_submitted_and_of_workflows_are_followed(hire):
    work.get_backend().enqueue_many(work, [((), {}), ((), {})])
    submit(NewTask(task_type=type_of(work)))
    chain((work,), (work,)).enqueue("two")
    hire().until_empty()
    assert [name for name, _ in heard] == ["thanks"] * 5


def test_a_full_queue_takes_the_callback(hire):
    Queue.objects.create(name="after", max_length=1)
    thanks.enqueue("fills it").get_absolute_url()
    work.enqueue()
    hire().until_empty()
    assert len(heard) == 2


def test_the_callback_has_the_metadata_of_its_task(hire, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "HOOKS": ["tests.workers.hooked.Tenant"]}
    token = hooked.tenant.set("acme")
    work.enqueue()
    hooked.tenant.reset(token)
    hire().until_empty()
    assert TaskPayload.objects.get(task__task_type=type_of(thanks)).metadata == {"tenant": "acme"}
    hooked.seen.clear()


def test_the_testing_backend_calls_back(testing_backend):
    done, failed = work.enqueue(), work.enqueue("fail")
    backend = work.get_backend()
    assert isinstance(backend, TestingBackend)
    backend.drain()
    assert sorted(heard) == [("sorry", failed.id), ("thanks", done.id)]


@pytest.mark.parametrize("given", [7, [], {"task": "x"}])
def test_a_callback_that_is_no_task_is_refused(given):
    with pytest.raises(InvalidTask, match="on_success is a task"):
        task(on_success=given or [1])(lambda: None)


def test_a_callback_that_does_not_take_an_id_is_refused():
    with pytest.raises(InvalidTask, match="called with the id of the task"):
        task(on_failure=no_arguments)(lambda: None)


@task
def no_arguments() -> None:
    """Take nothing."""


def test_a_misspelt_callback_is_a_problem_of_the_project():
    assert not list(problems([]))
    object.__setattr__(sorry, "on_success", "tests.workers.callback_tasks.thank")
    object.__setattr__(thanks, "on_failure", "webhook:crn")
    try:
        found = list(problems(["crm"]))
    finally:
        object.__setattr__(sorry, "on_success", None)
        object.__setattr__(thanks, "on_failure", None)
    assert "Did you mean 'tests.workers.callback_tasks.thanks'" in found[0]
    assert "Did you mean 'crm'?" in found[1]
    assert callback_tasks.heard == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_report_of_an_http_worker_is_followed_too(held, fails):
    hand, result, claimed = held()
    (known,) = held_by(hand.id, [claimed.key])  # as the server reads it, without the payload
    failure = TaskFailure("ValueError", "no", "", retriable=False) if fails else None
    finish([Outcome(known, claimed.started_at, claimed.started_at, None, failure=failure)])
    assert followers() == [("sorry" if fails else "thanks", [result.id])]


def test_on_failure_follows_a_task_that_a_stuck_worker_held_too_long(held):
    _hand, result, _claimed = held()
    Task.objects.update(deadline="2026-01-01T00:00:00Z", leased_at=1)
    assert reap_overdue() == 1
    assert followers() == [("sorry", [result.id])]
