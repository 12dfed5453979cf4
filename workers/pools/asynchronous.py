"""Slots as tasks of one event loop, for coroutine functions.

The loop has a thread of its own, so that the worker's loop goes on claiming and reporting
when a task blocks it. Where one does, and is given up, the tasks that follow get a new loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from asgiref.sync import sync_to_async
from django.db import connections

from queue_app.core.records import Outcome
from queue_app.exceptions import Interruption
from queue_app.registry import AnyTask
from queue_app.workers.context import ClaimedAttempt, note_interruption, shields
from queue_app.workers.executor import Executor
from queue_app.workers.outcomes import failed
from queue_app.workers.pools.backlog import BacklogPool

logger = logging.getLogger("taskqueue")

#: A loop that does not turn for so long is blocked by one of its tasks.
BLOCKED_SECONDS = 1.0
#: Connections that tasks used are looked after no more often than this.
RELEASE_SECONDS = 1.0


class AsyncPool(BacklogPool):
    """Runs at most ``slots`` coroutines at once, in the order in which they were submitted."""

    name = "async"
    kill_after: float | None = 5.0  # a coroutine that swallows its cancellation is left to itself then

    def __init__(self, slots: int, executor: Executor, on_outcome: Callable[[], None]) -> None:
        super().__init__(slots, on_outcome)
        self._executor = executor
        self._running: dict[int, _Run] = {}  # by the identity of what is held
        self._loop = _Loop()

    def can_run(self, task: AnyTask) -> bool:
        """Whether a task is a coroutine function."""
        return inspect.iscoroutinefunction(task.func)

    def start(self) -> None:
        """Start the loop."""
        self._loop.start()

    def interrupt(self, held: ClaimedAttempt, interruption: type[Interruption]) -> bool:
        """Cancel the coroutine that runs this attempt; it arrives where it next awaits something."""
        with self._lock:
            run = self._running.get(id(held))
            if run is None or held.interruption is not None:
                return False
            note_interruption(held, interruption)
        with shields:
            if not held.shielded:
                run.loop.call(run.cancel)
        return True

    def abandon(self, held: ClaimedAttempt, error: Interruption) -> Outcome | None:
        """Give up on a coroutine that does not end; where it blocks the loop, others get a new one."""
        with self._lock:
            run = self._running.pop(id(held), None)
            if run is None:
                return None
            if run.loop is self._loop and not run.loop.turns_within(BLOCKED_SECONDS):
                logger.error("%s blocks the event loop; tasks get a new one", held.task.task_type)
                self._loop = _Loop()
                self._loop.start()
            self._fill()
        return failed(held, run.since, error)

    def stop(self) -> None:
        """Cancel what runs and end the loop; whoever holds the tasks gives them back."""
        with self._lock:
            runs, self._running = list(self._running.values()), {}
        for run in runs:
            run.loop.call(run.cancel)
        self._loop.stop()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.slots:
            held = self._waiting.popleft()
            run = self._running[id(held)] = _Run(held, self._loop)
            run.loop.call(partial(self._begin, run))

    def _begun(self) -> Iterable[tuple[ClaimedAttempt, float]]:
        return [(run.held, run.since) for run in self._running.values()]

    def _begin(self, run: _Run) -> None:
        """Start the coroutine, on its loop."""
        run.task = asyncio.get_running_loop().create_task(self._attempt(run))

    async def _attempt(self, run: _Run) -> None:
        run.begun = True
        if run.held.interruption is not None:
            outcome = await sync_to_async(failed)(run.held, run.since, run.held.interruption())  # a backoff may block
        else:
            outcome = await self._executor.arun(run.held)
        with self._lock:
            if self._running.pop(id(run.held), None) is None:
                return  # given up: its outcome was reported
            self._outcomes.append(outcome)
            self._fill()
        self._on_outcome()
        await run.loop.release_connections(failed=outcome.failure is not None)


class _Run:
    """An attempt in a slot."""

    def __init__(self, held: ClaimedAttempt, loop: _Loop) -> None:
        self.held = held
        self.loop = loop
        self.since = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self.begun = False  # a coroutine that is cancelled before its first step never runs, and has no outcome

    def cancel(self) -> None:
        """Cancel it, on its loop, unless it has ended."""
        if self.begun and self.task is not None and not self.task.done():
            self.task.cancel()


class _Loop:
    """An event loop in a thread; a daemon, so that a task that blocks it cannot keep the process alive."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="event-loop", daemon=True)
        self._released_at = 0.0

    def start(self) -> None:
        self._thread.start()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def turns_within(self, seconds: float) -> bool:
        """Whether the loop turns once within so many seconds."""
        turned = threading.Event()
        self.call(turned.set)
        return turned.wait(seconds)

    def stop(self) -> None:
        """End the loop once it has dealt with what it was told before."""
        self.call(lambda: self._loop.call_soon(self._loop.stop))
        self._thread.join(timeout=BLOCKED_SECONDS)

    async def release_connections(self, *, failed: bool) -> None:
        """Close what tasks left unusable, in the thread that asgiref gives to calls from coroutines."""
        now = time.monotonic()
        if failed or now - self._released_at > RELEASE_SECONDS:
            self._released_at = now
            await sync_to_async(_release)()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(sync_to_async(connections.close_all)())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


def _release() -> None:
    for connection in connections.all(initialized_only=True):
        try:
            connection.close_if_unusable_or_obsolete()
        except Exception:
            logger.exception("a connection that a task used cannot be closed")
