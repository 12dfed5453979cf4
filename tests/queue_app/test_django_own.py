"""Django's own tests of ``django.tasks`` pass on this queue, through two thin adapters.

``Drained`` stands for Django's ImmediateBackend: it enqueues, and a worker runs the task before ``enqueue`` returns.
``Kept`` stands for its DummyBackend: tasks stay as they were enqueued.
"""

import ast
import importlib
import sys
import time
import unittest
import uuid
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.tasks.backends import dummy, immediate

from queue_app import registry
from queue_app.backend import TaskQueueBackend
from queue_app.backend.results import load_result
from queue_app.index import Profile, get_index
from queue_app.models import PriorityPolicy, Task
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.executor import Executor

SUITE = Path(__file__).parent / "django_own" / "tasks"
MODULES = ("of_immediate_backend", "of_tasks")
#: What Django's two backends promise and a queue with workers cannot: test -> why.
INHERENT = {
    "of_tasks.TaskTestCase.test_refresh_result": "changes a result in the memory of the backend",
    "of_immediate_backend.ImmediateBackendTestCase.test_throws_keyboard_interrupt": "the worker records it",
    "of_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result": "results can be read",
    "of_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result": "likewise",
    "of_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after": "run_after is supported",
    "of_immediate_backend.ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": (
        "a task starts after the transaction of its enqueuer"
    ),
}


class Drained(TaskQueueBackend):
    """Runs each task by a worker of its own before ``enqueue`` returns."""

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        drain()
        ended = load_result(uuid.UUID(result.id), self.alias)
        for name in (field.name for field in fields(ended)):
            object.__setattr__(result, name, getattr(ended, name))
        return result


class Kept(TaskQueueBackend):
    """Remembers what was enqueued."""

    results: ClassVar[list[Any]] = []

    def enqueue(self, task, args, kwargs):
        self.results.append(super().enqueue(task, args, kwargs))
        return self.results[-1]

    def clear(self):
        self.results.clear()
        Task.objects.all().delete()


def drain() -> None:
    """Run all that waits, as a worker does."""
    index, worker = get_index(), uuid.uuid4()
    index.flush()
    profile = Profile.of((), registry.known_types(), ())
    index.register(profile, worker)
    while tasks := claim(profile, worker, 10):
        finish([Executor(worker).run(ClaimedAttempt(task, time.monotonic())) for task in tasks])


def names() -> list[str]:
    """Return all tests of the suite, without importing them."""
    found = []
    for module in MODULES:
        for node in ast.parse((SUITE / f"{module}.py").read_text()).body:
            if isinstance(node, ast.ClassDef):
                methods = (item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
                found += [f"{module}.{node.name}.{name}" for name in methods if name.startswith("test_")]
    return found


@pytest.fixture
def run(engine, monkeypatch):
    """Run one test of Django; return what is wrong."""
    PriorityPolicy.objects.update(max_retries=0)
    monkeypatch.syspath_prepend(str(SUITE.parent))  # the suite is the package "tasks", as in Django
    monkeypatch.setattr(immediate, "ImmediateBackend", Drained)
    monkeypatch.setattr(dummy, "DummyBackend", Kept)
    monkeypatch.setattr(Kept, "results", [])

    def one(name: str) -> list[str]:
        module, case, method = name.split(".")
        sys.modules.pop(f"tasks.{module}", None)
        found = getattr(importlib.import_module(f"tasks.{module}"), case)
        found.databases, found.available_apps = {"default"}, None
        found._fixture_teardown = lambda *_: None  # pytest empties the tables
        result = unittest.TestResult()
        unittest.TestSuite([found(method)]).run(result)
        return [text for _test, text in result.failures + result.errors]

    return one


@pytest.mark.parametrize("name", names())
def test_it_is_as_django_wants(run, name):
    problems = run(name)
    if name in INHERENT:
        assert problems, f"it passes now: take it off the list ({INHERENT[name]})"
    else:
        assert problems == []
