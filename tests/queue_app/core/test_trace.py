"""The trace context that travels with a task."""

import os
import random
import re
import sys
import uuid
from importlib.machinery import ModuleSpec
from types import ModuleType

from queue_app.core import trace
from queue_app.telemetry import tracing


def test_a_task_without_a_caller_begins_a_trace_with_its_own_id():
    task_id = uuid.uuid4()
    assert trace.trace_id(trace.of_task(task_id)) == task_id.hex


def test_each_child_has_a_span_of_its_own_in_the_same_trace():
    parent = trace.of_task(uuid.uuid4())
    children = {trace.child(parent) for _ in range(100)}
    assert len(children) == 100
    assert {trace.trace_id(child) for child in children} == {trace.trace_id(parent)}
    assert all(re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", child) for child in children)


def test_a_child_costs_no_system_call(monkeypatch):
    """Each attempt makes one, and a system call for randomness gives the GIL away."""

    def refuse(_size):
        raise AssertionError("a system call")

    with monkeypatch.context() as patch:  # pytest's own teardown may need random bytes
        patch.setattr(os, "urandom", refuse)
        patch.setattr(random, "_urandom", refuse)
        trace.child(trace.of_task(uuid.UUID(int=7)))


def test_a_library_that_another_thread_is_importing_is_not_used_yet(monkeypatch):
    """The thread that imports the Redis client imports it too, while the first task is enqueued."""
    half = ModuleType("opentelemetry.trace")
    half.__spec__ = ModuleSpec(half.__name__, None)
    half.__spec__._initializing = True  # as the import system says it
    monkeypatch.setitem(sys.modules, half.__name__, half)
    assert tracing.of_caller() is None
    with tracing.enqueueing([]), tracing.continuing("00-1-2-01"):
        assert trace.current.get() == "00-1-2-01"
