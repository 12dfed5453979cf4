"""Dead letters over HTTP: lists, replays, discards, operations; permissions and bad requests."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from queue_app.core.ids import uuid7
from queue_app.core.redaction import MASK
from queue_app.models import AuditEntry, DeadLetter, Operation, Task, TaskPayload
from queue_app.services import discard, replay
from queue_app.services.operations.request import start_replay

DLQ = "/api/v1/dlq"
OPERATIONS = "/api/v1/operations"
EVERYTHING = ["view_deadletter", "view_payload", "replay_deadletter", "discard_deadletter"]
CANARY = "hunter2-canary-9f31"


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


#: Query -> which of the four letters of the test it finds.
FILTERS = {
    "": {"open", "late"}, "state=open": {"open", "late"}, "state=replayed": {"replayed"},
    "state=discarded": {"discarded"}, "state=all": {"open", "late", "replayed", "discarded"}, "queue=reports": {"late"},
    "user=bob": {"late"}, "reason=crash_loop&state=all": {"replayed"}, "exception_class=OutOfStock": {"late"},
    "text=LUCK%20at": {"late"}, "died_after=2030-01-01T00:00:00Z": set(),
    "died_before=2030-01-01T00:00:00Z": {"open", "late"}, "task_type=nothing": set(),
}  # fmt: skip
#: Query -> the code of its error, if it is one.
ODD = {
    "state=dead": "unknown_status", "died_after=yesterday": "datetime_expected",
    "died_after=2030-01-01": "timezone_required", "queue=a%20b": "invalid_name", "text=": "blank",
    "text=%00": "invalid_characters", "user=a&user=b": "repeated_parameter", "page_size=0": "out_of_range",
    "cursor=1": "invalid_cursor", "cursor=" + "f" * 46: None, "cursor=" + "0" * 46: None,
    "message__icontains=x": "unknown_parameter",
}  # fmt: skip


def test_filters(operator, dead):
    letters = {
        "open": dead(),
        "late": dead("bob", queue="reports", exception_class="shop.OutOfStock", message="no luck at all"),
        "replayed": dead(reason="crash_loop"),
        "discarded": dead(),
    }
    replay(letters["replayed"].id, by="")
    discard(letters["discarded"].id, by="")
    for query, expected in FILTERS.items():
        assert set(ids(operator.get(f"{DLQ}?{query}"))) == {str(letters[name].id) for name in expected}, query
    for query, code in ODD.items():
        response = operator.get(f"{DLQ}?{query}")
        assert (response.status_code, response.data.get("code")) == ((400, code) if code else (200, None)), query


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


def test_users_cannot_replay_or_discard_even_their_own(alice, dead):
    letter = dead("alice")
    for method, path in (("DELETE", f"/{letter.id}"), ("POST", f"/{letter.id}/replay")):
        assert alice.call(method, DLQ + path).status_code == 403
    for path in ("/replay", "/discard"):
        assert alice.post(DLQ + path, {"ids": [str(letter.id)]}).status_code == 403
    letter.refresh_from_db()
    assert letter.state == "open"


def test_permissions_without_staff_allow_nothing(staff, dead):
    client = staff(*EVERYTHING, "view_operation")
    letter = dead(client.user.username)
    User.objects.filter(pk=client.user.pk).update(is_staff=False)
    operation = start_replay_of_all()
    assert client.post(f"{DLQ}/{letter.id}/replay").status_code == 403
    assert client.delete(f"{DLQ}/{letter.id}").status_code == 403
    assert client.post(f"{DLQ}/replay", {"filter": {}}).status_code == 403
    for call in (client.get, client.delete):
        assert call(f"{OPERATIONS}/{operation.id}").data["code"] == "operation_not_found"


def start_replay_of_all() -> Operation:
    from queue_app.services.read.dead_letters import DeadLetterFilter  # noqa: PLC0415 - only here

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


def test_users_do_not_learn_which_staff_member_acted(alice, operator, dead):
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


def test_the_audit_log_holds_the_reason_of_a_replay(operator, dead):
    letter = dead()
    assert operator.post(f"{DLQ}/{letter.id}/replay", {"reason": "the mail server is back"}).status_code == 200
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.by) == (
        "letter-replay.post",
        "the mail server is back",
        operator.user.username,
    )


@pytest.mark.parametrize(
    ("body", "status", "field", "code"),
    [
        ({"reason": "x" * 201}, 400, "reason", "invalid"),
        ({"parameters": [1]}, 400, "parameters", "object_expected"),
        ({"parameters": {"x": MASK}}, 400, "parameters.x", "masked_value"),
        ({"force": True}, 400, "force", "unknown_field"),
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
