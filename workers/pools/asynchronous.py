"""Slots as tasks of one event loop, for coroutine functions.

The event loop has a thread of its own, so that the worker's loop still claims and reports when a task blocks the
event loop. When a task that blocks the event loop counts as stuck, later tasks get a new one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial

from asgiref.sync import sync_to_async
from django.db import connections

from queue_app.exceptions import Interruption
from queue_app.registry import AnyTask
from queue_app.workers import sessions, stack
from queue_app.workers.context import ClaimedAttempt, shields
from queue_app.workers.executor import Executor
from queue_app.workers.lifecycle import essential_thread
from queue_app.workers.outcomes import failed
from queue_app.workers.pools.base import BacklogPool, release_connections
from queue_app.workers.resources import core_wait

logger = logging.getLogger("taskqueue")

#: Time after which an event loop that does not turn counts as blocked by one of its tasks.
BLOCKED_SECONDS = 1.0
#: Minimum time between two checks of the connections that tasks used.
RELEASE_SECONDS = 1.0


class AsyncPool(BacklogPool):
    """Runs at most ``slots`` coroutines at once, in the order in which they were submitted."""

    name = "async"
    kill_after: float | None = 5.0  # then a coroutine that swallows its cancellation counts as stuck

    def __init__(self, slots: int, executor: Executor, on_outcome: Callable[[], None]) -> None:
        super().__init__(slots, executor, on_outcome)
        self._running: dict[int, _Run] = {}  # by the identity of the claimed attempt
        self._loop = _Loop()

    def can_run(self, task: AnyTask) -> bool:
        """Whether the task is a coroutine function."""
        return inspect.iscoroutinefunction(task.func)

    def start(self) -> None:
        sessions.watch_sessions()
        self._executor.has_shared_sessions = lambda: self._loop.may_have_sessions
        self._loop.start()

    def stop(self) -> None:
        """Cancel the running coroutines and end the event loop. The caller gives back their tasks."""
        with self._lock:
            runs, self._running = list(self._running.values()), {}
        for run in runs:
            run.loop.call(run.cancel)
        self._loop.stop()

    def _resized(self) -> None:
        self._fill()

    def lateness(self, seconds: float) -> float:
        """Wait, and return how many seconds a ready callback then waits on the event loop: not for a core."""
        time.sleep(seconds)
        return self._loop.lag()

    def _slot_of(self, held: ClaimedAttempt) -> _Run | None:
        return self._running.get(id(held))

    def _raise(self, slot: _Run, held: ClaimedAttempt, interruption: type[Interruption]) -> None:
        """Cancel the coroutine; the cancellation arrives at its next ``await``."""
        with shields:
            if not held.shielded:
                slot.loop.call(slot.cancel)

    def give_up(self, held: ClaimedAttempt) -> None:
        """If the coroutine blocks the event loop, start another loop for later tasks."""
        with self._lock:
            slot = self._slot_of(held)
            if slot is not None and slot.loop is self._loop and not slot.loop.turns_within(BLOCKED_SECONDS):
                logger.error("%s blocks the event loop; later tasks run on a new one", held.task.task_type)
                self._loop = _Loop()
                self._loop.start()

    def _stack(self, slot: _Run) -> str:
        return "waiting" if slot.task is None else stack.as_text(stack.of_coroutine(slot.task, slot.loop.thread))

    def _abandon(self, slot: _Run, held: ClaimedAttempt) -> float:
        del self._running[id(held)]
        return slot.since

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.slots:
            held = self._waiting.popleft()
            run = self._running[id(held)] = _Run(held, self._loop)
            run.loop.call(partial(self._start_run, run))

    def _started(self) -> Iterable[tuple[ClaimedAttempt, float]]:
        return [(run.held, run.since) for run in self._running.values()]

    def _start_run(self, run: _Run) -> None:
        """Start the coroutine; called on its event loop.

        In an empty context: copies of another one would share objects such as decimal's context.
        """
        run.task = asyncio.get_running_loop().create_task(self._attempt(run), context=Context())

    async def _attempt(self, run: _Run) -> None:
        run.begun = True
        if run.held.interruption is not None:
            outcome = await sync_to_async(failed)(run.held, run.since, run.held.interruption())  # a backoff may block
        else:
            await run.loop.renew_connections()
            outcome = await self._executor.arun(run.held)
        with self._lock:
            if self._running.pop(id(run.held), None) is None:
                return  # abandoned: ``abandon`` returned its outcome
            self._outcomes.append(outcome)
            self._fill()
        self._on_outcome()
        await run.loop.release_connections(run.held, failed=outcome.failure is not None)


class _Run:
    """An attempt in a slot."""

    def __init__(self, held: ClaimedAttempt, loop: _Loop) -> None:
        self.held = held
        self.loop = loop
        self.since = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self.begun = False  # a coroutine that is cancelled before its first step never runs, and has no outcome

    def cancel(self) -> None:
        """Cancel the coroutine unless it has ended; called on its event loop."""
        if self.begun and self.task is not None and not self.task.done():
            self.task.cancel()


class _Loop:
    """An event loop in a thread; a daemon, so that a task that blocks it cannot keep the process alive."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = essential_thread(self._run, "event-loop")
        self._released_at = 0.0
        self._used_at = 0.0
        self._stopping = False
        self._opened = 0  # sessions that this process had opened at the last check
        self._has_sessions = False

    def start(self) -> None:
        self._thread.start()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the event loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    @property
    def thread(self) -> int:
        """The identity of its thread."""
        return self._thread.ident or 0

    def turns_within(self, seconds: float) -> bool:
        """Whether the event loop turns once within ``seconds``."""
        turned = threading.Event()
        self.call(turned.set)
        return turned.wait(seconds)

    def lag(self) -> float:
        """Return how many seconds a callback waits for its turn, at most ``BLOCKED_SECONDS``."""
        thread = self._thread.native_id or 0
        waited, turned = core_wait(thread), threading.Event()
        began, ended = time.monotonic(), [math.inf]

        def turn() -> None:
            ended[0] = time.monotonic() - (core_wait(thread) - waited)
            turned.set()

        self.call(turn)
        turned.wait(BLOCKED_SECONDS)
        return min(BLOCKED_SECONDS, max(0.0, ended[0] - began))

    def stop(self) -> None:
        """End the event loop after the calls that were made before."""
        self._stopping = True
        self.call(lambda: self._loop.call_soon(self._loop.stop))
        self._thread.join(timeout=BLOCKED_SECONDS)

    @property
    def may_have_sessions(self) -> bool:
        """Whether the thread that asgiref uses may have sessions that were not checked yet."""
        return self._has_sessions or sessions.opened() != self._opened

    async def renew_connections(self) -> None:
        """Close the sessions that the server may have ended while no task used them."""
        if self._has_sessions and time.monotonic() - self._used_at > RELEASE_SECONDS:
            await sync_to_async(sessions.renew)()

    async def release_connections(self, held: ClaimedAttempt, *, failed: bool) -> None:
        """Check the connections of the thread that asgiref uses for calls from coroutines.

        All coroutines share them. So they are checked after each attempt, but closed for their age only now and then.
        """
        now, opened = time.monotonic(), sessions.opened()
        is_due = failed or now - self._released_at > RELEASE_SECONDS
        self._used_at = now
        if is_due or self.may_have_sessions:
            self._opened = opened
            self._released_at = now if is_due else self._released_at
            self._has_sessions = await sync_to_async(release_connections)(held, aged=is_due)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._stopping:
                self._turn()
            self._loop.run_until_complete(sync_to_async(connections.close_all)())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _turn(self) -> None:
        """Run the event loop until it is stopped, or until a task stops or breaks it."""
        try:
            self._loop.run_forever()
        except BaseException:
            logger.exception("a callback of a task broke the event loop, which continues")
