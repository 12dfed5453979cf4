"""Requests of other services: answered, carried out once, whoever dies in between."""

import itertools
import json
from typing import Any

import pytest
from django.db import OperationalError, transaction
from django.tasks import task

from queue_app import registry
from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index, get_index
from queue_app.models import Task
from queue_app.services import events, requests
from queue_app.services.requests import MAX_TRIES, backlog, consume
from tests.support.engine import at_once, index_away


@task(queue_name="default")
def plain(**parameters: Any) -> Any:
    return parameters


TYPE = registry.type_of(plain)


@pytest.fixture(autouse=True)
def enabled(engine, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"REQUESTS": {"ENABLED": True}}


@pytest.fixture
def index():
    return get_index()


@pytest.fixture
def patient(monkeypatch):
    """What was taken and not settled is taken again at once, as after a minute."""
    monkeypatch.setattr(requests, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(requests, "PAUSE_SECONDS", 0.0)


_numbers = itertools.count()


def ask(**fields):
    """Write a request as another service does; ``None`` leaves a field out. Return the id of the entry."""
    asked = {"event": "ExecutionRequested", "request_id": f"r{next(_numbers)}", "task_type": TYPE} | fields
    index = get_index()
    return index._client.xadd(
        index.keys.requests, {name: value for name, value in asked.items() if value is not None}
    ).decode()


def answers():
    return [
        event
        for event in events.read(events.FROM_THE_BEGINNING, count=1000)[0]
        if event.name in ("Accepted", "Rejected")
    ]


def answer():
    [only] = answers()
    return only


def aside(index):
    return [
        {name.decode(errors="replace"): value for name, value in fields.items()}
        for _, fields in index._client.xrange(index.keys.poison)
    ]


def test_a_request_becomes_a_task_and_is_answered(index):
    entry = ask(
        request_id="order-17",
        parameters=json.dumps({"to": "a@example.org"}),
        queue="default",
        priority="high",
        user="eve",
        timeout="30",
        max_retries="2",
        concurrency_key="customer:7",
        weight="3",
    )
    assert consume() == 1
    row = Task.objects.select_related("payload").get()
    assert (row.task_type, row.queue, row.priority, row.user) == (TYPE, "default", Band.HIGH, "eve")
    assert (row.timeout, row.max_retries, row.idempotency_key) == (30.0, 2, "order-17")
    assert (row.concurrency_key, row.weight) == ("customer:7", 3)
    assert row.payload.parameters == {"to": "a@example.org"}
    told = answer()
    assert (told.name, told.task_id, told.status, told.user) == ("Accepted", str(row.id), "queued", "eve")
    assert told.details == {"entry": entry, "request_id": "order-17", "queue_position": "1"}
    assert backlog() == (0, 0)
    assert consume() == 0


def test_off_unless_enabled(settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"REQUESTS": {}}
    ask()
    assert consume() == 0
    assert backlog().waiting == 1


def test_a_step_is_bounded():
    for _ in range(5):
        ask()
    assert consume(3) == 3
    assert backlog().waiting == 2
    assert consume(3) == 2


def test_for_later_by_time_by_delay_and_with_capabilities():
    ask(delay="60")
    ask(run_after="2031-01-31T12:00:00Z", capabilities="gpu,fast")
    assert consume() == 2
    assert [told.status for told in answers()] == ["scheduled", "scheduled"]
    assert "queue_position" not in answers()[0].details
    assert set(Task.objects.get(run_after__year=2031).capabilities) == {"fast", "gpu"}


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"task_type": "os.system"}, "unknown_task_type", "task_type"),
        ({"task_type": None}, "required", "task_type"),
        ({"request_id": None}, "required", "request_id"),
        ({"request_id": ""}, "blank", "request_id"),
        ({"request_id": "x" * 65}, "invalid", "request_id"),
        ({"request_id": "a\u202eb"}, "invalid_characters", "request_id"),
        ({"queue": "nowhere"}, "unknown_queue", "queue"),
        ({"queue": "a{b}"}, "invalid_name", "queue"),
        ({"priority": "5"}, "unknown_priority", "priority"),
        ({"user": "x" * 151}, "invalid", "user"),
        ({"parameters": "[1]"}, "object_expected", "parameters"),
        ({"parameters": '{"secret key": "\\u0000"}'}, "nul_not_allowed", "parameters"),
        ({"parameters": '{"a": "\\ud800"}'}, "invalid_unicode", "parameters"),
        ({"parameters": '{"a": 9007199254740993}'}, "number_out_of_range", "parameters"),
        ({"parameters": '{"a":' * 40 + "1" + "}" * 40}, "too_deep", "parameters"),
        ({"parameters": json.dumps({"a": "x" * 300_000})}, "payload_too_large", "parameters"),
        ({"run_after": "2031-01-31"}, "timezone_required", "run_after"),
        ({"run_after": "soon"}, "datetime_expected", "run_after"),
        ({"delay": "-1"}, "out_of_range", "delay"),
        ({"delay": "5", "run_after": "2031-01-31T12:00:00Z"}, "conflicting_fields", "delay"),
        ({"timeout": "0"}, "out_of_range", "timeout"),
        ({"max_retries": "1.5"}, "integer_expected", "max_retries"),
        ({"capabilities": "g p u"}, "invalid_name", "capabilities"),
        ({"idempotency_key": "x" * 65}, "invalid", "idempotency_key"),
        ({"concurrency_key": "x" * 129}, "invalid", "concurrency_key"),
        ({"weight": "0"}, "out_of_range", "weight"),
        ({"weight": "true"}, "integer_expected", "weight"),
        ({"is_admin": "1"}, "unknown_field", ""),
        ({"status": "completed"}, "unknown_field", ""),
    ],
)
def test_a_bad_request_is_rejected_with_code_and_field_and_no_value(fields, code, field):
    entry = ask(**fields)
    assert consume() == 1
    told = answer()
    assert (told.name, told.status, told.task_id) == ("Rejected", "rejected", "")
    assert (told.details["code"], told.details["field"], told.details["entry"]) == (code, field, entry)
    assert set(told.details) == {"entry", "request_id", "code", "field"}
    assert Task.objects.count() == 0
    assert backlog() == (0, 0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"event": None}, "unknown_event"),
        ({"event": "Completed"}, "unknown_event"),
        ({"parameters": "{"}, "invalid_json"),
        ({"parameters": ""}, "invalid_json"),
        ({"parameters": "[" * 100_000}, "too_deep"),
        ({"parameters": '{"a": NaN}'}, "non_finite_number"),
        ({"parameters": '{"a": 1e400}'}, "number_out_of_range"),
        ({"parameters": '{"a": ' + "9" * 5000 + "}"}, "number_too_long"),
        ({"parameters": '{"a": 1, "a": 2}'}, "duplicate_key"),
        ({"parameters": b"\xff\xfe"}, "utf8_required"),
        ({"request_id": b"\x00"}, "utf8_required"),
        ({b"\xff": "x"}, "utf8_required"),
        ({"timeout": "ten"}, "invalid_json"),
        ({"parameters": "x" * 900_000}, "payload_too_large"),
        ({"queue": "x" * 20_000}, "payload_too_large"),
    ],
)
def test_what_cannot_be_read_is_set_aside_with_its_code(index, fields, code):
    asked = {"event": "ExecutionRequested", "request_id": "r", "task_type": TYPE} | fields
    entry = index._client.xadd(index.keys.requests, {k: v for k, v in asked.items() if v is not None}).decode()
    assert consume() == 1
    [kept] = aside(index)
    assert (kept["entry"].decode(), kept["error"].decode()) == (entry, code)
    assert (answer().name, answer().details["code"]) == ("Rejected", code)
    assert backlog() == (0, 1)
    assert consume() == 0


