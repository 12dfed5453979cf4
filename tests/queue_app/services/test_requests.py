"""Requests of other services: which become tasks, which are rejected or quarantined, and the answers."""

import json

import pytest

from queue_app.core.priorities import Band
from queue_app.index import get_index
from queue_app.models import Task
from queue_app.services.notify import events
from queue_app.services.repair.detour import return_to_redis
from queue_app.services.requests import backlog, consume
from tests.support.asking import TYPE, answer, answers, aside, ask
from tests.support.engine import leave_redis
from tests.support.index_state import client_of


@pytest.fixture(autouse=True)
def enabled(engine, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"REQUESTS": {"ENABLED": True}}


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
    event = answer()
    assert (event.name, event.task_id, event.status, event.user) == ("Accepted", str(row.id), "queued", "eve")
    assert event.details == {"entry": entry, "request_id": "order-17", "queue_position": "1"}
    assert backlog() == (0, 0)
    assert consume() == 0


def test_off_unless_enabled(settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"REQUESTS": {}}
    ask()
    assert consume() == 0
    assert backlog().waiting == 1


def test_while_claims_read_the_rows_requests_wait():
    ask()
    leave_redis()
    assert (consume(), backlog().waiting) == (0, 1)
    assert return_to_redis()
    assert (consume(), answer().name) == (1, "Accepted")


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
    assert [event.status for event in answers()] == ["scheduled", "scheduled"]
    assert "queue_position" not in answers()[0].details
    assert set(Task.objects.get(run_after__year=2031).capabilities) == {"fast", "gpu"}


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"task_type": "os.system"}, "unknown_task_type", "task_type"),
        ({"task_type": None}, "required", "task_type"),
        ({"request_id": None}, "required", "request_id"),
        ({"request_id": "a\u202eb"}, "invalid_characters", "request_id"),
        ({"queue": "nowhere"}, "unknown_queue", "queue"),
        ({"priority": "5"}, "unknown_priority", "priority"),
        ({"parameters": "[1]"}, "object_expected", "parameters"),
        ({"parameters": '{"secret key": "\\u0000"}'}, "nul_not_allowed", "parameters"),
        ({"parameters": json.dumps({"a": "x" * 300_000})}, "payload_too_large", "parameters"),
        ({"run_after": "2031-01-31"}, "timezone_required", "run_after"),
        ({"delay": "-1"}, "out_of_range", "delay"),
        ({"delay": "5", "run_after": "2031-01-31T12:00:00Z"}, "conflicting_fields", "delay"),
        ({"max_retries": "1.5"}, "integer_expected", "max_retries"),
        ({"weight": "0"}, "out_of_range", "weight"),
        ({"is_admin": "1"}, "unknown_field", ""),
    ],
)
def test_a_bad_request_is_rejected_with_code_and_field_and_no_value(fields, code, field):
    entry = ask(**fields)
    assert consume() == 1
    event = answer()
    assert (event.name, event.status, event.task_id) == ("Rejected", "rejected", "")
    assert (event.details["code"], event.details["field"], event.details["entry"]) == (code, field, entry)
    assert set(event.details) == {"entry", "request_id", "code", "field"}
    assert Task.objects.count() == 0
    assert backlog() == (0, 0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"event": None}, "unknown_event"),
        ({"parameters": "{"}, "invalid_json"),
        ({"parameters": "[" * 100_000}, "too_deep"),
        ({"parameters": '{"a": NaN}'}, "non_finite_number"),
        ({"parameters": '{"a": 1, "a": 2}'}, "duplicate_key"),
        ({"parameters": b"\xff\xfe"}, "utf8_required"),
        ({b"\xff": "x"}, "utf8_required"),
        ({"timeout": "ten"}, "invalid_json"),
        ({"parameters": "x" * 900_000}, "payload_too_large"),
    ],
)
def test_an_unreadable_request_is_quarantined_with_its_code(index, fields, code):
    asked = {"event": "ExecutionRequested", "request_id": "r", "task_type": TYPE} | fields
    entry = client_of(index).xadd(index.keys.requests, {k: v for k, v in asked.items() if v is not None}).decode()
    assert consume() == 1
    [kept] = aside(index)
    assert (kept["entry"].decode(), kept["error"].decode()) == (entry, code)
    assert (answer().name, answer().details["code"]) == ("Rejected", code)
    assert backlog() == (0, 1)
    assert consume() == 0


def test_a_quarantined_request_keeps_its_fields_unless_it_is_huge(index):
    ask(request_id="small", parameters="{")
    ask(request_id="huge", parameters="x" * 100_000)
    assert consume() == 2
    small, huge = aside(index)
    assert (small["request_id"], small["parameters"]) == (b"small", b"{")
    assert "parameters" not in huge
    assert int(huge["bytes"]) > 100_000


def test_a_field_that_occurs_twice(index):
    client_of(index).execute_command(
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
    assert b"canary" not in client_of(index).dump(index.keys.events)


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


def cancel(**fields):
    return ask(event="ExecutionCancelled", **{"task_type": None} | fields)


def test_a_request_is_cancelled_by_its_id_or_that_of_its_task():
    ask(request_id="one", user="eve")
    ask(request_id="two", user="eve")
    consume()
    first, second = Task.objects.order_by("id")
    cancel(request_id="one", user="eve")
    cancel(request_id="three", task_id=str(second.id), user="eve")
    assert consume() == 2
    assert set(Task.objects.values_list("status", flat=True)) == {"cancelled"}
    assert backlog() == (0, 0)
    cancel(request_id="one", user="eve")
    consume()
    get_index().flush()
    found = [(event.name, event.task_id) for event in events.read("0-0", count=100)[0]]
    assert [task_id for name, task_id in found if name == "Cancelled"] == [str(first.id), str(second.id)]
    assert "Rejected" not in dict(found), "a request that comes twice has done its work"


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"request_id": "one", "user": "mallory"}, "task_not_found", "request_id"),
        ({"request_id": "x", "task_id": "nonsense", "user": "eve"}, "invalid_id", "task_id"),
        ({"request_id": "unknown", "user": "eve"}, "task_not_found", "request_id"),
        ({"request_id": "one", "user": "eve", "priority": "high"}, "unknown_field", "priority"),
    ],
)
def test_a_bad_cancellation_is_rejected(fields, code, field):
    ask(request_id="one", user="eve")
    consume()
    cancel(**fields)
    consume()
    rejected = [event for event in events.read("0-0", count=100)[0] if event.name == "Rejected"]
    assert [(event.details["code"], event.details["field"]) for event in rejected] == [(code, field)]
    assert Task.objects.get().status == "queued"
    assert backlog() == (0, 0)


def test_the_answer_comes_before_everything_that_happens_to_the_task(monkeypatch):
    """A worker that is fast could complete the task before the consumer has answered the whole batch."""
    told = []
    plain = events.push_on_commit

    def pushed(entries, *args, **options):
        told.append([event.task_id for event in events.read("0-0", count=100)[0] if event.name == "Accepted"])
        return plain(entries, *args, **options)

    monkeypatch.setattr(events, "push_on_commit", pushed)
    for number in range(2):
        ask(request_id=f"r{number}")
    consume()
    ids = [str(task_id) for task_id in Task.objects.order_by("id").values_list("id", flat=True)]
    assert told == [ids[:1], ids]
    assert [event.details["queue_position"] for event in answers()] == ["1", "2"]
