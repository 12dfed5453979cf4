"""Who may do what; the tasks of other users look missing."""

from __future__ import annotations

import base64
import json
import re

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver
from rest_framework.authtoken.models import Token

from queue_app.api.base import ApiView
from queue_app.api.views import docs, health, metrics
from queue_app.api.views.docs import document
from queue_app.core.ids import uuid7
from queue_app.core.priorities import Band
from queue_app.models import Queue

TASKS = "/api/v1/tasks"
MISSING = "00000000-0000-7000-8000-000000000000"
PRIORITY = {"priority": "high"}
#: (method, path after the id, body)
ONE_TASK = [("GET", "", None), ("DELETE", "", None), ("PUT", "/priority", PRIORITY)]


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


class TestWho:
    def test_anonymous_callers_are_refused(self, anonymous):
        asked = 0
        for path, methods in document()["paths"].items():
            for method, operation in methods.items():
                if {"password": []} not in operation["security"]:
                    continue
                address = re.sub(r"{[^}]*}", MISSING, path)
                for spelling in (address, address.rstrip("/")):
                    response = anonymous.call(method.upper(), spelling)
                    assert (response.status_code, response.data["code"]) == (401, "not_authenticated"), spelling
                    assert response.headers["WWW-Authenticate"] == 'Bearer realm="task queue"'
                    asked += 1
        assert asked > 120

    @pytest.mark.parametrize(
        "authorization",
        [
            "Basic !!!",
            "Basic " + base64.b64encode(b"alice").decode(),
            "Basic " + base64.b64encode(b"alice:wrong").decode(),
            "Basic " + base64.b64encode(b"a\x00lice:wonderland").decode(),
            "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(),
            "Token nothing",
            "Token \xff",
        ],
    )
    def test_bad_credentials_get_one_answer(self, alice, anonymous, authorization):
        response = anonymous.call("GET", TASKS, Authorization=authorization)
        assert (response.status_code, response.data["code"]) == (401, "authentication_failed")
        assert response.data["detail"] == "These credentials are not valid."

    def test_inactive_users_are_refused(self, alice, anonymous):
        token = Token.objects.create(user=alice.user)
        User.objects.update(is_active=False)
        for headers in (basic("alice", "wonderland"), {"Authorization": f"Token {token.key}"}):
            assert anonymous.call("GET", TASKS, **headers).data["code"] == "authentication_failed"
        assert alice.get(TASKS).data["code"] == "not_authenticated"

    def test_session_password_and_token(self, alice, anonymous, plain_type):
        token = Token.objects.create(user=alice.user)
        body = {"task_type": plain_type}
        answers = [
            alice.submit(**body),
            anonymous.call("POST", TASKS, body, **basic("alice", "wonderland")),
            anonymous.call("POST", TASKS, body, Authorization=f"Token {token.key}"),
        ]
        assert [answer.status_code for answer in answers] == [201] * 3
        assert len(alice.get(TASKS).data["results"]) == 3

    def test_sessions_need_the_csrf_token(self, alice, plain_type):
        client = Client(enforce_csrf_checks=True)
        client.force_login(alice.user)
        response = client.post(TASKS, {"task_type": plain_type}, content_type="application/json")
        assert (response.status_code, json.loads(response.content)["code"]) == (403, "permission_denied")

    def test_a_session_id_with_nul_is_refused(self, anonymous):
        anonymous.http.cookies["sessionid"] = "\x00" * 32
        assert anonymous.get(TASKS).status_code in {400, 401}


