"""One attempt: every behaviour of a task leads to an outcome that PostgreSQL can store."""

import json
import logging
import uuid
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.tasks.base import TaskResultStatus
from django.tasks.signals import task_finished, task_started

from queue_app.backend import TaskQueueBackend
from queue_app.core.records import MAX_MESSAGE, MAX_TRACEBACK, UNMASKED_FACTOR, ClaimedTask
from queue_app.core.redaction import Secrets
from queue_app.registry import type_of
from queue_app.services.lifecycle.finish import masked
from queue_app.workers import context, executor, outcomes
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.executor import Executor
from queue_app.workers.outcomes import describe
from tests.workers import chores

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def claimed(task, *args, failures: int = 0, **parameters) -> ClaimedAttempt:
    """Return a task of this type as a claim gives it."""
    kind = task if isinstance(task, str) else type_of(task)
    record = ClaimedTask(
        id=uuid.uuid4(),
        attempt=failures + 3,
        task_type=kind,
        queue="default",
        priority=2,
        capabilities=(),
        user="",
        created_at=NOW,
        queued_at=NOW,
        started_at=NOW,
        timeout=600,
        max_retries=3,
        retry_delay=None,
        failures=failures,
        args=json.dumps(args),
        parameters=json.dumps(parameters),
    )
    return ClaimedAttempt(record, 0.0)


@pytest.fixture
def run():
    """Run one attempt."""
    worker = Executor(uuid.uuid4())
    return lambda task, *args, **options: worker.run(claimed(task, *args, **options))


@pytest.fixture
def heard():
    """Calls of the listeners of the two signals: (signal, sender, status, result)."""
    calls = []

    def on_start(sender, task_result, **_):
        calls.append(("started", sender, task_result.status, task_result))

    def on_finish(sender, task_result, **_):
        calls.append(("finished", sender, task_result.status, task_result))

    task_started.connect(on_start)
    task_finished.connect(on_finish)
    yield calls
    task_started.disconnect(on_start)
    task_finished.disconnect(on_finish)


# -- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "value", "text"),
    [
        (chores.echo, 0, "0"),
        (chores.echo, False, "false"),
        (chores.echo, "", '""'),
        (chores.echo, [], "[]"),
        (chores.echo, {"a": [1, None]}, '{"a":[1,null]}'),
        (chores.echo, "größer ✓", '"größer ✓"'),
        (chores.echo, None, None),
        (chores.returns, "tuple", "[1,[2,3]]"),  # made plain as Django does it
        (chores.returns, "bytes", '"raw"'),
        (chores.returns, "deep bytes", '{"a":["raw",[0,1],{"b":1}]}'),
        (chores.later, 21, "42"),  # a coroutine function
    ],
)
def test_a_result_is_json(run, task, value, text):
    outcome = run(task, value)
    assert (outcome.result, outcome.failure) == (text, None)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("object", "Unsupported type: result is a _thread.lock"),
        ("set", "result.deep[1] is a builtins.set"),
        ("nan", "result is not a finite number"),
        ("large", "result takes 300002 bytes"),
        ("nul", "result contains a NUL"),
        ("surrogate", "result contains an unpaired surrogate"),
        ("binary", "result is a builtins.bytes"),
        ("key", "result has the key 1; JSON keys are strings"),
        ("deep key", "result.a[0] has the key 1; JSON keys are strings"),
        ("key in a list", "result[0] has the key 1; JSON keys are strings"),
        ("key beside bytes", "result[1] has the key 1; JSON keys are strings"),
    ],
)
def test_a_result_that_json_cannot_hold_is_a_failure_that_names_it(run, kind, words):
    outcome = run(chores.returns, kind)
    assert outcome.result is None
    assert words in outcome.failure.message


# -- failures -----------------------------------------------------------------------------------


def test_an_exception_is_described(run):
    failure = run(chores.raises, "value").failure
    assert (failure.exception_class, failure.message) == ("builtins.ValueError", "no good")
    assert "chores.py" in failure.traceback
    assert failure.traceback.endswith("ValueError: no good\n")


@pytest.mark.parametrize(("kind", "text"), [("nul", r"a\x00b"), ("surrogate", r"\ud800")])
def test_characters_that_postgresql_cannot_store_are_escaped(run, kind, text):
    failure = run(chores.raises, kind).failure
    assert failure.message == text
    assert failure.traceback.endswith(f"ValueError: {text}\n")


def test_descriptions_are_bounded(run):
    failure = run(chores.raises, "long").failure
    assert set(failure.message) == {"x"}
    assert MAX_MESSAGE < len(failure.message) <= UNMASKED_FACTOR * MAX_MESSAGE, "cut when its secrets are masked"
    assert len(failure.traceback) <= UNMASKED_FACTOR * MAX_TRACEBACK


