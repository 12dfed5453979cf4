"""Test that a backend of ``django.tasks`` does what Django documents.

Subclass the suite in a test module, and define how the backend's tasks are run::

    class TestMyBackend(BackendConformance):
        backend = {"BACKEND": "my.Backend", "QUEUES": []}
        known_differences = {"test_a_failure_is_recorded": "my.Backend keeps no tracebacks"}

        def run_pending(self):
            call_command("my_worker", burst=True)

The test of a known difference must fail; it is an error if it passes or does not exist. Mark the class with what the
backend needs, such as ``pytest.mark.django_db``. The plugin ``queue_app.testing.plugin`` makes failed assertions
readable. The module is long because one class holds the whole suite, so that a subclass cannot leave out a part.
"""

import asyncio
import importlib
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest
from django.db import transaction
from django.tasks import TaskResultStatus, task, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.test import override_settings
from django.utils import timezone

SUCCESSFUL, FAILED, READY = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED, TaskResultStatus.READY
TASKS_MODULE = "queue_app.testing.conformance_tasks"


class BackendConformance:
    """The suite; a subclass names the backend and defines how its tasks are run."""

    #: The entry of ``TASKS``; the suite sets ``QUEUES``.
    backend: ClassVar[Mapping[str, Any]] = {}
    #: Whether ``enqueue`` itself runs the task.
    immediate: ClassVar[bool] = False
    #: Whether tasks run at all.
    runs: ClassVar[bool] = True
    #: Whether a task belongs to the transaction in which it was enqueued.
    transactional: ClassVar[bool] = False
    #: {name of a test: why the backend fails it}
    known_differences: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, reason in cls.known_differences.items():
            found = getattr(cls, name, None)
            if not (name.startswith("test_") and callable(found)):
                raise TypeError(f"{cls.__name__}.known_differences names {name!r}, which is not a test of the suite.")
            copied = types.FunctionType(found.__code__, found.__globals__, name, found.__defaults__, found.__closure__)
            copied.__dict__.update(found.__dict__)
            setattr(cls, name, pytest.mark.xfail(strict=True, reason=reason)(copied))

    def run_pending(self) -> None:
        """Run all due tasks in this process."""
        raise NotImplementedError("Define run_pending(), or set runs = False.")

    # -- helpers ---------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _conformance(self) -> Iterator[None]:
        with override_settings(TASKS={"default": {**self.backend, "QUEUES": ["default", "other"]}}):
            self.tasks = importlib.reload(importlib.import_module(TASKS_MODULE))
            self.tasks.CALLS.clear()
            self.default = task_backends["default"]
            yield

    def finish(self, result: Any) -> Any:
        """Run the waiting tasks; return the refreshed result."""
        if not self.runs:
            pytest.skip("This backend runs nothing.")
        if not self.immediate:
            self.run_pending()
        if self.default.supports_get_result:
            result.refresh()
        elif not self.immediate:
            pytest.skip("This backend keeps no results.")
        return result

    def require_results(self) -> None:
        """Skip the test if the backend keeps no results."""
        if not self.default.supports_get_result:
            pytest.skip("This backend keeps no results.")

    # -- enqueue -----------------------------------------------------------------------------

    def test_enqueue_returns_a_result(self) -> None:
        result = self.tasks.add.enqueue(1, b=2)
        assert isinstance(result.id, str)
        assert result.id
        assert (result.args, result.kwargs, result.backend) == ([1], {"b": 2}, "default")
        assert result.task.func is self.tasks.add.func
        assert timezone.is_aware(result.enqueued_at)
        if not self.immediate:
            assert (result.status, result.is_finished, result.attempts) == (READY, False, 0)
            assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
            assert (result.errors, result.worker_ids) == ([], [])
            with pytest.raises(ValueError, match="not finished"):
                _ = result.return_value

    def test_ids_are_unique(self) -> None:
        assert len({self.tasks.add.enqueue(1).id for _ in range(5)}) == 5

    def test_aenqueue(self) -> None:
        if self.transactional:  # another thread's connection would not see this transaction
            from asgiref.sync import async_to_sync  # noqa: PLC0415

            result = async_to_sync(self.tasks.add.aenqueue)(1, b=2)
        else:
            result = asyncio.run(self.tasks.add.aenqueue(1, b=2))
        assert (result.args, result.kwargs) == ([1], {"b": 2})

    def test_parameters_must_be_json(self) -> None:
        for bad in (object(), {1, 2}, datetime(2026, 1, 1), b"\xff"):  # noqa: DTZ001 - only its type matters
            with pytest.raises((TypeError, ValueError)):
                self.tasks.echo.enqueue(bad)
            with pytest.raises((TypeError, ValueError)):
                self.tasks.echo.enqueue(deep=[{"a": bad}])

    def test_parameters_are_normalised_as_json(self) -> None:
        result = self.tasks.echo.enqueue((1, (2,)), word="größer ✓", nothing=None)
        assert (result.args, result.kwargs) == ([[1, [2]]], {"word": "größer ✓", "nothing": None})
        assert self.finish(result).return_value == [[[1, [2]]], {"word": "größer ✓", "nothing": None}]

    def test_a_task_does_not_change_with_the_callers_objects(self) -> None:
        numbers = [1]
        result = self.tasks.echo.enqueue(numbers, again=numbers)
        numbers.append(2)
        assert (result.args, result.kwargs) == ([[1]], {"again": [1]})
        assert self.finish(result).return_value == [[[1]], {"again": [1]}]

    def test_a_rolled_back_task_does_not_exist(self) -> None:
        if not self.transactional:
            pytest.skip("This backend does not store tasks in the caller's transaction.")
        with transaction.atomic():
            gone = self.tasks.add.enqueue(1)
            transaction.set_rollback(True)
        with pytest.raises(TaskResultDoesNotExist):
            self.default.get_result(gone.id)
        self.run_pending()
        assert self.tasks.CALLS == []

    # -- options: a backend either supports them or refuses them ------------------------------------

    def test_async_tasks(self) -> None:
        if not self.default.supports_async_task:
            assert isinstance(self.tasks.think, InvalidTask)
            return
        result = self.finish(self.tasks.think.enqueue(1))
        assert (result.status, result.return_value, self.tasks.CALLS) == (SUCCESSFUL, 2, [("think", 1)])

    def test_run_after(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        if not self.default.supports_defer:
            with pytest.raises(InvalidTask):
                self.tasks.add.using(run_after=later)
            return
        result = self.finish(self.tasks.add.using(run_after=later).enqueue(1))
        assert (result.status, self.tasks.CALLS) == (READY, [])
        assert result.task.run_after == later
        past = self.finish(self.tasks.add.using(run_after=later - timedelta(hours=2)).enqueue(1))
        assert past.status == SUCCESSFUL

    def test_run_after_must_be_aware(self) -> None:
        with pytest.raises(InvalidTask):
            self.tasks.add.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001 - it must be naive

    def test_priority(self) -> None:
        if not self.default.supports_priority:
            with pytest.raises(InvalidTask):
                self.tasks.add.using(priority=10)
            return
        results = [self.tasks.add.using(priority=value).enqueue(value) for value in (-100, 0, 100)]
        self.finish(results[-1])
        if not self.immediate:
            assert [call[1] for call in self.tasks.CALLS] == [100, 0, -100]

    def test_equal_priorities_are_first_in_first_out(self) -> None:
        last = [self.tasks.add.enqueue(number) for number in range(5)][-1]
        self.finish(last)
        assert [call[1] for call in self.tasks.CALLS] == [0, 1, 2, 3, 4]

    def test_impossible_priorities(self) -> None:
        for priority in (101, -101, 1.5):
            with pytest.raises(InvalidTask):
                self.tasks.add.using(priority=priority)

    def test_queues(self) -> None:
        result = self.tasks.add.using(queue_name="other").enqueue(1)
        assert result.task.queue_name == "other"
        with pytest.raises(InvalidTask):
            self.tasks.add.using(queue_name="unknown")

    def test_no_queues_means_every_queue(self) -> None:
        with override_settings(TASKS={"default": {**self.backend, "QUEUES": []}}):
            assert self.tasks.add.using(queue_name="anything").enqueue(1).task.queue_name == "anything"

    def test_the_task_is_validated_again_when_it_is_enqueued(self) -> None:
        variant = self.tasks.add.using(queue_name="other")
        with override_settings(TASKS={"default": {**self.backend, "QUEUES": ["default"]}}), pytest.raises(InvalidTask):
            variant.enqueue(1)

    def test_only_functions_of_a_module_are_tasks(self) -> None:
        def inner() -> None:
            """Do nothing; a worker cannot import this function."""

        with pytest.raises(InvalidTask):
            task(inner)
        with pytest.raises(InvalidTask):
            task(takes_context=True)(self.tasks.plain)

    def test_using_does_not_change_the_task(self) -> None:
        variant = self.tasks.add.using(queue_name="other")
        assert (variant.queue_name, self.tasks.add.queue_name) == ("other", "default")
        assert variant.func is self.tasks.add.func

    def test_call_runs_the_function_at_once(self) -> None:
        assert self.tasks.add.call(1, b=2) == 3
        assert asyncio.run(self.tasks.add.acall(1, b=2)) == 3

    # -- results ------------------------------------------------------------------------------------

    def test_a_finished_task(self) -> None:
        before = timezone.now() - timedelta(seconds=5)  # for a server whose clock differs a little
        result = self.finish(self.tasks.add.enqueue(1, b=2))
        assert (result.status, result.return_value, result.is_finished) == (SUCCESSFUL, 3, True)
        assert before <= result.enqueued_at <= result.started_at <= result.finished_at
        assert result.last_attempted_at == result.started_at
        assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])
        assert all(isinstance(worker, str) and worker for worker in result.worker_ids)

    def test_a_result_of_none(self) -> None:
        result = self.finish(self.tasks.other.enqueue())
        assert (result.status, result.return_value) == (SUCCESSFUL, None)

    def test_get_result(self) -> None:
        self.require_results()
        enqueued = self.tasks.add.using(queue_name="other").enqueue(1, b=2)
        for found in (
            self.tasks.add.get_result(enqueued.id),
            self.default.get_result(enqueued.id),
            self._await(self.tasks.add.aget_result, enqueued.id),
        ):
            assert (found.id, found.args, found.kwargs) == (enqueued.id, [1], {"b": 2})
            assert (found.status, found.enqueued_at) == (enqueued.status, enqueued.enqueued_at)
            assert (found.task.func, found.task.queue_name) == (self.tasks.add.func, "other")

    def test_refresh(self) -> None:
        self.require_results()
        first, second = self.tasks.add.enqueue(1), self.tasks.add.enqueue(2)
        self.finish(first)
        self._await(second.arefresh)
        assert (first.status, second.status) == (SUCCESSFUL, SUCCESSFUL)
        assert (first.return_value, second.return_value) == (1, 2)
        assert first.finished_at is not None

    def test_an_unknown_id(self) -> None:
        self.require_results()
        for unknown in ("", "nothing", "00000000-0000-0000-0000-000000000000", "1" * 5000):
            with pytest.raises(TaskResultDoesNotExist):
                self.tasks.add.get_result(unknown)
            with pytest.raises(TaskResultDoesNotExist):
                self._await(self.tasks.add.aget_result, unknown)

    def test_the_result_of_another_task(self) -> None:
        self.require_results()
        result = self.tasks.add.enqueue(1)
        with pytest.raises(TaskResultMismatch):
            self.tasks.other.get_result(result.id)
        with pytest.raises(TaskResultMismatch):
            self._await(self.tasks.other.aget_result, result.id)

    # -- failures ---------------------------------------------------------------------------------------

    def test_a_failure_is_recorded(self) -> None:
        self._assert_recorded(self.tasks.Refused, nested=False)

    def test_a_failure_of_a_nested_class_is_recorded(self) -> None:
        self._assert_recorded(self.tasks.Refused.Nested, nested=True)

    def _assert_recorded(self, expected: type[Exception], *, nested: bool) -> None:
        result = self.finish(self.fail_for_good(self.tasks.fail, nested=nested))
        assert (result.status, result.is_finished, result.attempts) == (FAILED, True, 1)
        assert result.finished_at is not None
        [error] = result.errors
        assert error.exception_class_path == f"{expected.__module__}.{expected.__qualname__}"
        assert "Traceback" in error.traceback
        assert "no" in error.traceback.splitlines()[-1]
        with pytest.raises(ValueError, match="failed"):
            _ = result.return_value

    def test_the_class_of_a_failure(self) -> None:
        result = self.finish(self.fail_for_good(self.tasks.fail))
        assert result.errors[0].exception_class is self.tasks.Refused

    def test_system_exit_is_a_failure(self) -> None:
        result = self.finish(self.fail_for_good(self.tasks.exit_early))
        assert (result.status, result.errors[0].exception_class) == (FAILED, SystemExit)

    def test_a_result_that_json_cannot_hold_is_a_failure(self) -> None:
        assert self.finish(self.fail_for_good(self.tasks.unserializable)).status == FAILED

    def fail_for_good(self, failing: Any, **kwargs: Any) -> Any:
        """Enqueue a task that will fail, without retries if the backend has this option."""
        options = {"max_retries": 0} if hasattr(failing, "max_retries") else {}
        return failing.using(**options).enqueue(**kwargs)

    # -- context and signals ----------------------------------------------------------------------------------

    def test_a_task_sees_its_context(self) -> None:
        result = self.finish(self.tasks.describe_context.enqueue("here"))
        assert result.args == ["here"]
        assert result.return_value == ["here", result.id, 1, 1, "RUNNING", False]

    def test_signals_of_a_task_that_succeeds(self) -> None:
        with record_signals() as records:
            result = self.tasks.add.enqueue(1)
            if self.runs:
                self.finish(result)
        names = ["enqueued", "started", "finished"] if self.runs else ["enqueued"]
        assert [name for name, _, _ in records] == names
        assert {sender for _, sender, _ in records} == {type(self.default)}
        assert {seen.id for _, _, seen in records} == {result.id}
        if self.runs:
            seen = records[-1][2]
            assert (seen.status, seen.return_value) == (SUCCESSFUL, 1)
            assert seen.finished_at is not None

    def test_signals_of_a_task_that_fails(self) -> None:
        with record_signals() as records:
            self.finish(self.fail_for_good(self.tasks.fail))
        assert [name for name, _, _ in records] == ["enqueued", "started", "finished"]
        assert {sender for _, sender, _ in records} == {type(self.default)}
        seen = records[-1][2]
        assert (seen.status, len(seen.errors)) == (FAILED, 1)

    def test_checks_are_a_list(self) -> None:
        assert list(self.default.check()) == []

    def _await(self, function: Any, *args: Any) -> Any:
        from asgiref.sync import async_to_sync  # noqa: PLC0415 - keeps this thread's database connection

        return async_to_sync(function)(*args)


@contextmanager
def record_signals() -> Iterator[list[tuple[str, Any, Any]]]:
    """Yield a list to which the three signals append (name, sender, task result)."""
    records: list[tuple[str, Any, Any]] = []

    def receiver(name: str) -> Any:
        return lambda sender, task_result, **_: records.append((name, sender, task_result))

    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = {name: receiver(name) for name in signals}
    for name, signal in signals.items():
        signal.connect(receivers[name])
    try:
        yield records
    finally:
        for name, signal in signals.items():
            signal.disconnect(receivers[name])