def test_what_is_set_aside_keeps_what_its_sender_wrote_unless_it_is_huge(index):
    ask(request_id="small", parameters="{")
    ask(request_id="huge", parameters="x" * 100_000)
    assert consume() == 2
    small, huge = aside(index)
    assert (small["request_id"], small["parameters"]) == (b"small", b"{")
    assert "parameters" not in huge
    assert int(huge["bytes"]) > 100_000


def test_a_field_that_occurs_twice(index):
    index._client.execute_command(
        "XADD", index.keys.requests, "*", "event", "ExecutionRequested", "task_type", TYPE, "task_type", "x"
    )
    assert consume() == 1
    assert aside(index)[0]["error"] == b"duplicate_key"


def test_no_values_of_requests_in_the_event_stream(index):
    ask(parameters=json.dumps({"canary": "canary"}))
    ask(parameters='{"canary": "\\u0000"}')
    ask(canary="canary")
    ask(queue="canary")
    ask(priority="canary", task_type="canary")
    ask(request_id="canary\x1b", user="canary\n")
    assert consume() == 6
    assert b"canary" not in index._client.dump(index.keys.events)


@pytest.mark.parametrize(
    ("setting", "said", "owner"),
    [
        ("*", "eve", "eve"),
        ("*", None, ""),
        ("billing:*", "eve", "billing:eve"),
        ("billing", None, "billing"),
        ("billing", "billing", "billing"),
        ("billing", "eve", None),
    ],
)
def test_whose_task_it_becomes(settings, setting, said, owner):
    settings.TASKQUEUE = settings.TASKQUEUE | {"REQUESTS": {"ENABLED": True, "USER": setting}}
    ask(user=said)
    assert consume() == 1
    if owner is None:
        assert (answer().details["code"], answer().details["field"]) == ("user_not_allowed", "user")
        assert Task.objects.count() == 0
    else:
        assert Task.objects.get().user == answer().user == owner


