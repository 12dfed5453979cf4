"""The steps of one attempt: run what no earlier attempt has stored, and return what is stored.

Code of a task calls its steps in the same order in every attempt. So a step has a position, and a stored step at that
position with another name shows that the code has changed.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn, Protocol

from asgiref.sync import sync_to_async

from queue_app import codecs, conf, encryption
from queue_app.core import steps
from queue_app.core.payload import PayloadLimits
from queue_app.core.steps import STEP_NAME_LENGTH, Fields, Step, StepKind, read_schema
from queue_app.exceptions import MAX_DEFER_SECONDS, InvalidTaskData, SignalTimeout, StepRefused, StepsChanged, Suspended
from queue_app.services.enqueue.validate import check_aware, check_signal_name, check_text, result_text
from queue_app.services.lifecycle.results import UNLIMITED


class StepStore(Protocol):
    """Where the steps of one attempt are kept."""

    def load(self) -> list[Step]:
        """Return the stored steps in order."""

    def check_outside(self, name: str) -> None:
        """Raise ``StepRefused`` inside a transaction."""

    def record(self, step: Step) -> None:
        """Store a step; raise ``AttemptLost`` if the attempt has lost its task."""

    def wait_for(self, step: Step, schema: Fields | None) -> Step:
        """Take a signal for the step, or store that it waits or that its time is over; return the step as stored."""

    def run_atomic(self, run: Callable[[], Step]) -> Step:
        """Run and store a step in one transaction; raise ``AttemptLost`` as ``record`` does."""


class AttemptSteps:
    """The steps that one attempt has called, and those that are stored.

    ``now`` returns the time by the clock that wakes sleeping tasks. Nothing is read or written before the first step.
    """

    def __init__(self, store: StepStore, now: Callable[[], datetime], *, is_first: bool) -> None:
        self._store = store
        self._now = now
        self._stored: dict[int, Step] | None = {} if is_first else None  # by position; None: not read yet
        self._positions: dict[str, int] = {}  # of stored steps, by name
        self._called: set[str] = set()
        self._unnamed: Counter[str] = Counter()
        self._suspended: Suspended | None = None
        self._failure: Step | None = None  # of a child; stored once the task goes on after it

    def step(self, name: str, function: Callable[..., Any], call: Callable[[], Any], *, atomic: bool) -> Any:
        """Return the stored result of a step, or run it; inside an event loop, return an awaitable of that."""
        if not callable(function):
            raise TypeError(f"The step {name!r} needs a function and its arguments, not {function!r:.60}.")
        is_coroutine = inspect.iscoroutinefunction(function)
        if atomic and is_coroutine:
            raise StepRefused(
                f"The step {name!r} cannot be atomic: Django has no transactions in coroutines. Give it a plain"
                " function."
            )
        place = self._next(name)
        if not _in_event_loop():
            return self._run(place, name, call, atomic=atomic)
        if not is_coroutine:
            return sync_to_async(self._run)(place, name, call, atomic=atomic)
        return self._arun(place, name, call)

    def run(
        self,
        label: str,
        start: Callable[[], Any],
        look: Callable[[Any], dict[str, Any] | None],
        pause: Callable[[Any], float],
    ) -> Any:
        """Start something once, suspend the attempt until it has ended, and return its outcome; awaitable as above.

        ``look`` returns the outcome, or ``None`` as long as there is none; the task then looks again after ``pause``.
        What ``start`` returned is given to both.
        """
        run = partial(self._run_child, self._numbered(f"run {label}"), start, look, pause)
        return sync_to_async(run)() if _in_event_loop() else run()

    def sleep(self, duration: float | timedelta | datetime) -> Any:
        """Suspend the attempt until the time, unless it has come; inside an event loop, return an awaitable of that."""
        until = duration if isinstance(duration, datetime) else self._now() + _positive(duration)
        _check_time(until, "until", self._now())
        name = self._numbered("sleep")
        suspend = partial(self._sleep, self._next(name), name, until)
        return sync_to_async(suspend)() if _in_event_loop() else suspend()

    def wait_for(
        self, signal: str, timeout: float | timedelta | datetime | None, schema: Mapping[str, Any] | None
    ) -> Any:
        """Return the payload of a signal, or suspend the attempt until it arrives; awaitable as in ``sleep``."""
        check_signal_name(signal)
        until = timeout if timeout is None or isinstance(timeout, datetime) else self._now() + _positive(timeout)
        if until is not None:
            _check_time(until, "timeout", self._now())
        name = self._numbered(f"wait for {signal}")
        new = Step(self._next(name), name, StepKind.SIGNAL, until=until, signal=signal, is_done=False)
        wait = partial(self._wait_for, new, read_schema(schema))
        return sync_to_async(wait)() if _in_event_loop() else wait()

    def check_end(self) -> None:
        """Check how the task's function returned: suspend again if it caught that, and miss no stored step."""
        if self._suspended is not None:
            raise self._suspended
        beyond = [place for place in self._stored or () if place > len(self._called)]
        if self._stored and beyond:
            raise StepsChanged(steps.changed(min(beyond), self._stored[min(beyond)].name, None))

    def _run(self, place: int, name: str, call: Callable[[], Any], *, atomic: bool) -> Any:
        found = self._find(place, name)
        if found is None:
            self._keep_failure()
        if found is None and atomic:
            found = self._store.run_atomic(lambda: _result(place, name, call()))
        elif found is None:
            found = _result(place, name, call())
            self._store.record(found)
        return _value(found)

    async def _arun(self, place: int, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        found = await sync_to_async(self._find)(place, name) if self._stored is None else self._find(place, name)
        if found is None:
            await sync_to_async(self._keep_failure)()
            found = _result(place, name, await call())
            await sync_to_async(self._store.record)(found)
        return _value(found)

    def _run_child(
        self,
        name: str,
        start: Callable[[], Any],
        look: Callable[[Any], dict[str, Any] | None],
        pause: Callable[[Any], float],
    ) -> Any:
        self._store.check_outside(name)  # a suspension would roll the start back
        child = self._run(self._next(name), name, start, atomic=True)
        end = f"{name}: end"
        place = self._next(end)
        found = self._find(place, end)
        if found is None:
            outcome = look(child)
            if outcome is None:
                self._suspend(Suspended(pause(child)))
            found = _outcome(place, end, outcome)
            if "failed" in outcome:
                self._failure = found
            else:
                self._store.record(found)
        return _value(found)

    def _keep_failure(self) -> None:
        """Store that a child failed, because the task goes on after it: it takes the same path in each attempt."""
        if self._failure is not None:
            self._store.record(self._failure)
            self._failure = None

    def _sleep(self, place: int, name: str, until: datetime) -> None:
        found = self._find(place, name)
        if found is None:
            self._keep_failure()
            found = Step(place, name, StepKind.SLEEP, until=until)
            self._store.record(found)
        left = ((found.until or until) - self._now()).total_seconds()
        if left > 0:
            self._suspend(Suspended(left))

    def _wait_for(self, new: Step, schema: Fields | None) -> Any:
        found = self._find(new.position, new.name)
        if found is None or not found.is_done:  # the first call decides until when
            self._keep_failure()
            found = self._store.wait_for(found or new, schema)
        if not found.is_done:
            self._suspend(Suspended(None))
        if found.kind == StepKind.TIMEOUT:
            raise SignalTimeout(f"The signal {new.signal!r} did not arrive until {found.until:%Y-%m-%d %H:%M:%S %Z}.")
        return _value(found)

    def _suspend(self, suspension: Suspended) -> NoReturn:
        self._suspended = suspension
        raise suspension

    def _next(self, name: str) -> int:
        """Return the position of the step that is called now."""
        if self._suspended is not None:  # the task caught it
            raise self._suspended
        check_text(name, "name", STEP_NAME_LENGTH)
        if name in self._called:
            raise StepsChanged(steps.repeated(name))
        self._called.add(name)
        return len(self._called)

    def _numbered(self, name: str) -> str:
        """Return a name for a step that the task does not name."""
        self._unnamed[name] += 1
        return name if self._unnamed[name] == 1 else f"{name} {self._unnamed[name]}"

    def _find(self, place: int, name: str) -> Step | None:
        """Return the stored step; raise ``StepsChanged`` if the position or the name belongs to another one."""
        if self._stored is None:
            self._stored = {step.position: step for step in self._store.load()}
            self._positions = {step.name: step.position for step in self._stored.values()}
        found = self._stored.get(place)
        if found is not None and found.name != name:
            raise StepsChanged(steps.changed(place, found.name, name))
        if found is None and name in self._positions:
            raise StepsChanged(steps.moved(name, self._positions[name], place))
        return found


def _outcome(place: int, name: str, outcome: dict[str, Any]) -> Step:
    """Return the outcome of a child, encrypted if any task may be; as large as what flows into a task of a workflow."""
    settings = conf.get()
    limits = replace(settings.payload, max_bytes=settings.workflows.max_input_bytes, max_nodes=UNLIMITED)
    step = _result(place, name, outcome, limits)
    return step._replace(value=encryption.seal(step.value or "", encryption.SHARED)) if encryption.is_on() else step


def _result(place: int, name: str, value: Any, limits: PayloadLimits | None = None) -> Step:
    if inspect.isawaitable(value):
        raise StepRefused(
            f"The function of the step {name!r} returned an awaitable; give the step a coroutine function."
        )
    try:
        return Step(place, name, StepKind.STEP, result_text(value, limits))
    except InvalidTaskData as error:
        raise type(error)("result", f"The result of the step {name!r} cannot be stored: {error}") from error
    except (TypeError, ValueError) as error:  # the second: NaN, or a circular reference
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"The result of the step {name!r} cannot be stored: {error}") from error


def _value(step: Step) -> Any:
    """Return the result as a later attempt gets it: a tuple is a list in every attempt."""
    found = encryption.opened_if(step.value, encryption.SHARED)
    return None if found is None else codecs.real_result(json.loads(found))


def _positive(duration: float | timedelta) -> timedelta:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 <= seconds <= MAX_DEFER_SECONDS:  # false for NaN too
        raise ValueError(f"A task can sleep or wait for 0 to {MAX_DEFER_SECONDS:.0f} seconds, not {duration!r}.")
    return timedelta(seconds=seconds)


def _check_time(value: datetime, name: str, now: datetime) -> None:
    if (check_aware(value, name) - now).total_seconds() > MAX_DEFER_SECONDS:
        raise ValueError(f"{name} must lie at most {MAX_DEFER_SECONDS:.0f} seconds (ten years) ahead, not at {value}.")


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
