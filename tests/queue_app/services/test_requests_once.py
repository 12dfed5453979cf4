"""Each request becomes one task, even after crashes and outages; and no stream grows."""

from unittest.mock import Mock

import pytest
from django.db import OperationalError, transaction

from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index
from queue_app.models import Task
from queue_app.services import requests
from queue_app.services.requests import MAX_TRIES, backlog, consume
from tests.support.asking import answers, aside, ask
from tests.support.engine import at_once, index_away
from tests.support.faults import failing
from tests.support.index_state import client_of


@pytest.fixture(autouse=True)
def enabled(engine, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"REQUESTS": {"ENABLED": True}}


@pytest.fixture
def patient(override):
    """Unsettled requests are taken again at once instead of after a minute."""
    override(requests, IDLE_SECONDS=0.0, PAUSE_SECONDS=0.0)


@pytest.fixture
def die_at(monkeypatch):
    """Return a function that consumes until a step, in which the process dies: nothing after it runs."""

    def die(step: str, owner: object = requests) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                consume()

    return die


@pytest.fixture
def fail(monkeypatch):
    """Return a function that lets the submission of requests with these ids fail."""
    plain = requests.submit

    def fail(error: type[BaseException], *ids: str) -> None:
        def submit(submission, **options):
            if submission.options["idempotency_key"] in ids:
                raise error
            return plain(submission, **options)

        monkeypatch.setattr(requests, "submit", submit)

    return fail


def test_the_same_request_twice_is_one_task():
    ask(request_id="same")
    ask(request_id="same")
    assert consume() == 2
    first, second = answers()
    assert first.task_id == second.task_id == str(Task.objects.get().id)
    assert "replayed" not in first.details
    assert second.details["replayed"] == "1"


def test_an_id_that_was_used_for_another_request():
    ask(request_id="same")
    ask(request_id="same", parameters='{"a": 1}')
    ask(idempotency_key="same", parameters='{"a": 1}')
    assert consume() == 3
    assert [event.details.get("code") for event in answers()] == [None, *["idempotency_conflict"] * 2]
    assert [event.details.get("field") for event in answers()] == [None, "request_id", "idempotency_key"]
    assert Task.objects.count() == 1


def test_death_between_the_read_and_the_commit(die_at, patient):
    ask()
    die_at("submit")
    assert Task.objects.count() == 0
    assert backlog().waiting == 1
    assert consume() == 1
    assert Task.objects.count() == 1
    assert backlog().waiting == 0


@pytest.mark.parametrize("step", ["publish", "acknowledge"])
def test_death_between_the_commit_and_the_acknowledgement(die_at, patient, index, step):
    ask()
    die_at(step, Index if step == "publish" else type(index.requests))
    task_id = str(Task.objects.get().id)
    assert backlog().waiting == 1
    assert consume() == 1
    assert Task.objects.count() == 1
    assert {event.task_id for event in answers()} == {task_id}
    assert answers()[-1].details["replayed"] == "1"
    assert backlog().waiting == 0


def test_requests_that_another_consumer_holds_are_left_to_it(die_at):
    ask()
    die_at("submit")
    assert consume() == 0, "only after a minute"
    assert backlog().waiting == 1


def test_several_consumers_at_once_make_one_task_of_each_request():
    ids = [f"r{number}" for number in range(40)]
    for request_id in ids:
        ask(request_id=request_id)
    assert sum(at_once([lambda: consume(20)] * 4)) == 40
    assert sorted(Task.objects.values_list("idempotency_key", flat=True)) == sorted(ids)
    assert backlog() == (0, 0)


def test_several_consumers_that_take_over_from_each_other(patient):
    """With an idle time of 0 they take each other's requests all the time."""
    for number in range(10):
        ask(request_id=f"r{number}")
    at_once([lambda: consume(20)] * 3)
    consume(20)
    assert Task.objects.count() == 10
    assert backlog() == (0, 0)


