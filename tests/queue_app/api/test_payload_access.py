"""Parameters, results, errors and logs of other users' tasks need view_payload in every endpoint."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib import import_module
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.urls import reverse

from queue_app.models import AuditEntry, DeadLetter, Operation, Task, TaskLog, TaskProgress, TaskResult
from queue_app.services.control.api_keys import create_key, forget_keys
from tests.queue_app.api.conftest import ApiClient
from tests.support.factories import AttemptFactory, StaffFactory

CANARY = "canary5150"
API = "/api/v1"
MOMENT = datetime(2030, 1, 31, 12, tzinfo=UTC)
#: All permissions of staff except view_payload.
REST = (
    "view_task", "cancel_task", "reprioritise_task", "retry_task", "view_deadletter", "replay_deadletter",
    "discard_deadletter", "view_operation", "view_worker",
)  # fmt: skip
#: Addresses of a task, a dead letter or an operation, and whether they show its payload with the permission.
SHOWN = [
    ("/tasks/{task}", True),
    ("/tasks/{task}?wait=1", True),
    ("/tasks/{task}/explain", False),
    ("/tasks", False),
    ("/admin/tasks", False),
    ("/tasks?fields=task_id,status", False),
    ("/tasks/export", False),
    ("/tasks/export?format=csv", False),
    ("/dlq", True),
    ("/dlq/{letter}", True),
    ("/dlq/{task}", True),
    ("/operations/{operation}", True),
]
FILTER = {"parameters": {"name": CANARY}}
#: Requests that search for the text: (method, address, body).
SOUGHT = [
    *(("GET", f"{path}{query}", None)
      for path in ("/tasks", "/admin/tasks", "/tasks/count", "/tasks/export")
      for query in (f"?parameters__name={CANARY}", f"?error={CANARY}")),
    ("GET", f"/dlq?text={CANARY}", None),
    *(("POST", "/tasks/bulk-actions", {"action": "cancel", "filter": wanted, "dry_run": dry})
      for wanted in (FILTER, {"error": CANARY}) for dry in (True, False)),
    *(("POST", f"/dlq/{verb}", {"filter": {"text": CANARY}, "dry_run": dry})
      for verb in ("replay", "discard") for dry in (True, False)),
]  # fmt: skip


@pytest.fixture
def secret(dead):
    """Store a dead task of alice with the text in all places, and an operation of alice that searches for it."""
    letter = dead("alice", parameters={"name": CANARY}, args=(CANARY,), message=f"no {CANARY}")
    name = letter.task_id
    Task.objects.filter(pk=name).update(attempt=1)
    AttemptFactory(
        task_id=name, exception_class="shop.OutOfStock", message=f"no {CANARY}", traceback=f"Traceback: {CANARY}"
    )
    TaskResult.objects.create(task_id=name, value={"name": CANARY})
    TaskProgress.objects.create(task_id=name, attempt=1, fraction=0.5, message=CANARY, updated_at=MOMENT)
    TaskLog.objects.create(task_id=name, attempt=1, lines=f"INFO {CANARY}", updated_at=MOMENT)
    operation = Operation.objects.create(
        kind="cancel", target="tasks", filter={"parameters": [[{"name": CANARY}]], "error": CANARY, "queues": ["q"]},
        arguments={}, by="alice", total=0, created_at=MOMENT, paced_at=MOMENT,
    )  # fmt: skip
    return SimpleNamespace(task=name, letter=letter.id, operation=operation.id)


@pytest.fixture
def in_group(queues):
    """Create staff in one of the groups of the migrations."""

    def make(name: str) -> ApiClient:
        import_module("queue_app.migrations.0002_defaults").create_groups(apps, "default")
        user = StaffFactory(username=name)
        user.groups.add(Group.objects.get(name=f"Task queue: {name}"))
        return ApiClient(user)

    return make


@pytest.fixture
def with_scopes(queues):
    """Return a client with a key of a superuser that has these scopes."""
    forget_keys()

    def make(*scopes: str) -> ApiClient:
        user = User.objects.create_superuser(f"root-{len(scopes)}")
        _key, key = create_key(user, "laptop", scopes=scopes)
        return ApiClient(None, headers={"Authorization": f"Bearer {key}"})

    yield make
    forget_keys()


def texts(client: ApiClient, path: str) -> list[str]:
    """Return the answers of an address to programs and to browsers."""
    found = []
    for accept in ("application/json", "text/html"):
        response = client.http.get(path, headers={"Accept": accept})
        assert response.status_code == 200, (path, response.content)
        assert response.headers["Cache-Control"] == "no-store"
        found.append(b"".join(response.streaming_content if response.streaming else [response.content]).decode())
    return found


def test_payloads_of_others_need_the_permission(alice, staff, in_group, with_scopes, secret):
    without = (staff(*REST), in_group("Viewer"), with_scopes(*REST))
    permitted = (staff(*REST, "view_payload"), in_group("Operator"), with_scopes(*REST, "view_payload"))
    for address, tells in SHOWN:
        path = API + address.format_map(vars(secret))
        for client in without:
            assert not any(CANARY in text for text in texts(client, path)), path
        for client in permitted:
            assert all((CANARY in text) is tells for text in texts(client, path)), path
        if "admin" not in address:
            assert all((CANARY in text) is tells for text in texts(alice, path)), "owners read their own"


def test_hidden_payloads_are_null_and_marked(staff, secret):
    viewer, operator = staff(*REST), staff(*REST, "view_payload")
    task = viewer.get(f"{API}/tasks/{secret.task}").data
    assert task["payload_hidden"] is True
    assert [task[name] for name in ("args", "parameters", "result", "logs", "error")] == [None] * 5
    [attempt] = task["attempts"]
    assert [attempt[name] for name in ("exception_class", "message", "traceback")] == [None] * 3
    assert (task["progress"]["fraction"], task["progress"]["message"]) == (0.5, None)
    letter = viewer.get(f"{API}/dlq/{secret.letter}").data
    assert [letter[name] for name in ("payload_hidden", "args", "parameters", "message")] == [True, None, None, None]
    wanted = viewer.get(f"{API}/operations/{secret.operation}").data["filter"]
    assert wanted == {"parameters": None, "error": None, "queues": ["q"]}
    shown = str(operator.get(f"{API}/tasks/{secret.task}").data)
    assert shown.count(CANARY) == 8
    assert "'payload_hidden': False" in shown


@pytest.mark.parametrize(("method", "address", "body"), SOUGHT)
def test_hidden_payloads_cannot_be_found_by_trying(alice, staff, with_scopes, secret, method, address, body):
    path = API + address
    for client in (staff(*REST), with_scopes(*REST)):
        response = client.call(method, path, body)
        assert (response.status_code, response.data["code"]) == (403, "permission_denied")
        assert "queue_app.view_payload" in response.data["detail"]
    assert Operation.objects.count() == 1
    assert DeadLetter.objects.open().count() == 1
    client = staff(*REST)  # callers may search their own tasks
    name = client.user.username
    mine = body and body | {"filter": body["filter"] | {"user": name}}
    response = client.http.generic(method, f"{path}&user={name}" if body is None else path, *sent(mine))
    assert response.status_code in {200, 202}
    if "/admin/" not in address and "/dlq/" not in address:
        assert alice.http.generic(method, path, *sent(body)).status_code in {200, 202}
    assert staff(*REST, "view_payload").http.generic(method, path, *sent(body)).status_code in {200, 202}


def sent(body) -> tuple[str, str]:
    return ("" if body is None else json.dumps(body), "application/json")


def test_parameters_that_cannot_be_read_cannot_be_edited(staff, secret):
    path, body = f"{API}/dlq/{secret.letter}/replay", {"parameters": {"name": "other"}}
    response = staff(*REST).post(path, body)
    assert (response.status_code, response.data["code"]) == (403, "permission_denied")
    assert "queue_app.view_payload" in response.data["detail"]
    assert DeadLetter.objects.get().state == "open"
    assert staff(*REST, "view_payload").post(path, body).status_code == 200


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_the_audit_log_holds_the_reason_but_no_payload(in_group, dead, verb):
    dead("alice", message=f"no {CANARY}")
    asked = {"filter": {"text": CANARY}, "reason": "the shop is back"}
    operator = in_group("Operator")
    assert operator.post(f"{API}/dlq/{verb}", asked | {"dry_run": True}).status_code == 200
    assert not AuditEntry.objects.exists(), "nothing was changed"
    assert operator.post(f"{API}/dlq/{verb}", asked).status_code == (202 if verb == "replay" else 200)
    [entry] = AuditEntry.objects.order_by("-id")[:1]
    assert entry.reason == "the shop is back"
    assert CANARY not in json.dumps([entry.before, entry.after])


def test_the_parameters_of_a_replay_are_not_in_the_audit_log(in_group, dead):
    letter = dead("alice", parameters={"name": "old"})
    asked = {"parameters": {"name": CANARY}}
    assert in_group("Operator").post(f"{API}/dlq/{letter.pk}/replay", asked).status_code == 200
    [entry] = AuditEntry.objects.order_by("-id")[:1]
    assert CANARY not in json.dumps([entry.before, entry.after])


def test_the_page_of_an_operation_shows_its_filter_only_with_the_permission(client, secret):
    for codenames, tells in ((["view_operation"], False), (["view_operation", "view_payload"], True)):
        user = StaffFactory(permissions=codenames)
        client.force_login(user)
        page = client.get(reverse("admin:queue_app_operation_change", args=[secret.operation]))
        assert page.status_code == 200
        assert (CANARY in page.content.decode()) is tells