# -- at least once in, one task out ------------------------------------------------------------------


def test_the_same_request_twice_is_one_task():
    ask(request_id="same")
    ask(request_id="same")
    assert consume() == 2
    first, second = answers()
    assert first.task_id == second.task_id == str(Task.objects.get().id)
    assert "replayed" not in first.details
    assert second.details["replayed"] == "1"


def test_an_id_that_was_used_for_something_else():
    ask(request_id="same")
    ask(request_id="same", parameters='{"a": 1}')
    ask(idempotency_key="same", parameters='{"a": 1}')
    assert consume() == 3
    assert [told.details.get("code") for told in answers()] == [None, *["idempotency_conflict"] * 2]
    assert [told.details.get("field") for told in answers()] == [None, "request_id", "idempotency_key"]
    assert Task.objects.count() == 1


def died(*_args, **_options):
    raise KeyboardInterrupt  # a process that dies: nothing after this line runs


def test_death_between_the_read_and_the_commit(monkeypatch, patient):
    ask()
    with monkeypatch.context() as patch:
        patch.setattr(requests, "submit", died)
        with pytest.raises(KeyboardInterrupt):
            consume()
    assert Task.objects.count() == 0
    assert backlog().waiting == 1
    assert consume() == 1
    assert Task.objects.count() == 1
    assert backlog().waiting == 0


@pytest.mark.parametrize("step", ["publish", "settle"])
def test_death_between_the_commit_and_the_acknowledgement(monkeypatch, patient, index, step):
    ask()
    with monkeypatch.context() as patch:
        patch.setattr(Index if step == "publish" else type(index.requests), step, died)
        with pytest.raises(KeyboardInterrupt):
            consume()
    task_id = str(Task.objects.get().id)
    assert backlog().waiting == 1
    assert consume() == 1
    assert Task.objects.count() == 1
    assert {told.task_id for told in answers()} == {task_id}
    assert answers()[-1].details["replayed"] == "1"
    assert backlog().waiting == 0


def test_what_another_consumer_has_in_hand_is_left_to_it(monkeypatch):
    ask()
    with monkeypatch.context() as patch:
        patch.setattr(requests, "submit", died)
        with pytest.raises(KeyboardInterrupt):
            consume()
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
    """With no patience at all they take each other's requests all the time."""
    for number in range(10):
        ask(request_id=f"r{number}")
    at_once([lambda: consume(20)] * 3)
    consume(20)
    assert Task.objects.count() == 10
    assert backlog() == (0, 0)


