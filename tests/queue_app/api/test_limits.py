"""Limits over the API: of queues, task types and keys; pauses of types, keys and everything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from queue_app.core.limits import FORMER_ALGORITHMS as FORMER
from queue_app.core.records import NewTask
from queue_app.models import AuditEntry, Limit, Queue, RuntimeSettings
from queue_app.services import enqueue, pause
from tests.support.factories import LimitFactory

LIMITS = "/api/v1/limits"
QUEUE = "/api/v1/queues/default"
RATE = {"rate_count": 10, "rate_seconds": 60, "rate_burst": 20}
SOON = (datetime.now(UTC) + timedelta(hours=1)).isoformat()


@pytest.fixture
def admin(staff):
    return staff(
        "view_limit", "add_limit", "change_limit", "delete_limit", "pause_limit", "view_queue", "change_queue",
        "pause_queue", "view_runtimesettings", "change_runtimesettings",
    )  # fmt: skip


def patch(client, path: str, body):
    return client.call("PATCH", path, body)


def wrong(response) -> dict[str, str]:
    """Return field -> code of an error."""
    assert response.status_code == 400, response.data
    return {error["field"]: error["code"] for error in response.data["errors"]}


def test_the_life_of_a_limit(admin):
    made = admin.post(LIMITS, {"scope": "key", "name": "customer", "max_concurrent": 2, **RATE})
    assert made.status_code == 201
    assert made.data | RATE == made.data
    path = f"{LIMITS}/{made.data['id']}"
    assert admin.get(path).data == made.data
    assert admin.get(LIMITS).data["results"] == [made.data]
    changed = patch(admin, path, {"max_concurrent": None, "rate_burst": 5})
    assert (changed.data["max_concurrent"], changed.data["rate_burst"], changed.data["rate_count"]) == (None, 5, 10)
    assert wrong(admin.post(LIMITS, {"scope": "key", "name": "customer"})) == {"name": "invalid"}
    assert admin.delete(path).data == {"id": made.data["id"], "deleted": True}
    assert not Limit.objects.exists()
    assert admin.get(path).data["code"] == "limit_not_found"
    actions = list(AuditEntry.objects.order_by("id").values_list("action", "target_id", "by"))
    by = admin.user.username
    assert actions == [(f"limit.{verb}", "key customer", by) for verb in ("add", "change", "delete")]


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        ({"scope": "planet"}, {"scope": "unknown_choice", "name": "required"}),
        ({"scope": "queue", "name": "default"}, {"scope": "unknown_choice"}),
        ({"scope": "type", "name": "a\x00"}, {"name": "invalid_characters"}),
        ({"scope": "key", "name": "x" * 129}, {"name": "invalid"}),
        ({"scope": "type", "name": "x" * 256}, {"name": "invalid"}),
        ({"scope": "type", "name": " a"}, {"name": "invalid"}),
        ({"max_concurrent": 0}, {"max_concurrent": "out_of_range"}),
        ({"max_concurrent": -1}, {"max_concurrent": "out_of_range"}),
        ({"max_concurrent": 10**9}, {"max_concurrent": "out_of_range"}),
        ({"max_concurrent": 10**18}, {"max_concurrent": "out_of_range"}),
        ({"max_concurrent": 1.5}, {"max_concurrent": "integer_expected"}),
        ({"max_concurrent": True}, {"max_concurrent": "integer_expected"}),
        ({"max_concurrent": "5"}, {"max_concurrent": "integer_expected"}),
        ({"rate_count": 5}, {"rate_seconds": "invalid"}),
        ({"rate_seconds": 5}, {"rate_count": "invalid"}),
        ({"rate_burst": 5}, {"rate_burst": "invalid"}),
        (RATE | {"rate_burst": 0}, {"rate_burst": "out_of_range"}),
        (RATE | {"rate_count": 0}, {"rate_count": "out_of_range"}),
        (RATE | {"rate_seconds": 0}, {"rate_seconds": "out_of_range"}),
        (RATE | {"rate_seconds": -5}, {"rate_seconds": "out_of_range"}),
        (RATE | {"rate_seconds": 1e9}, {"rate_seconds": "out_of_range"}),
        (RATE | {"min_delay_seconds": 7}, {"min_delay_seconds": "invalid"}),
        ({"min_delay_seconds": 0}, {"min_delay_seconds": "out_of_range"}),
        ({"throttled_until": "tomorrow"}, {"throttled_until": "datetime_expected"}),
        ({"paused": True}, {"paused": "read_only_field"}),
        ({"max_length": 5}, {"max_length": "unknown_field"}),
    ],
)
def test_invalid_limits(admin, body, faults):
    assert (
        wrong(admin.post(LIMITS, {"scope": "type", "name": "shop.mail"} | body if "scope" not in body else body))
        == faults
    )
    assert not Limit.objects.exists()
    if "scope" not in body:
        limit = LimitFactory()
        assert wrong(patch(admin, f"{LIMITS}/{limit.pk}", body)) == faults


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_numbers_that_are_not_numbers(admin, constant):
    body = f'{{"rate_count": 1, "rate_seconds": {constant}}}'.encode()
    limit = LimitFactory(name="t")
    assert patch(admin, f"{LIMITS}/{limit.pk}", body).status_code == 400
    limit.refresh_from_db()
    assert limit.rate_seconds is None


def edit(client, body):
    return client.call("PATCH", QUEUE, body, **{"If-Match": client.get(QUEUE).headers["ETag"]})


def test_a_queue_and_its_limits(admin):
    body = RATE | {
        "max_concurrent": 10, "max_concurrent_per_user": 2, "max_length": 100, "max_pending_per_user": 5,
        "order": "fair", "fair_by": "user", "fair_weights": {"ada": 2}, "min_delay_seconds": 0.5,
    }  # fmt: skip
    changed = edit(admin, body)
    assert changed.status_code == 200, changed.data
    assert changed.data | body == changed.data
    assert edit(admin, {"max_length": None}).data["max_length"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_concurrent": 2, "max_concurrent_per_user": 3}, "max_concurrent_per_user"),
        ({"max_length": 0}, "max_length"),
        ({"max_length": 1.5}, "max_length"),
        ({"max_pending_per_user": -1}, "max_pending_per_user"),
        ({"order": "lifo"}, "order"),
        ({"fair_weights": {"ada": 0}}, "fair_weights"),
        ({"fair_weights": []}, "fair_weights"),
        ({"fair_weights": {"a\x00": 1}}, "fair_weights"),
        ({"rate_count": 3}, "rate_seconds"),
        ({"rate_burst": 3}, "rate_burst"),
        (RATE | {"rate_burst": 0}, "rate_burst"),
        (RATE | {"min_delay_seconds": 7}, "min_delay_seconds"),
        ({"expire_eagerly": True}, "expire_eagerly"),
        ({"stale_after_seconds": 0}, "stale_after_seconds"),
    ],
)
def test_invalid_limits_of_a_queue(admin, body, field):
    before = admin.get(QUEUE).data
    assert set(wrong(edit(admin, body))) == {field}
    assert admin.get(QUEUE).data == before


@pytest.mark.parametrize(("scope", "name"), [("type", "shop.mail"), ("key", "customer:7"), ("everything", None)])
def test_pause_and_resume(admin, scope, name):
    what = {"scope": scope} | ({"name": name} if name else {})
    paused = admin.post(f"{LIMITS}/pause", what | {"reason": "Too many complaints.", "resume_at": SOON})
    assert paused.status_code == 200, paused.data
    assert (paused.data["name"], paused.data["paused"], paused.data["paused_by"]) == (name, True, admin.user.username)
    assert paused.data["resume_at"] is not None
    resumed = admin.post(f"{LIMITS}/resume", what)
    assert (resumed.data["paused"], resumed.data["resume_at"]) == (False, None)
    assert AuditEntry.objects.count() == 2


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        ({}, {"scope": "required"}),
        ({"scope": "type"}, {"name": "required"}),
        ({"scope": "everything", "name": "x"}, {"name": "conflicting_fields"}),
        ({"scope": "moon", "name": "x"}, {"scope": "unknown_choice"}),
        ({"scope": "everything", "resume_at": "2020-01-01T00:00:00Z"}, {"resume_at": "date_out_of_range"}),
        ({"scope": "everything", "resume_at": "2030-01-01T00:00:00"}, {"resume_at": "timezone_required"}),
    ],
)
def test_invalid_pauses(admin, body, faults):
    assert wrong(admin.post(f"{LIMITS}/pause", body)) == faults
    assert not RuntimeSettings.objects.filter(paused=True).exists()


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_the_rights_are_judged_before_the_body(staff, verb):
    answer = staff("view_limit", "change_limit").post(f"{LIMITS}/{verb}", {"scope": "nothing", "other": 1})
    assert (answer.status_code, answer.data["code"]) == (403, "permission_denied")


def test_a_pause_of_a_queue_can_end_by_itself(admin):
    assert admin.post(f"{QUEUE}/pause", {"resume_at": SOON}).data["resume_at"] is not None
    assert admin.post(f"{QUEUE}/resume").data["resume_at"] is None
    assert wrong(admin.post(f"{QUEUE}/pause", {"resume_at": 5})).keys() == {"resume_at"}


def test_each_verb_needs_its_permission(alice, staff):
    limit = LimitFactory(name="t")
    calls = {
        "view_limit": [("GET", LIMITS, None), ("GET", f"{LIMITS}/{limit.pk}", None)],
        "add_limit": [("POST", LIMITS, {"scope": "type", "name": "u"})],
        "change_limit": [("PATCH", f"{LIMITS}/{limit.pk}", {"max_concurrent": 5})],
        "pause_limit": [("POST", f"{LIMITS}/pause", {"scope": "type", "name": "t"})],
        "pause_queue": [("POST", f"{LIMITS}/pause", {"scope": "everything"})],
        "delete_limit": [("DELETE", f"{LIMITS}/{limit.pk}", None)],
    }
    for codename, refused in calls.items():
        others = staff(*(set(calls) - {codename}))
        for call in refused:
            for client in (alice, others):
                response = client.call(*call)
                assert (response.status_code, response.data["code"]) == (403, "permission_denied"), call
    for codename, allowed in calls.items():
        for call in allowed:
            assert staff(codename).call(*call).status_code in (200, 201), call


@pytest.mark.parametrize("name", ["0", "x", "-1", "1" * 30, "%00", "1.0"])
def test_invalid_ids(admin, name):
    assert admin.get(f"{LIMITS}/{name}").data["code"] == "limit_not_found"


# -- admission ------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_full_queue_answers_429_with_the_numbers(alice, plain_type):
    Queue.objects.filter(pk="default").update(max_length=1)
    first = alice.submit(task_type=plain_type, idempotency_key="k")
    assert first.status_code == 201
    refused = alice.submit(task_type=plain_type)
    assert (refused.status_code, refused.data["code"]) == (429, "queue_full")
    assert (refused.data["queue"], refused.data["limit"], refused.data["current"]) == ("default", 1, 1)
    assert int(refused.headers["Retry-After"]) > 0
    again = alice.submit(task_type=plain_type, idempotency_key="k")
    assert (again.status_code, again.data["task_id"]) == (200, first.data["task_id"])


@pytest.mark.django_db(transaction=True)
def test_a_user_has_a_hundred_pending_tasks_by_default(alice, bob, plain_type):
    for _ in range(100):
        enqueue(NewTask(task_type=plain_type, user="alice"))
    refused = alice.submit(task_type=plain_type)
    assert (refused.status_code, refused.data["code"]) == (429, "user_limit_exceeded")
    assert (refused.data["limit"], refused.data["current"], refused.data["queue"]) == (100, 100, None)
    assert bob.submit(task_type=plain_type).status_code == 201


# -- explain --------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_explain_shows_owners_that_it_is_paused_and_staff_by_whom_and_why(alice, bob, staff, stored):
    task = stored()
    path = f"/api/v1/tasks/{task.pk}/explain"
    pause("default", by="root", reason="Stock-taking.")
    told = alice.get(path).data
    assert (told["task_id"], told["status"], told["blocked"]) == (str(task.pk), "queued", True)
    paused = next(reason for reason in told["reasons"] if reason["code"] == "paused")
    assert "The queue default is paused since" in paused["text"]
    assert "Stock-taking." not in str(told)
    assert "root" not in str(told)
    shown = str(staff("view_task").get(path).data)
    assert "paused by root" in shown
    assert "Stock-taking." in shown
    assert bob.get(path).data["code"] == "task_not_found"
    assert alice.get("/api/v1/tasks/nothing/explain").data["code"] == "task_not_found"
    assert alice.get(f"/api/v1/tasks/{stored(status='completed').pk}/explain").data["reasons"][0]["code"] == "finished"


def test_the_limits_over_all_queues(admin):
    path = f"{LIMITS}/everything"
    assert admin.get(path).data["max_concurrent"] is None
    fields = {"adaptive": "gradient2", "min_concurrent": 2, "max_concurrent": 40}
    changed = patch(admin, path, fields | {"reason": "a new database"})
    assert changed.status_code == 200, changed.data
    assert changed.data | fields == changed.data
    assert admin.get(path).data == changed.data
    entry = AuditEntry.objects.get()
    assert (entry.target, entry.via, entry.reason) == ("runtimesettings", "api", "a new database")
    assert (entry.before["max_concurrent"], entry.after) == (None, fields)
    assert wrong(patch(admin, path, {"max_concurrent": None})) == {"max_concurrent": "invalid"}
    assert wrong(patch(admin, path, {"min_concurrent": 50})) == {"min_concurrent": "invalid"}
    assert wrong(patch(admin, path, {"paused": True})) == {"paused": "read_only_field"}
    assert patch(admin, path, {"reason": "none"}).status_code == 400
    assert AuditEntry.objects.count() == 1, "what was refused left nothing"


def test_the_limits_over_all_queues_need_a_permission(staff):
    reader = staff("view_limit", "change_limit", "view_runtimesettings")
    assert reader.get(f"{LIMITS}/everything").status_code == 200
    assert patch(reader, f"{LIMITS}/everything", {"max_concurrent": 5}).status_code == 403
    assert staff("view_limit").get(f"{LIMITS}/everything").status_code == 403


@pytest.mark.parametrize("former", FORMER)
def test_the_name_of_a_former_algorithm_is_taken_for_the_present_one(admin, former):
    limit = LimitFactory(scope="key", name="customer")
    answer = patch(admin, f"{LIMITS}/{limit.pk}", {"adaptive": former, "max_concurrent": 9})
    assert answer.data["adaptive"] == "gradient2"
    limit.refresh_from_db()
    assert limit.adaptive == "gradient2"


def test_an_unknown_word_is_answered_with_the_known_ones(admin):
    limit = LimitFactory(scope="key", name="customer")
    answer = patch(admin, f"{LIMITS}/{limit.pk}", {"adaptive": "aimed"})
    assert answer.data["detail"] == "'aimed' is unknown; adaptive takes \"\", gradient2."
