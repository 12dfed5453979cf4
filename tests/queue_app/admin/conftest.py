"""Users of each kind, and tasks in each state."""

import uuid
from collections.abc import Callable

import pytest
from django.test import Client

from queue_app.core import shared
from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index
from queue_app.models import Task, TaskResult
from queue_app.services import enqueue
from queue_app.services.notify.index import breaker
from tests.support.factories import AttemptFactory, DeadLetterFactory, StaffFactory, WorkerFactory, move
from tests.support.rows import forget_known_queues


@pytest.fixture(autouse=True)
def rows(db):
    forget_known_queues()  # the process remembers rows that the last test rolled back
    breaker.reset()
    shared.forget()  # the shared values come from the last test
    yield
    forget_known_queues()
    breaker.reset()


@pytest.fixture
def committed(django_capture_on_commit_callbacks):
    """Return a context that runs on-commit hooks at its end, as a real commit does."""
    return lambda: django_capture_on_commit_callbacks(execute=True)


@pytest.fixture
def make_task(committed) -> Callable:

    def make(task_type="shop.tasks.send_mail", *, queue="default", priority=Band.NORMAL, **options):
        with committed():
            stored = enqueue(NewTask(task_type=task_type, queue=queue, priority=priority, **options))
        return Task.objects.get(pk=stored.id)

    return make


@pytest.fixture
def make_worker() -> Callable:
    def make(name="worker-1", **fields):
        return WorkerFactory(**{"name": name, "task_types": ["shop.tasks.send_mail"], "concurrency": 5} | fields)

    return make


@pytest.fixture
def run_task() -> Callable:
    """Assign a task to a worker, as a claim does."""
    return lambda task, worker=None: move(task, "executing", worker_id=worker.id if worker else uuid.uuid4())


@pytest.fixture
def end_task(run_task) -> Callable:
    """End a task in any terminal state."""

    def end(task, status="completed", *, result=None, error=None, worker=None):
        task = run_task(task, worker)
        if result is not None:
            TaskResult.objects.create(task_id=task.pk, value=result)
        if error is not None:
            traceback = f"Traceback (most recent call last):\nValueError: {error}"
            AttemptFactory(task=task, worker_id=task.worker_id, message=error, traceback=traceback)
        return move(task, status, failures=0 if error is None else 1)

    return end


@pytest.fixture
def dead(make_task, end_task) -> Callable:
    """Make a dead task and its dead letter."""

    def make(message="no luck", **options):
        task = end_task(make_task(**options), Status.DEAD_LETTER, error=message)
        return DeadLetterFactory(task=task, message=message)

    return make


ROLES = {
    "superuser": None,
    "nothing": [],
    "viewer": ["view_task", "view_queue", "view_worker"],
    "canceller": ["view_task", "cancel_task"],
    "reprioritiser": ["view_task", "reprioritise_task"],
    "pauser": ["view_queue", "pause_queue"],
    "cancel_only": ["cancel_task", "reprioritise_task", "pause_queue"],
}


@pytest.fixture
def client_of() -> Callable:
    """Return a function that logs in a user with a role; ``anonymous`` logs in no user."""

    def log_in(role, **options):
        client = Client(**options)
        if role != "anonymous":
            codenames = ROLES[role]
            client.force_login(StaffFactory(username=role, is_superuser=codenames is None, permissions=codenames))
        return client

    return log_in


@pytest.fixture
def staff(client_of):
    return client_of("superuser")


@pytest.fixture
def redis_down(monkeypatch):
    """Make every call of the index fail as without a server."""

    def fail(*_):
        raise IndexUnavailable("depth: Redis at redis://127.0.0.1:1/0 failed: Connection refused.")

    monkeypatch.setattr(Index, "_call", fail)
    monkeypatch.setattr(Index, "notify", fail)