def test_the_end_of_a_long_traceback_is_kept(run):
    failure = run(chores.deep, 0).failure
    assert failure.exception_class == "builtins.RecursionError"
    assert len(failure.traceback) <= UNMASKED_FACTOR * MAX_TRACEBACK
    assert failure.traceback.rstrip().splitlines()[-1].startswith("RecursionError")


def test_a_message_that_expands_when_written_out_stays_bounded():
    failure = describe(ValueError("\ud800" * MAX_MESSAGE))
    assert len(masked(failure, Secrets()).message) == MAX_MESSAGE


def test_an_exception_that_cannot_be_printed(run):
    failure = run(chores.raises, "silent").failure
    assert failure.exception_class == "tests.workers.chores.SilentError"
    assert "no printable message" in failure.message


@pytest.mark.parametrize(
    ("task", "args", "name"),
    [
        (chores.raises, ["exit"], "SystemExit"),
        (chores.raises, ["interrupt"], "KeyboardInterrupt"),
        (chores.leaves, [], "SystemExit"),  # a coroutine, whose event loop it would end
    ],
)
def test_an_exception_that_would_end_the_process_ends_only_the_attempt(run, task, args, name):
    assert run(task, *args).failure.exception_class == f"builtins.{name}"


def test_groups_of_exceptions_are_shown(run):
    failure = run(chores.raises, "group").failure
    assert "ValueError: one" in failure.traceback
    assert "KeyError: 'two'" in failure.traceback


def test_a_type_that_the_code_does_not_have(run):
    failure = run("tests.workers.chores.quik").failure
    assert failure.exception_class == "queue_app.exceptions.UnknownTaskType"
    assert "Did you mean 'tests.workers.chores.quick'" in failure.message


def test_wrong_arguments(run):
    """They are not retried: another attempt would get the same."""
    failure = run(chores.quick, size=3).failure
    assert "unexpected keyword argument 'size'" in failure.message
    assert (failure.exception_class, failure.retriable) == ("queue_app.exceptions.WrongArguments", False)


# -- context, signals, async ---------------------------------------------------------------------


@pytest.mark.parametrize("failures", [0, 2])
def test_the_context_has_the_attempt_number(run, failures):
    outcome = run(chores.looks, failures=failures)
    assert json.loads(outcome.result) == [failures + 1, str(outcome.task.id), "RUNNING", 1]


def test_listeners_are_called_at_start_and_end(run, heard):
    outcome = run(chores.returns, "tuple")
    assert [(signal, sender, status) for signal, sender, status, _ in heard] == [
        ("started", TaskQueueBackend, TaskResultStatus.RUNNING),
        ("finished", TaskQueueBackend, TaskResultStatus.SUCCESSFUL),
    ]
    seen = heard[1][3]
    assert (seen.id, seen.return_value, seen.args) == (str(outcome.task.id), [1, [2, 3]], ["tuple"])


@pytest.mark.parametrize("task", [chores.raises, chores.returns])
def test_listeners_are_called_after_a_failure(run, heard, task):
    run(task, "nul")
    signal, _, status, seen = heard[1]
    assert (signal, status) == ("finished", TaskResultStatus.FAILED)
    assert len(seen.errors) == 1


def test_a_broken_listener_does_not_change_the_outcome(run):
    def broken(**_):
        raise RuntimeError("listener")

    for signal in (task_started, task_finished):
        signal.connect(broken)
    try:
        outcome = run(chores.echo, 1)
        failed = run(chores.raises, "value")
    finally:
        for signal in (task_started, task_finished):
            signal.disconnect(broken)
    assert (outcome.result, outcome.failure) == ("1", None)
    assert failed.failure.exception_class == "builtins.ValueError"


def test_without_listeners_no_result_is_built(run, monkeypatch):
    monkeypatch.setattr(outcomes, "TaskResult", None)
    assert run(chores.echo, 1).result == "1"
    assert run(chores.raises, "value").failure.exception_class == "builtins.ValueError"


def test_djangos_own_log_counts_as_a_listener_once_it_has_a_level(run, caplog):
    caplog.set_level(logging.INFO, "django.tasks")
    run(chores.echo, 1)
    assert [record.name for record in caplog.records] == ["django.tasks"] * 2


def test_a_failure_is_in_djangos_own_log_if_that_has_only_errors(run, caplog):
    caplog.set_level(logging.ERROR, "django.tasks")
    run(chores.echo, 1)
    assert caplog.records == []
    run(chores.raises, "value")
    [record] = caplog.records
    assert (record.name, record.levelname, record.exc_info[0]) == ("django.tasks", "ERROR", ValueError)


def test_times_are_by_the_databases_clock(run, monkeypatch):
    times = iter([5.0, 7.5])
    for module in (executor, context):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(times)))
    outcome = run(chores.echo, 1)
    assert outcome.started_at == NOW + timedelta(seconds=5)
    assert outcome.finished_at == NOW + timedelta(seconds=7.5)
