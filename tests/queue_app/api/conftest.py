"""Users, their clients, and tasks to submit."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import caches
from django.test import Client
from django.utils import timezone

from queue_app import registry, task
from queue_app.core.records import NewTask
from queue_app.models import DeadLetter, Queue, Task, TaskAttempt, TaskPayload
from queue_app.services import enqueue
from queue_app.services.notify import index
from tests.support.factories import DeadLetterFactory, StaffFactory, move
from tests.support.rows import forget_known_queues

DEAD_PORT = 1


@task(queue_name="default")
def plain(**parameters: Any) -> Any:
    return parameters


@task(queue_name="renders", priority=50, capabilities=("gpu", "big-memory"), timeout=60, max_retries=2, retry_delay=1.5)
def render(frame: int = 0) -> int:
    return frame


@pytest.fixture
def plain_type() -> str:
    return registry.type_of(plain)


@pytest.fixture
def render_type() -> str:
    return registry.type_of(render)


@pytest.fixture(autouse=True)
def fresh_process():
    """Drop what this process cached in earlier tests."""
    forget_known_queues()
    index.breaker.reset()
    yield
    forget_known_queues()
    index.breaker.reset()


@pytest.fixture
def index_away(settings):
    """Point the index at a port where nothing listens."""
    alias = "nothing-listens"
    settings.CACHES = {
        **settings.CACHES,
        alias: {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"redis://127.0.0.1:{DEAD_PORT}/0"},
    }
    settings.TASKQUEUE = {**settings.TASKQUEUE, "REDIS_ALIAS": alias}
    yield
    caches[alias].close()


class ApiClient:
    """A client that sends JSON and reads JSON; the last answer must be JSON or a problem document."""

    def __init__(self, user: User | None = None, **options: Any) -> None:
        self.user = user
        self.http = Client(**options)
        if user is not None:
            self.http.force_login(user)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        response = self.http.generic(
            method, path, content, headers.pop("content_type", "application/json"), headers=headers
        )
        wanted = "application/problem+json" if response.status_code >= 400 else "application/json"
        assert response.headers["Content-Type"] == wanted, response.content[:300]
        response.data = json.loads(response.content)
        if response.status_code >= 400:
            assert {"title", "status", "code", "detail"} <= response.data.keys()
            assert response.data["status"] == response.status_code
        return response

    def get(self, path: str, **headers: str) -> Any:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("POST", path, body, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("PUT", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self.call("DELETE", path, **headers)

    def submit(self, **body: Any) -> Any:
        return self.post("/api/v1/tasks", body)


def assert_problem(response: Any, status: int, code: str, field: str | None = None) -> None:
    assert (response.status_code, response.data["code"]) == (status, code), response.data
    if field is not None:
        assert [error["field"] for error in response.data["errors"]] == [field]
        assert response.data["errors"][0]["message"]


@pytest.fixture
def queues(db):
    for name in ("default", "reports"):
        Queue.objects.get_or_create(name=name)


def submitter(name: str, password: str) -> User:
    """Create a customer who may submit."""
    user = User.objects.create_user(name, password=password)
    user.user_permissions.add(Permission.objects.get(codename="add_task", content_type__app_label="queue_app"))
    return user


@pytest.fixture
def alice(db, queues) -> ApiClient:
    return ApiClient(submitter("alice", "wonderland"))


@pytest.fixture
def bob(db, queues) -> ApiClient:
    return ApiClient(submitter("bob", "builder"))


@pytest.fixture
def anonymous(db, queues) -> ApiClient:
    return ApiClient()


@pytest.fixture
def staff(db, queues):
    """Create a staff user with exactly the given permissions of the queue."""

    def make(*codenames: str) -> ApiClient:
        return ApiClient(StaffFactory(permissions=codenames))

    return make


@pytest.fixture
def viewer(staff) -> ApiClient:
    """A caller who may view queues and policies."""
    return staff("view_queue", "view_prioritypolicy")


@pytest.fixture
def stored(db, queues, plain_type):
    """Store a task without the API."""

    def make(user: str = "alice", **options: Any) -> Task:
        status = options.pop("status", None)
        new = NewTask(**({"task_type": plain_type, "user": user} | options))
        found = Task.objects.get(pk=enqueue(new).id)
        return found if status is None else move(found, status, found.created_at)

    return make


@pytest.fixture
def row_counts(queues):
    """Count the rows of every table that a submission writes."""

    def count() -> dict[str, int]:
        return {model.__name__: model.objects.count() for model in (Task, TaskPayload, TaskAttempt, Queue)}

    return count


@pytest.fixture
def nothing_written(row_counts):
    """Fail if the test changes the number of rows."""
    before = row_counts()
    yield
    assert row_counts() == before


@pytest.fixture
def dead(stored):
    """Store a task that is dead, and its dead letter."""

    def make(user: str = "alice", *, seconds_ago: float = 0, **fields) -> DeadLetter:
        options = {name: fields.pop(name) for name in ("parameters", "queue", "args") if name in fields}
        task = stored(user, status="dead_letter", **options)
        died_at = timezone.now() - timedelta(seconds=seconds_ago)
        return DeadLetterFactory(**{"task": task, "attempts": 4, "died_at": died_at} | fields)

    return make
