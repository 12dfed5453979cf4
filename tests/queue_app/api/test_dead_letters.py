"""Dead letters over HTTP: lists, replays, discards, operations; who may, and what bad requests get."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from queue_app.core.ids import uuid7
from queue_app.core.masking import MASK
from queue_app.models import DeadLetter, ReplayOperation, Task, TaskPayload
from queue_app.services import cancel_replay, discard, replay, run_replays
from queue_app.services.replay_many import start_replay

DLQ = "/api/v1/dlq"
OPERATIONS = "/api/v1/operations"
EVERYTHING = ["view_deadletter", "replay_deadletter", "discard_deadletter"]
CANARY = "hunter2-canary-9f31"


@pytest.fixture
def dead(stored):
    """Store a task that is dead, and its dead letter."""

    def make(user: str = "alice", *, seconds_ago: float = 0, **fields) -> DeadLetter:
        options = {name: fields.pop(name) for name in ("parameters", "queue", "args") if name in fields}
        task = stored(user, status="dead_letter", **options)
        died = timezone.now() - timedelta(seconds=seconds_ago)
        values = {
            "reason": "retries_exhausted",
            "attempts": 4,
            "exception_class": "builtins.ValueError",
            "message": "no luck",
            "died_at": died,
            "expires_at": died + timedelta(days=30),
        }
        return DeadLetter.objects.create(
            task_id=task.id, task_type=task.task_type, queue=task.queue, priority=task.priority, user=user,
            **values | fields,
        )  # fmt: skip

    return make


@pytest.fixture
def operator(staff):
    return staff(*EVERYTHING)


def ids(response) -> list[str]:
    assert response.status_code == 200, response.data
    return [letter["id"] for letter in response.data["results"]]


# -- lists --------------------------------------------------------------------------------------------


def test_list_latest_death_first(operator, dead):
    letters = [dead(seconds_ago=seconds) for seconds in (5, 30, 1)]
    response = operator.get(DLQ)
    assert ids(response) == [str(letters[n].id) for n in (2, 0, 1)]
    found = response.data["results"][1]
    assert {name: found[name] for name in ("task_id", "user", "reason", "attempts", "exception_class", "message")} == {
        "task_id": str(letters[0].task_id),
        "user": "alice",
        "reason": "retries_exhausted",
        "attempts": 4,
        "exception_class": "builtins.ValueError",
        "message": "no luck",
    }
    assert (found["state"], found["priority"], found["replayed_at"]) == ("open", "normal", None)


def test_pages(operator, dead):
    same = timezone.now()
    letters = [dead(died_at=same) for _ in range(3)] + [dead(seconds_ago=60 + n) for n in range(4)]
    seen, path = [], f"{DLQ}?page_size=2&queue=default"
    while path:
        response = operator.get(path)
        seen += ids(response)
        path = response.data["next"]
    assert len(seen) == len(set(seen)) == 7
    assert seen[3:] == [str(letter.id) for letter in letters[3:]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"open", "late"}),
        ("state=open", {"open", "late"}),
        ("state=replayed", {"replayed"}),
        ("state=discarded", {"discarded"}),
        ("state=all", {"open", "late", "replayed", "discarded"}),
        ("queue=reports", {"late"}),
        ("user=bob", {"late"}),
        ("reason=crash_loop&state=all", {"replayed"}),
        ("exception_class=OutOfStock", {"late"}),
        ("text=LUCK%20at", {"late"}),
        ("died_after=2030-01-01T00:00:00Z", set()),
        ("died_before=2030-01-01T00:00:00Z", {"open", "late"}),
        ("task_type=nothing", set()),
    ],
)
def test_filters(operator, dead, query, expected):
    letters = {
        "open": dead(),
        "late": dead("bob", queue="reports", exception_class="shop.OutOfStock", message="no luck at all"),
        "replayed": dead(reason="crash_loop"),
        "discarded": dead(),
    }
    replay(letters["replayed"].id, by="")
    discard(letters["discarded"].id, by="")
    assert set(ids(operator.get(f"{DLQ}?{query}"))) == {str(letters[name].id) for name in expected}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("state=dead", "unknown_status"),
        ("died_after=yesterday", "datetime_expected"),
        ("died_after=2030-01-01", "timezone_required"),
        ("queue=a%20b", "invalid_name"),
        ("text=", "blank"),
        ("text=%00", "invalid_characters"),
        ("user=a&user=b", "repeated_parameter"),
        ("page_size=0", "out_of_range"),
        ("cursor=1", "invalid_cursor"),
        ("cursor=" + "f" * 46, None),
        ("cursor=" + "0" * 46, None),
        ("message__icontains=x", "unknown_parameter"),
    ],
)
def test_odd_queries(operator, dead, query, code):
    dead()
    response = operator.get(f"{DLQ}?{query}")
    assert (response.status_code, response.data.get("code")) == ((200, None) if code is None else (400, code))


def test_secrets_are_masked(operator, alice, dead):
    letter = dead(
        parameters={"password": CANARY, "url": f"https://me:{CANARY}@example.org/"},
        message=f"refused {CANARY} at postgres://me:{CANARY}@db/x",
    )
    for client in (operator, alice):
        for path in (DLQ, f"{DLQ}/{letter.id}", f"{DLQ}/{letter.task_id}"):
            assert CANARY.encode() not in client.get(path).content


def test_inspect(operator, dead):
    letter = dead(parameters={"n": 1, "token": "abcdef"})
    data = operator.get(f"{DLQ}/{letter.id}").data
    assert (data["parameters"], data["args"], data["task_status"]) == ({"n": 1, "token": MASK}, [], "dead_letter")
    assert operator.get(f"{DLQ}/{letter.task_id}/").data["id"] == str(letter.id), "by the id of the task too"
    Task.objects.all().delete()
    TaskPayload.objects.all().delete()
    data = operator.get(f"{DLQ}/{letter.id}").data
    assert (data["parameters"], data["args"], data["task_status"]) == (None, None, None)


# -- who ----------------------------------------------------------------------------------------------


def test_own_dead_letters_only(alice, bob, dead):
    mine, theirs = dead("alice"), dead("bob")
    assert ids(alice.get(f"{DLQ}?state=all")) == [str(mine.id)]
    assert ids(alice.get(f"{DLQ}?user=bob")) == []
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/replay")):
        answers = [alice.call(method, f"{DLQ}/{name}{path}") for name in (theirs.id, theirs.task_id, uuid7(), "x")]
        assert {answer.status_code for answer in answers} == {404}
        assert len({answer.content for answer in answers}) == 1
    assert alice.get(f"{DLQ}/{mine.id}").status_code == bob.get(f"{DLQ}/{theirs.id}").status_code == 200


def test_users_replay_and_discard_nothing_not_even_their_own(alice, dead):
    letter = dead("alice")
    for method, path in (("DELETE", f"/{letter.id}"), ("POST", f"/{letter.id}/replay")):
        assert alice.call(method, DLQ + path).status_code == 403
    for path in ("/replay", "/discard"):
        assert alice.post(DLQ + path, {"ids": [str(letter.id)]}).status_code == 403
    letter.refresh_from_db()
    assert letter.state == "open"


def test_permissions_without_staff_allow_nothing(staff, dead):
    client = staff(*EVERYTHING, "view_replayoperation")
    letter = dead(client.user.username)
    User.objects.filter(pk=client.user.pk).update(is_staff=False)
    operation = start_replay_of_all()
    assert client.post(f"{DLQ}/{letter.id}/replay").status_code == 403
    assert client.delete(f"{DLQ}/{letter.id}").status_code == 403
    assert client.post(f"{DLQ}/replay", {"filter": {}}).status_code == 403
    for call in (client.get, client.delete):
        assert call(f"{OPERATIONS}/{operation.id}").data["code"] == "operation_not_found"


def start_replay_of_all() -> ReplayOperation:
    from queue_app.services.dead_letters import DeadLetterFilter  # noqa: PLC0415 - only here

    return start_replay(DeadLetterFilter(), by="somebody")


@pytest.mark.parametrize(
    ("permissions", "replays", "discards", "many"),
    [
        ([], 404, 404, (403, 403)),
        (["view_deadletter", "change_deadletter", "delete_deadletter"], 403, 403, (403, 403)),
        (["replay_deadletter", "discard_deadletter"], 404, 404, (403, 403)),
        (["view_deadletter", "replay_deadletter"], 200, 403, (202, 403)),
        (["view_deadletter", "discard_deadletter"], 403, 200, (403, 200)),
    ],
)
def test_staff_by_permission(staff, dead, permissions, replays, discards, many):
    client = staff(*permissions)
    assert client.post(f"{DLQ}/{dead().id}/replay").status_code == replays
    assert client.delete(f"{DLQ}/{dead().id}").status_code == discards
    assert client.post(f"{DLQ}/replay", {"filter": {}}).status_code == many[0]
    assert client.post(f"{DLQ}/discard", {"filter": {}}).status_code == many[1]


def test_users_do_not_learn_who_of_the_staff_it_was(alice, operator, dead):
    replayed, discarded = dead(), dead()
    replay(replayed.id, by="secret-admin")
    discard(discarded.id, by="secret-admin", reason="not worth it")
    for path in (f"{DLQ}?state=all", f"{DLQ}/{replayed.id}", f"{DLQ}/{discarded.id}"):
        answer = alice.get(path).content
        assert b"secret-admin" not in answer
        assert b"worth" not in answer
        assert b"secret-admin" in operator.get(path).content


def test_sessions_need_the_csrf_token(operator, dead):
    letter = dead()
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator.user)
    for response in (
        client.post(f"{DLQ}/{letter.id}/replay", content_type="application/json"),
        client.delete(f"{DLQ}/{letter.id}"),
        client.post(f"{DLQ}/replay", {"filter": {}}, content_type="application/json"),
    ):
        assert response.status_code == 403
    letter.refresh_from_db()
    assert letter.state == "open"


# -- replay one -----------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_replay(operator, dead):
    letter = dead()
    response = operator.post(f"{DLQ}/{letter.id}/replay")
    assert (response.status_code, response.data) == (
        200,
        {"id": str(letter.id), "task_id": str(letter.task_id), "status": "queued", "queue_position": 1},
    )
    letter.refresh_from_db()
    assert letter.replayed_by == operator.user.username
    again = operator.post(f"{DLQ}/{letter.id}/replay/")
    assert (again.status_code, again.data["code"], again.data["task_status"]) == (409, "invalid_transition", "queued")
    assert operator.user.username in again.data["detail"]
    assert operator.get(DLQ).data["results"] == []


@pytest.mark.django_db(transaction=True)
def test_replay_while_the_index_is_away(operator, dead, index_away):
    response = operator.post(f"{DLQ}/{dead().id}/replay")
    assert (response.status_code, response.data["queue_position"]) == (200, None)


def test_replay_with_other_parameters(operator, dead):
    letter = dead(parameters={"n": 1, "token": "abcdef"})
    shown = operator.get(f"{DLQ}/{letter.id}").data["parameters"]
    response = operator.post(f"{DLQ}/{letter.id}/replay", {"parameters": shown | {"n": 2}})
    assert response.status_code == 200
    assert TaskPayload.objects.get(pk=letter.task_id).parameters == {"n": 2, "token": "abcdef"}
    assert operator.get(f"{DLQ}/{letter.id}").data["parameters_edited"] is True


@pytest.mark.parametrize(
    ("body", "status", "field", "code"),
    [
        ({"parameters": [1]}, 400, "parameters", "object_expected"),
        ({"parameters": {"x": MASK}}, 400, "parameters.x", "masked_value"),
        ({"parameters": {"x": "\x00"}}, 400, "parameters.x", "nul_not_allowed"),
        ({"parameters": {"x": "y" * 300_000}}, 413, "parameters", "payload_too_large"),
        ({"force": True}, 400, "force", "unknown_field"),
        (b"[]", 400, "body", "object_expected"),
        (b"{", 400, "body", "invalid_json"),
    ],
)
def test_bad_bodies(operator, dead, body, status, field, code):
    letter = dead(parameters={"n": 1})
    response = operator.post(f"{DLQ}/{letter.id}/replay", body)
    assert (response.status_code, response.data["code"]) == (status, code)
    assert response.data["errors"][0]["field"] == field
    letter.refresh_from_db()
    assert letter.state == "open"


# -- discard -------------------------------------------------------------------------------------------


def test_discard(operator, dead):
    letter = dead()
    response = operator.delete(f"{DLQ}/{letter.id}")
    assert response.data == {"id": str(letter.id), "task_id": str(letter.task_id), "state": "discarded"}
    again = operator.call("DELETE", f"{DLQ}/{letter.id}", {"reason": "again"})
    assert (again.status_code, again.data["task_status"]) == (409, "dead_letter")
    other = dead()
    operator.call("DELETE", f"{DLQ}/{other.id}", {"reason": "customer is gone"})
    other.refresh_from_db()
    assert (other.discarded_by, other.discard_reason) == (operator.user.username, "customer is gone")
    assert operator.call("DELETE", f"{DLQ}/{dead().id}", {"reason": "x" * 201}).status_code == 400
    assert operator.post(f"{DLQ}/{other.id}/replay").status_code == 409


def test_discard_many(operator, dead):
    kept = dead("bob")
    for _ in range(3):
        dead("alice")
    body = {"filter": {"user": "alice"}, "reason": "spam"}
    preview = operator.post(f"{DLQ}/discard", body | {"dry_run": True}).data
    assert (preview["count"], len(preview["sample"])) == (3, 3)
    assert operator.post(f"{DLQ}/discard", body | {"limit": 2}).data == {"discarded": 2, "remaining": 1}
    assert operator.post(f"{DLQ}/discard", body).data == {"discarded": 1, "remaining": 0}
    assert list(DeadLetter.objects.open()) == [kept]
    assert set(DeadLetter.objects.in_state("discarded").values_list("discard_reason", flat=True)) == {"spam"}


# -- many ----------------------------------------------------------------------------------------------


def test_dry_run_changes_nothing(operator, dead):
    letters = [dead(seconds_ago=9 - n) for n in range(3)]
    response = operator.post(f"{DLQ}/replay", {"filter": {"queue": "default"}, "dry_run": True, "limit": 2})
    assert (response.status_code, response.data) == (
        200,
        {"dry_run": True, "count": 2, "sample": [str(letter.id) for letter in letters[:2]]},
    )
    assert not ReplayOperation.objects.exists()


def test_replay_many_is_an_operation(operator, dead):
    letters = [dead() for _ in range(3)]
    response = operator.post(
        f"{DLQ}/replay/",
        {"ids": [str(letter.id) for letter in letters[:2]], "rate": 0.5, "stop_after_failures": 2, "reason": "fixed"},
    )
    assert response.status_code == 202
    address = f"{OPERATIONS}/{response.data['operation_id']}"
    assert response.headers["Location"] == f"http://testserver{address}"
    expected = {"state": "running", "total": 2, "replayed": 0, "rate": 0.5, "by": operator.user.username}
    assert {name: response.data[name] for name in expected} == expected
    run_replays()
    run_replays()
    data = operator.get(address).data
    assert (data["state"], data["replayed"], data["remaining"]) == ("running", 1, 1), "at its pace"
    cancelled = operator.delete(address).data
    assert (cancelled["state"], cancelled["ended_by"]) == ("cancelled", operator.user.username)
    again = operator.delete(address)
    assert (again.status_code, again.data["code"]) == (409, "operation_ended")
    letters[0].refresh_from_db()
    assert str(letters[0].operation_id) == response.data["operation_id"]


def test_an_empty_filter_means_all(operator, dead):
    dead("alice")
    dead("bob")
    assert operator.post(f"{DLQ}/replay", {"filter": {}}).data["total"] == 2
    run_replays()
    assert set(Task.objects.values_list("status", flat=True)) == {"queued"}


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({}, "ids", "required"),
        ({"ids": None}, "ids", "required"),
        ({"ids": [], "filter": {}}, "filter", "conflicting_fields"),
        ({"ids": "all"}, "ids", "list_expected"),
        ({"ids": ["x"]}, "ids[0]", "invalid_id"),
        ({"ids": ["00000000-0000-7000-8000-000000000000"] * 1001}, "ids", "too_many"),
        ({"filter": []}, "filter", "object_expected"),
        ({"filter": {"quue": "x"}}, "filter.quue", "unknown_field"),
        ({"filter": {"queue": 5}}, "queue", "invalid_name"),
        ({"filter": {"text": 5}}, "filter.text", "string_expected"),
        ({"filter": {"died_after": "now"}}, "filter.died_after", "datetime_expected"),
        ({"filter": {"ids": []}}, "filter.ids", "unknown_field"),
        ({"filter": {}, "dry_run": "yes"}, "dry_run", "boolean_expected"),
        ({"filter": {}, "rate": 0}, "rate", "out_of_range"),
        ({"filter": {}, "rate": "fast"}, "rate", "out_of_range"),
        ({"filter": {}, "limit": True}, "limit", "out_of_range"),
        ({"filter": {}, "stop_after_failures": -1}, "stop_after_failures", "out_of_range"),
        ({"filter": {}, "reason": "x" * 201}, "reason", "invalid"),
        ({"filter": {}, "reason": "a\nb"}, "reason", "invalid_characters"),
        ({"filter": {}, "pace": 1}, "pace", "unknown_field"),
    ],
)
def test_bad_requests_for_many(operator, dead, body, field, code):
    dead()
    response = operator.post(f"{DLQ}/replay", body)
    assert (response.status_code, response.data["code"]) == (400, code)
    assert [error["field"] for error in response.data["errors"]] == [field]
    assert not ReplayOperation.objects.exists()


def test_all_errors_at_once(operator):
    body = {"filter": {"user": 1, "text": ""}, "rate": 0, "dry_run": 1, "reason": 5}
    errors = operator.post(f"{DLQ}/replay", body).data["errors"]
    assert {error["field"] for error in errors} == {"filter.user", "filter.text", "rate", "dry_run", "reason"}


@pytest.mark.parametrize("field", ["rate", "stop_after_failures"])
def test_a_discard_has_no_pace(operator, field):
    assert operator.post(f"{DLQ}/discard", {"filter": {}, field: 1}).data["code"] == "unknown_field"


def test_operations_are_for_staff(alice, staff, dead):
    operation = start_replay_of_all()
    for client in (alice, staff(), staff("view_deadletter")):
        for call in (client.get, client.delete):
            answers = [call(f"{OPERATIONS}/{name}") for name in (operation.id, uuid7(), "x")]
            assert {answer.data["code"] for answer in answers} == {"operation_not_found"}
    viewer = staff("view_replayoperation")
    assert viewer.get(f"{OPERATIONS}/{operation.id}").status_code == 200
    assert viewer.delete(f"{OPERATIONS}/{operation.id}").status_code == 403
    cancel_replay(operation.id, by="")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", DLQ),
        ("GET", f"{DLQ}/x"),
        ("DELETE", f"{DLQ}/x"),
        ("POST", f"{DLQ}/x/replay"),
        ("POST", f"{DLQ}/replay"),
        ("POST", f"{DLQ}/discard"),
        ("GET", f"{OPERATIONS}/x"),
        ("DELETE", f"{OPERATIONS}/x"),
    ],
)
def test_nobody_gets_nothing(anonymous, method, path):
    assert anonymous.call(method, path).data["code"] == "not_authenticated"


@pytest.mark.parametrize("path", [f"{DLQ}/a/b", f"{DLQ}/a/replay/b", f"{OPERATIONS}/", f"{OPERATIONS}/a/b"])
def test_addresses_that_do_not_exist(alice, path):
    assert alice.get(path).data["code"] == "not_found"
