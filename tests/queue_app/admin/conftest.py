"""Users of each kind, and tasks in each state.

Models are imported where they are used: a conftest that is named on the command line is loaded before Django.
"""
# ruff: noqa: PLC0415

import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone


@pytest.fixture(autouse=True)
def rows(db):
    from queue_app.dashboard import cache
    from queue_app.services.enqueue.store import forget_known_queues
    from queue_app.services.notify.index import breaker

    forget_known_queues()  # the process remembers rows that the last test rolled back
    breaker.reset()
    cache.forget()  # the shared values come from the last test
    yield
    forget_known_queues()
    breaker.reset()


@pytest.fixture
def committed(django_capture_on_commit_callbacks):
    """Return a context that runs on-commit hooks at its end, as a real commit does."""
    return lambda: django_capture_on_commit_callbacks(execute=True)


@pytest.fixture
def make_task(committed) -> Callable:
    from queue_app.core.priorities import Band
    from queue_app.core.records import NewTask
    from queue_app.models import Task
    from queue_app.services import enqueue

    def make(task_type="shop.tasks.send_mail", *, queue="default", priority=Band.NORMAL, **options):
        with committed():
            stored = enqueue(NewTask(task_type=task_type, queue=queue, priority=priority, **options))
        return Task.objects.get(pk=stored.id)

    return make


@pytest.fixture
def make_worker() -> Callable:
    from queue_app.models import Worker

    def make(name="worker-1", **fields):
        now = timezone.now()
        values = {
            "status": "active",
            "queues": [],
            "capabilities": [],
            "task_types": ["shop.tasks.send_mail"],
            "concurrency": 5,
            "profile": "p",
            "host": "host-1",
            "pid": 4242,
            "process_identity": "x",
            "version": "0.1.0",
            "started_at": now,
            "last_heartbeat_at": now,
            "heartbeat_seconds": 10,
        }
        return Worker.objects.create(name=name, **values | fields)

    return make


@pytest.fixture
def run_task() -> Callable:
    """Assign a task to a worker, as a claim does."""
    from queue_app.models import Task

    def run(task, worker=None):
        now = timezone.now()
        Task.objects.filter(pk=task.pk).update(
            status="executing",
            attempt=1,
            worker_id=worker.id if worker else uuid.uuid4(),
            started_at=now,
            deadline=now + timedelta(minutes=10),
        )
        return Task.objects.get(pk=task.pk)

    return run


@pytest.fixture
def end_task(run_task) -> Callable:
    """End a task in any terminal state."""
    from queue_app.models import Task, TaskAttempt, TaskResult

    def end(task, status="completed", *, result=None, error=None, worker=None):
        task = run_task(task, worker)
        now = timezone.now()
        Task.objects.filter(pk=task.pk).update(status=status, finished_at=now, deadline=None)
        if result is not None:
            TaskResult.objects.create(task_id=task.pk, value=result)
        if error is not None:
            Task.objects.filter(pk=task.pk).update(failures=1)
            TaskAttempt.objects.create(
                task_id=task.pk,
                attempt=1,
                worker_id=task.worker_id,
                started_at=now,
                finished_at=now,
                exception_class="builtins.ValueError",
                message=error,
                traceback=f"Traceback (most recent call last):\nValueError: {error}",
            )
        return Task.objects.get(pk=task.pk)

    return end


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
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    def log_in(role, **options):
        client = Client(**options)
        if role != "anonymous":
            user = User.objects.create_user(role, password="x", is_staff=True, is_superuser=ROLES[role] is None)
            for codename in ROLES[role] or []:
                user.user_permissions.add(
                    Permission.objects.get(content_type__app_label="queue_app", codename=codename)
                )
            client.force_login(user)
        return client

    return log_in


@pytest.fixture
def staff(client_of):
    return client_of("superuser")


@pytest.fixture
def redis_down(monkeypatch):
    """Make every call of the index fail as without a server."""
    from queue_app.exceptions import IndexUnavailable
    from queue_app.index import Index

    def fail(*_):
        raise IndexUnavailable("depth: Redis at redis://127.0.0.1:1/0 failed: Connection refused.")

    monkeypatch.setattr(Index, "_call", fail)
    monkeypatch.setattr(Index, "notify", fail)
