"""The assertions, and their error messages."""

import re
from datetime import date
from decimal import Decimal
from unittest.mock import ANY

import pytest
from django.tasks import task_backends

from queue_app.testing import assert_enqueued, assert_not_enqueued, drain, enqueued
from tests.queue_app.testing.chores import note, render

PATH = "tests.queue_app.testing.chores"


@pytest.fixture(params=["queue_app.testing.MemoryBackend", "django.tasks.backends.dummy.DummyBackend", "rows"])
def anywhere(request, settings):
    """Each backend whose tasks can be listed."""
    request.getfixturevalue("engine" if request.param == "rows" else "db")
    if request.param == "rows":
        return None
    settings.TASKS = {"default": {"BACKEND": request.param, "QUEUES": []}}
    return task_backends["default"]


def test_it_finds_enqueued_tasks(anywhere):
    first = note.enqueue("a")
    second = note.using(queue_name="mail", priority=50).enqueue("b", raises="")
    assert [result.id for result in enqueued()] == [first.id, second.id]
    assert enqueued(render) == []
    assert assert_enqueued(note, count=2).id == second.id
    assert assert_enqueued(note, args=["a"]).id == first.id
    assert assert_enqueued(note, args=["b"], kwargs={"raises": ""}, queue_name="mail", priority=50).id == second.id
    assert_not_enqueued(render)


def test_arguments_may_be_real_values_or_their_stored_forms(task_queue, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "CODECS": ["decimal", "date"]}
    note.enqueue(Decimal("1.50"), raises=[date(2026, 1, 31)])
    assert_enqueued(note, args=[Decimal("1.50")], kwargs={"raises": [date(2026, 1, 31)]})
    assert_enqueued(note, args=[{"$decimal": "1.50"}])
    assert_enqueued(note, args=[ANY])
    for other in ([Decimal("1.51")], ["1.50"], [object()], []):
        with pytest.raises(AssertionError, match="found 0"):
            assert_enqueued(note, args=other)
    note.enqueue((1, 2))
    assert_enqueued(note, args=[(1, 2)])


def test_the_error_lists_expected_and_enqueued_tasks(task_queue):
    with pytest.raises(
        AssertionError, match=r"at least one of .*note\(\) to be enqueued, found 0\. Enqueued tasks:\n  none"
    ):
        assert_enqueued(note)
    note.enqueue("a", raises="x")
    listed = f"Expected 1 of {PATH}.note('b') [queue_name='mail'] to be enqueued, found 0. Enqueued tasks:\n"
    with pytest.raises(AssertionError, match=re.escape(listed) + r".*note\('a', raises='x'\) \[queue_name='default'"):
        assert_enqueued(note, args=["b"], queue_name="mail", count=1)
    with pytest.raises(AssertionError, match=r"Expected no .*note to be enqueued, found:\n.*note\('a', raises='x'\)"):
        assert_not_enqueued(note)
    with pytest.raises(TypeError, match="'queue' is not an option"):
        assert_enqueued(note, queue="mail")


def test_ended_tasks_do_not_count(task_queue):
    note.enqueue("a")
    drain()
    assert_not_enqueued(note)


def test_unsupported_backends(settings):
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend", "QUEUES": []}}
    for use in (enqueued, drain):
        with pytest.raises(TypeError, match="override_queue"):
            use()