def test_a_request_that_kills_its_consumer_is_set_aside_and_its_neighbours_are_not(monkeypatch, patient, index):
    for name in ("before", "killer", "after"):
        ask(request_id=name)
    plain = requests.submit

    def submit(submission, **options):
        if submission.idempotency_key == "killer":
            died()
        return plain(submission, **options)

    monkeypatch.setattr(requests, "submit", submit)
    for _ in range(MAX_TRIES):
        with pytest.raises(KeyboardInterrupt):
            consume()
    assert consume() == 2
    assert sorted(Task.objects.values_list("idempotency_key", flat=True)) == ["after", "before"]
    [kept] = aside(index)
    assert (kept["request_id"], kept["error"]) == (b"killer", b"crash_loop")
    assert [(told.details["request_id"], told.details["code"]) for told in answers() if told.name == "Rejected"] == [
        ("killer", "crash_loop")
    ]
    assert backlog() == (0, 1)


def test_a_request_that_fails_unexpectedly_does_not_hold_up_the_others(monkeypatch):
    for name in ("odd", "fine"):
        ask(request_id=name)
    plain = requests.submit

    def submit(submission, **options):
        if submission.idempotency_key == "odd":
            raise ZeroDivisionError
        return plain(submission, **options)

    monkeypatch.setattr(requests, "submit", submit)
    with pytest.raises(ZeroDivisionError):
        consume()
    assert Task.objects.get().idempotency_key == "fine"
    assert backlog().waiting == 1


def test_trouble_with_the_database_is_not_counted_against_requests(monkeypatch, patient):
    for name in ("one", "two", "three"):
        ask(request_id=name)
    plain = requests.submit
    well = {"one"}

    def submit(submission, **options):
        if submission.idempotency_key not in well:
            raise OperationalError("no room left")
        return plain(submission, **options)

    monkeypatch.setattr(requests, "submit", submit)
    for _ in range(3 * MAX_TRIES):
        with pytest.raises(OperationalError):
            consume()
    well |= {"two", "three"}
    assert consume() == 2
    assert Task.objects.count() == 3
    assert backlog() == (0, 0)


def test_nothing_is_taken_while_the_database_is_away(monkeypatch, index):
    ask()

    def away(*_):
        raise OperationalError("gone")

    monkeypatch.setattr(requests, "fetch_all", away)
    with pytest.raises(OperationalError):
        consume()
    assert not index._client.exists(index.keys.events)
    assert index._client.xinfo_groups(index.keys.requests) == []


def test_without_redis_the_caller_is_told_and_the_request_comes_back(patient):
    ask()
    with index_away("settle_requests"), pytest.raises(IndexUnavailable):
        consume()
    assert consume() == 1
    assert Task.objects.count() == 1


def test_after_flushall_the_group_is_made_again_and_what_was_not_consumed_is_lost(index):
    ask(request_id="done")
    consume()
    ask(request_id="lost")
    index._client.delete(index.keys.requests, index.keys.events)  # what FLUSHALL does to them
    assert consume() == 0
    ask(request_id="later")
    assert consume() == 1
    assert sorted(Task.objects.values_list("idempotency_key", flat=True)) == ["done", "later"]


def test_requests_that_were_written_before_the_first_consumer(index):
    ask()
    assert index._client.xinfo_groups(index.keys.requests) == []
    assert consume() == 1


def test_an_entry_that_somebody_deleted_is_forgotten(monkeypatch, patient, index):
    entry = ask()
    with monkeypatch.context() as patch:
        patch.setattr(requests, "submit", died)
        with pytest.raises(KeyboardInterrupt):
            consume()
    index._client.xdel(index.keys.requests, entry)
    assert consume() == 0
    assert index._client.xpending(index.keys.requests, "taskqueue")["pending"] == 0


def test_neither_stream_grows_with_what_is_done(index):
    for _ in range(30):
        ask()
        ask(parameters="{")
    assert consume(1000) == 60
    assert index._client.xlen(index.keys.requests) == 0
    assert len(index._client.xinfo_consumers(index.keys.requests, "taskqueue")) == 1


def test_those_set_aside_are_bounded(monkeypatch, index):
    monkeypatch.setattr(requests, "KEPT_ASIDE", 100)
    for _ in range(350):
        ask(event="x")
    assert consume(1000) == 350
    assert 100 <= backlog().set_aside <= 200


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
    assert not index._client.exists(index.keys.events)