def test_a_request_that_kills_its_consumer_is_quarantined_and_the_others_are_not(fail, patient, index):
    for name in ("before", "killer", "after"):
        ask(request_id=name)
    fail(KeyboardInterrupt, "killer")
    for _ in range(MAX_TRIES):
        with pytest.raises(KeyboardInterrupt):
            consume()
    assert consume() == 2
    assert sorted(Task.objects.values_list("idempotency_key", flat=True)) == ["after", "before"]
    [kept] = aside(index)
    assert (kept["request_id"], kept["error"]) == (b"killer", b"crash_loop")
    [rejected] = [event.details for event in answers() if event.name == "Rejected"]
    assert (rejected["request_id"], rejected["code"]) == ("killer", "crash_loop")
    assert backlog() == (0, 1)


def test_a_request_that_fails_unexpectedly_does_not_hold_up_the_others(fail):
    for name in ("odd", "fine"):
        ask(request_id=name)
    fail(ZeroDivisionError, "odd")
    with pytest.raises(ZeroDivisionError):
        consume()
    assert Task.objects.get().idempotency_key == "fine"
    assert backlog().waiting == 1


def test_failures_of_the_database_do_not_count_as_tries(fail, patient):
    for name in ("one", "two", "three"):
        ask(request_id=name)
    fail(OperationalError, "two", "three")
    for _ in range(3 * MAX_TRIES):
        with pytest.raises(OperationalError):
            consume()
    fail(OperationalError)  # none any more
    assert consume() == 2
    assert Task.objects.count() == 3
    assert backlog() == (0, 0)


def test_nothing_is_taken_while_the_database_is_away(index):
    ask()
    with failing(requests, "fetch_all", OperationalError), pytest.raises(OperationalError):
        consume()
    assert not client_of(index).exists(index.keys.events)
    assert client_of(index).xinfo_groups(index.keys.requests) == []


def test_without_redis_consume_raises_and_the_request_is_taken_again(patient):
    ask()
    with index_away("acknowledge_requests"), pytest.raises(IndexUnavailable):
        consume()
    assert consume() == 1
    assert Task.objects.count() == 1


def test_after_flushall_the_group_is_created_again_and_unread_requests_are_lost(index):
    ask(request_id="done")
    consume()
    ask(request_id="lost")
    client_of(index).delete(index.keys.requests, index.keys.events)  # what FLUSHALL does to them
    assert consume() == 0
    ask(request_id="later")
    assert consume() == 1
    assert sorted(Task.objects.values_list("idempotency_key", flat=True)) == ["done", "later"]


def test_a_deleted_entry_is_forgotten(die_at, patient, index):
    entry = ask()
    die_at("submit")
    client_of(index).xdel(index.keys.requests, entry)
    assert consume() == 0
    assert client_of(index).xpending(index.keys.requests, "taskqueue")["pending"] == 0


def test_neither_stream_grows_with_settled_requests(index):
    for _ in range(30):
        ask()
        ask(parameters="{")
    assert consume(1000) == 60
    assert client_of(index).xlen(index.keys.requests) == 0
    assert len(client_of(index).xinfo_consumers(index.keys.requests, "taskqueue")) == 1


def test_the_number_of_quarantined_requests_is_bounded(override, index):
    override(requests, MAX_QUARANTINED=100)
    for _ in range(350):
        ask(event="x")
    assert consume(1000) == 350
    assert 100 <= backlog().quarantined <= 200


def test_not_inside_a_transaction():
    ask()
    with transaction.atomic(), pytest.raises(RuntimeError):
        consume()
    assert backlog().waiting == 1


def test_without_events_the_task_is_stored_all_the_same(index, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"EVENTS": {"MAX_LENGTH": 0}}
    ask()
    assert consume() == 1
    assert Task.objects.get().status == Status.QUEUED
    assert not client_of(index).exists(index.keys.events)
