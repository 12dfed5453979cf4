"""API keys: the holder acts as the user, within scopes and time."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.urls import get_resolver
from django.utils import timezone

from queue_app.api.base import BY_CONTENT, ApiView, NotFoundView, accepts
from queue_app.api.views.metrics import MetricsView
from queue_app.api.views.status_page import StatusView
from queue_app.core.ids import uuid7
from queue_app.exceptions import InvalidTaskData
from queue_app.models import ApiKey
from queue_app.services.control.api_keys import SCOPES, create_key, find_key, forget_keys, revoke_key
from queue_app.services.notify import subscribe

TASKS = "/api/v1/tasks"


@pytest.fixture(autouse=True)
def forgetful():
    forget_keys()
    yield
    forget_keys()


@pytest.fixture
def with_key(alice, anonymous):
    """Return a client with one of alice's keys that has these scopes."""

    def make(*scopes, user=alice.user, **options):
        _key, secret = create_key(user, "laptop", scopes=scopes or None, **options)

        def call(method, path, body=None):
            return anonymous.call(method, path, body, Authorization=f"Bearer {secret}")

        return call

    return make


def test_the_secret_is_not_stored(alice):
    key, secret = create_key(alice.user, "laptop", by="root")
    assert secret.startswith(f"tq_{key.prefix}_")
    assert secret not in str(ApiKey.objects.values().get())
    assert find_key(secret).user == alice.user
    assert ApiKey.objects.get().last_used_at is not None
    with pytest.raises(InvalidTaskData, match="is not a scope"):
        create_key(alice.user, "laptop", scopes=["everything"])


def test_a_key_acts_as_its_user(with_key, stored, plain_type):
    mine, foreign = stored(), stored("bob")
    call = with_key()
    assert [task["task_id"] for task in call("GET", TASKS).data["results"]] == [str(mine.id)]
    assert call("GET", f"{TASKS}/{foreign.id}").status_code == 404
    assert call("POST", TASKS, {"task_type": plain_type}).status_code == 201


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [(["view_task"], {"GET"}), (["add_task"], {"POST"}), (["cancel_task", "view_task"], {"GET", "DELETE", "actions"})],
)
def test_scopes(with_key, stored, plain_type, scopes, allowed):
    task, call = stored(), with_key(*scopes)
    for name, method, path, body in (
        ("GET", "GET", TASKS, None),
        ("POST", "POST", TASKS, {"task_type": plain_type}),
        ("PUT", "PUT", f"{TASKS}/{task.id}/priority", {"priority": "high"}),
        ("actions", "POST", f"{TASKS}/bulk-actions", {"action": "cancel", "filter": {}, "dry_run": True}),
        ("DELETE", "DELETE", f"{TASKS}/{task.id}", None),
    ):
        assert (call(method, path, body).status_code < 300) == (name in allowed), name


def routes():
    """Yield (view, methods, address) of every route that a key opens."""
    [resolver] = [one for one in get_resolver().url_patterns if getattr(one, "app_name", "") == "queue_app"]
    for pattern in resolver.url_patterns:
        view = pattern.callback.view_class
        if view is StatusView:  # of end users, with a session
            continue
        if view.authentication_classes and view not in {
            NotFoundView,
            MetricsView,
        }:  # metrics admit this machine without a key
            address = re.sub(r"\(\?P<(\w+)>[^)]*\)", str(uuid7()), str(pattern.pattern)).strip("^").split("/?")[0]
            methods = {name.upper() for name in view.http_method_names if hasattr(view, name)} - {"HEAD", "OPTIONS"}
            yield view, methods, f"/{address}"