class TestOwnTasks:
    def test_lists_contain_only_own_tasks(self, alice, bob, stored):
        mine = stored("alice")
        stored("bob")
        stored("")  # without a user
        for query in ("", "?status=pending", "?user=alice", "?queue=default"):
            assert [task["task_id"] for task in alice.get(TASKS + query).data["results"]] == [str(mine.id)]
        assert alice.get(f"{TASKS}?user=bob").data["results"] == []

    @pytest.mark.parametrize(("method", "end", "body"), ONE_TASK)
    def test_ids_of_other_users_answer_like_missing_ones(self, alice, bob, stored, method, end, body):
        task = stored("bob")
        theirs = alice.call(method, f"{TASKS}/{task.id}{end}", body)
        missing = alice.call(method, f"{TASKS}/{uuid7()}{end}", body)
        nonsense = alice.call(method, f"{TASKS}/nonsense{end}", body)
        assert (theirs.status_code, theirs.data["code"]) == (404, "task_not_found")
        assert theirs.content == missing.content == nonsense.content
        assert dict(theirs.headers) == dict(missing.headers)
        task.refresh_from_db()
        assert (task.status, task.band) == ("queued", Band.NORMAL)
        assert bob.call(method, f"{TASKS}/{task.id}{end}", body).status_code == 200

    def test_a_cursor_of_another_users_task_reveals_nothing(self, alice, stored):
        mine = stored("alice")
        theirs = stored("bob")
        results = alice.get(f"{TASKS}?cursor={theirs.id.hex}").data["results"]
        assert [task["task_id"] for task in results] == [str(mine.id)]


class TestStaff:
    @pytest.mark.parametrize(
        ("permissions", "statuses"),
        [
            ([], (404, 404, 404)),
            (["cancel_task", "reprioritise_task", "change_task"], (404, 404, 404)),
            (["view_task"], (200, 403, 403)),
            (["view_task", "cancel_task"], (200, 200, 403)),
            (["view_task", "reprioritise_task"], (200, 403, 200)),
            (["view_task", "change_task", "delete_task"], (200, 403, 403)),
        ],
    )
    def test_act_on_tasks_of_others_by_permission(self, staff, stored, permissions, statuses):
        client = staff(*permissions)
        for (method, end, body), status in zip(ONE_TASK, statuses, strict=True):
            task = stored("alice")
            assert client.call(method, f"{TASKS}/{task.id}{end}", body).status_code == status
            task.refresh_from_db()
            assert (task.status == "cancelled", task.band is Band.HIGH) == (
                method == "DELETE" and status == 200,
                method == "PUT" and status == 200,
            )

    def test_permissions_without_staff_show_nothing(self, staff, stored):
        client = staff("view_task", "cancel_task", "pause_queue")
        User.objects.filter(pk=client.user.pk).update(is_staff=False)
        assert client.get(f"{TASKS}/{stored('alice').id}").status_code == 404
        assert client.post("/api/v1/queues/default/pause").status_code == 403

    def test_need_no_permission_for_own_tasks(self, staff, stored):
        client = staff()
        for method, end, body in ONE_TASK:
            task = stored(client.user.username)
            assert client.call(method, f"{TASKS}/{task.id}{end}", body).status_code == 200

    @pytest.mark.parametrize("action", ["pause", "resume"])
    @pytest.mark.parametrize("name", ["default", "nowhere", "%00"])
    def test_pausing_a_queue_needs_a_permission(self, alice, staff, action, name):
        for client in (alice, staff("view_task", "change_queue")):
            response = client.post(f"/api/v1/queues/{name}/{action}")
            assert (response.status_code, response.data["code"]) == (403, "permission_denied")
        assert not Queue.objects.filter(paused=True).exists()


def test_only_health_metrics_and_docs_are_public():
    views = {
        pattern.callback.cls
        for pattern in next(r for r in get_resolver().url_patterns if r.app_name == "queue_app").url_patterns
        if hasattr(pattern.callback, "cls")  # the status page is no part of the API
        and ".remote." not in pattern.callback.cls.__module__  # these need a worker token
    }
    assert len(views) >= 9
    opened = {view for view in views if "IsAuthenticated" not in {p.__name__ for p in view.permission_classes}}
    assert opened == {
        health.LiveView,
        health.ReadyView,
        metrics.MetricsView,
        docs.DocsView,
        docs.SchemaView,
    }
    assert all(issubclass(view, ApiView) for view in views)
