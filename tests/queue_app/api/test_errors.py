"""The shape of errors from every source."""

from __future__ import annotations

import json

import pytest
from django.db import DataError, InterfaceError, OperationalError
from django.test import Client, RequestFactory
from rest_framework.exceptions import Throttled

from queue_app.api.base import ApiView, accepts
from queue_app.api.errors import printable
from queue_app.exceptions import IndexNotReady, IndexUnavailable

TASKS = "/api/v1/tasks"


@pytest.mark.parametrize(
    "accept",
    [
        "application/json",
        "application/problem+json",
        "image/png,*/*;q=0.1",
        "",
    ],
)
def test_clients_that_accept_json_get_json(alice, accept):
    response = alice.http.get(TASKS, headers={"Accept": accept})
    assert response.status_code == (200 if accept else 406)
    assert json.loads(response.content)


@pytest.mark.parametrize("path", [TASKS, f"{TASKS}/abc", "/healthz", "/readyz", "/api/v1/queue/stats"])
def test_others_get_406(alice, path):
    for accept in ("text/plain", "application/xml", "image/*", "nonsense", "/", ";;,,", "a" * 20_000):
        response = alice.get(path, Accept=accept)
        assert (response.status_code, response.data["code"]) == (406, "not_acceptable"), accept


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_public_addresses_have_no_page(anonymous, path):
    assert anonymous.get(path, Accept="text/html").status_code == 406


@pytest.mark.parametrize("query", ["format=xml", "format=%00"])
def test_unknown_formats_are_not_acceptable(alice, query):
    assert alice.get(f"{TASKS}?{query}").data["code"] == "not_acceptable"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PATCH", TASKS),
        ("GET", f"{TASKS}/abc/priority"),
        ("POST", "/api/v1/queue/stats"),
        ("POST", "/healthz"),
        ("BREW", TASKS),
    ],
)
def test_unknown_methods(staff, method, path):
    response = staff("pause_queue", "view_queue").call(method, path)
    assert (response.status_code, response.data["code"]) == (405, "method_not_allowed")
    assert response.headers["Allow"]


def test_addresses_that_do_not_exist(alice, anonymous):
    for path in (
        "tasks/a/b", "tasks//", "tasks/a/priority/x", "queue/", "queues//", "queues/a/b", "dlq/a/b", "dlq/a/replay/b",
        "operations/a/b",
    ):  # fmt: skip
        for method in ("GET", "POST", "DELETE"):
            for client in (alice, anonymous):
                assert client.call(method, f"/api/v1/{path}").data["code"] == "not_found", path


def test_addresses_of_the_project_are_left_alone():
    assert "json" not in Client().get("/api/v1/orders").headers["Content-Type"]


def raising(error: Exception):
    class Raising(ApiView):
        permission_classes = ()

        @accepts("view_task")
        def get(self, request):
            raise error

    return Raising.as_view()


def with_cause(error: Exception, sqlstate: str) -> Exception:
    cause = Exception("could not extend file /srv/postgres/base: secret")
    cause.sqlstate = sqlstate
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "status", "code", "header"),
    [
        (OperationalError("host=10.0.0.1 password=x"), 503, "database_unavailable", "2"),
        (InterfaceError("secret"), 503, "database_unavailable", "2"),
        (with_cause(OperationalError("secret"), "53100"), 503, "storage_full", "2"),
        (DataError("secret"), 400, "invalid_value", None),
        (IndexUnavailable("redis://secret"), 503, "index_unavailable", "2"),
        (IndexNotReady("secret"), 503, "index_not_ready", "2"),
        (Throttled(17), 429, "throttled", "17"),
        (ZeroDivisionError("secret"), 500, "internal_error", None),
    ],
)
def test_errors_from_below_reveal_nothing_about_the_server(rf: RequestFactory, caplog, error, status, code, header):
    response = raising(error)(rf.get("/x\x1b"))
    response.render()
    problem = json.loads(response.content)
    assert (response.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.headers.get("Retry-After") == header
    assert b"secret" not in response.content
    assert b"password" not in response.content
    assert "\x1b" not in caplog.text.split("Traceback")[0]
    assert ("Traceback" in caplog.text) == (status == 500)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b", "a\\x00b"),
        ("a\r\nb", "a\\r\\nb"),
        ("\u202e", "\\u202e"),
        ("\ud800", "\\ud800"),
    ],
)
def test_unprintable_characters_are_escaped(text, shown):
    assert printable(text) == shown


def test_long_text_is_cut():
    assert len(printable("x" * 10_000)) == 500


@pytest.mark.parametrize("path", [TASKS, "/healthz", "/internal/workers/register", "/api/schema"])
@pytest.mark.parametrize("host", ["evil.example", "a b", "[::1"])
def test_a_wrong_host_gets_a_problem_too(client, db, path, host):
    """Django refuses it before it looks for a view; ``handler400`` of the project names our answer."""
    response = client.get(path, headers={"Host": host})
    assert (response.status_code, response.headers["Content-Type"]) == (400, "application/problem+json")
    assert json.loads(response.content)["code"] == "bad_request"
    assert "html" in client.get("/admin/", headers={"Host": host}).headers["Content-Type"]