def test_every_route_needs_a_scope_that_exists(with_key, db, queues):
    """A key with another scope is refused everywhere, also that of a superuser."""
    root = User.objects.create_superuser("root")
    asked = 0
    for view, methods, address in routes():
        assert methods <= view.accepted.keys(), view
        for method in methods:
            scope = view.accepted[method].scope
            assert scope in {*SCOPES, BY_CONTENT}, (view, method)
            bodies = [None] if scope != BY_CONTENT else [
                {"action": "cancel", "filter": {}}, {"scope": "everything"}, {"scope": "type", "name": "x"}
            ]  # fmt: skip
            call = with_key("retry_task", user=root)
            answers = [call(method, address, body) for body in bodies]
            refused = [answer for answer in answers if answer.status_code != 400]  # a body of another address
            assert refused, (method, address)
            for answer in refused:
                assert (answer.status_code, answer.data["code"]) == (403, "permission_denied"), (method, address)
                asked += 1
    assert asked > 40


def test_a_request_that_waits_is_refused_when_its_key_is_revoked(transactional_db, with_key, stored, monkeypatch):
    task = stored()

    def wait(*_: object) -> bool:
        ApiKey.objects.update(revoked_at=timezone.now())  # by another process
        forget_keys()
        return False

    monkeypatch.setattr(subscribe.threading.Event, "wait", wait)
    refused = with_key()("GET", f"{TASKS}/{task.id}?wait=1")
    assert (refused.status_code, refused.data["code"]) == (401, "authentication_failed")


def test_a_view_without_a_scope_cannot_be_routed():
    class Careless(ApiView):
        @accepts("view_task")
        def get(self, request):
            """Read."""

        def post(self, request):
            """Write."""

    with pytest.raises(ImproperlyConfigured, match="Careless names no scope for POST"):
        Careless.as_view()


def test_scopes_restrict_the_permissions_of_staff(with_key, staff, stored):
    stored("bob")
    client = staff("view_task", "pause_queue")
    assert len(with_key("view_task", user=client.user)("GET", TASKS).data["results"]) == 1
    assert with_key("view_task", user=client.user)("POST", "/api/v1/queues/default/pause").status_code == 403
    assert with_key(user=client.user)("POST", "/api/v1/queues/default/pause").status_code == 200


def test_invalid_keys(alice, anonymous):
    good, secret = create_key(alice.user, "a")
    _old, expired = create_key(alice.user, "b", expires_at=timezone.now() - timedelta(seconds=1))
    revoked_key, revoked = create_key(alice.user, "c")
    assert revoke_key(revoked_key.id)
    assert not revoke_key(revoked_key.id)
    asleep = User.objects.create_user("carol", is_active=False)
    _theirs, inactive = create_key(asleep, "d")
    bad = (
        secret[:-1] + "é",
        secret + "x",
        secret[:-2],
        "tq_",
        "tq__x",
        f"tq_{good.prefix}",
        "",
        "x" * 9000,
        "tq_\x00_x",
    )
    for token in (expired, revoked, inactive, *bad):
        response = anonymous.get(TASKS, Authorization=f"Bearer {token}")
        assert (response.status_code, response.data["code"]) == (401, "authentication_failed"), token
        assert response.headers["WWW-Authenticate"].startswith("Bearer")


def test_a_revoked_permission_is_refused_within_seconds_and_not_asked_for_each_time(
    transactional_db, alice, with_key, override, django_assert_num_queries
):
    submit = with_key("add_task")
    assert submit("POST", TASKS, {}).status_code == 400, "may submit, but not this"
    with django_assert_num_queries(0):
        assert submit("POST", TASKS, {}).status_code == 400
    alice.user.user_permissions.clear()
    assert submit("POST", TASKS, {}).status_code == 400, "it is remembered"
    override("queue_app.services.control.api_keys", CACHE_SECONDS=0.0)
    assert submit("POST", TASKS, {}).status_code == 403


def test_a_revoked_key_is_refused_within_seconds_by_a_process_that_knew_it(transactional_db, alice, override):
    key, secret = create_key(alice.user, "a")
    assert find_key(secret)
    ApiKey.objects.filter(pk=key.pk).update(revoked_at=timezone.now())  # by another process
    assert find_key(secret), "it is remembered"
    override("queue_app.services.control.api_keys", CACHE_SECONDS=0.0)
    assert find_key(secret) is None
