"""What all pools have in common, and what the worker's loop may ask of them."""

import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from django.core.cache import caches
from django.db import connections
from django.tasks import task_backends

from queue_app.core.records import Outcome
from queue_app.exceptions import Interruption
from queue_app.registry import AnyTask
from queue_app.workers import sessions
from queue_app.workers.context import ClaimedAttempt, record_interruption
from queue_app.workers.executor import Executor
from queue_app.workers.outcomes import failed
from queue_app.workers.resources import core_wait

logger = logging.getLogger("taskqueue")


class Pool(ABC):
    """Runs claimed tasks in order in a number of slots, and collects the outcomes."""

    name: str
    #: Whether the pool can end an attempt by force.
    can_kill = False
    #: Seconds after which an interrupted attempt is ended by force, or counts as stuck; ``None``: only some time after
    #: its timeout.
    kill_after: float | None = None
    #: Seconds after which an interrupted attempt that still runs is interrupted again; ``None``: never.
    repeat_after: float | None = None

    def __init__(self, slots: int, executor: Executor, on_outcome: Callable[[], None]) -> None:
        self.slots = slots
        self._executor = executor
        self._on_outcome = on_outcome
        self._outcomes: deque[Outcome] = deque()
        self._lock = threading.RLock()

    def can_run(self, task: AnyTask) -> bool:
        """Whether this pool can run the task; the worker does not claim others."""
        return True

    @abstractmethod
    def start(self) -> None:
        """Start the slots."""

    @abstractmethod
    def stop(self) -> None:
        """End the slots. The caller gives back the tasks that still run."""

    def resize(self, slots: int) -> None:
        """Have this number of slots from now on. A surplus slot that runs an attempt ends after it."""
        with self._lock:
            self.slots = slots
            self._resized()

    @abstractmethod
    def _resized(self) -> None:
        """Start the slots that are missing, and end those that are idle and too many; called under the lock."""

    def lateness(self, seconds: float) -> float:
        """Wait, and return how many seconds ready code then waits for Python's lock, without waits for a core."""
        thread = threading.get_native_id()
        began, waited = time.monotonic(), core_wait(thread)
        time.sleep(seconds)
        return max(0.0, time.monotonic() - began - seconds - (core_wait(thread) - waited))

    @abstractmethod
    def submit(self, held: list[ClaimedAttempt]) -> None:
        """Queue tasks to run, in this order."""

    def take_outcomes(self) -> list[Outcome]:
        """Return the outcomes since the last call, in the order in which the attempts ended."""
        outcomes: list[Outcome] = []
        while self._outcomes:
            outcomes.append(self._outcomes.popleft())
        return outcomes

    @abstractmethod
    def take_unstarted(self) -> list[ClaimedAttempt]:
        """Take back the tasks that no slot has started."""

    def running(self) -> list[tuple[ClaimedAttempt, float]]:
        """Return the running attempts, and for how many seconds each has run."""
        now = time.monotonic()
        with self._lock:
            return [(held, now - since) for held, since in self._started()]

    @property
    def pids(self) -> list[int]:
        """Processes of the pool beside the worker's own."""
        return []

    @property
    @abstractmethod
    def unstarted(self) -> int:
        """Number of tasks that wait for a slot."""

    def interrupt(self, held: ClaimedAttempt, interruption: type[Interruption]) -> bool:
        """Ask an attempt to end; return false if it does not run here, or was asked before."""
        with self._lock:
            slot = self._slot_of(held)
            if slot is None or held.interruption is not None:
                return False
            record_interruption(held, interruption)
            self._raise(slot, held, interruption)
            return True

    def interrupt_again(self, held: ClaimedAttempt) -> None:
        """Repeat an interruption that Python or the task may have swallowed."""
        with self._lock:
            slot = self._slot_of(held)
            if slot is not None and held.interruption is not None:
                held.asked_at = time.monotonic()
                if not self._cleans_up(slot):
                    self._raise(slot, held, held.interruption)

    def stack(self, held: ClaimedAttempt) -> str:
        """Return where an attempt is now, or why that is not known (``services.lifecycle.stacks``)."""
        with self._lock:
            slot = self._slot_of(held)
        return "waiting" if slot is None else self._stack(slot)

    def give_up(self, held: ClaimedAttempt) -> None:  # noqa: B027 - a thread that is stuck stops nothing else
        """Let other attempts continue although this one is stuck; it keeps its slot."""

    def abandon(self, held: ClaimedAttempt, error: Interruption) -> Outcome | None:
        """End an attempt that ignores its interruption by force, or forget it because the process ends.

        Returns the outcome; ``None`` if the attempt has ended by itself meanwhile.
        """
        with self._lock:
            slot = self._slot_of(held)
            if slot is None:
                return None
            since = self._abandon(slot, held)
        return failed(held, since, error)

    # -- what each kind of slot defines; called under the lock ------------------------

    @abstractmethod
    def _started(self) -> Iterable[tuple[ClaimedAttempt, float]]:
        """Return the running attempts and their start times (monotonic)."""

    @abstractmethod
    def _slot_of(self, held: ClaimedAttempt) -> Any:
        """Return the slot that runs an attempt; ``None`` if none does."""

    @abstractmethod
    def _raise(self, slot: Any, held: ClaimedAttempt, interruption: type[Interruption]) -> None:
        """Raise the interruption in the slot that runs the attempt."""

    @abstractmethod
    def _stack(self, slot: Any) -> str:
        """Return where the attempt in this slot is now; called without the lock."""

    def _cleans_up(self, slot: Any) -> bool:
        """Whether the slot is known to have received its interruption."""
        return False

    @abstractmethod
    def _abandon(self, slot: Any, held: ClaimedAttempt) -> float:
        """Forget the attempt in this slot, and its process if it has one; return the start time (monotonic)."""


class BacklogPool(Pool):
    """A pool that keeps the tasks for its slots in a list, and starts the next one when a slot is free."""

    def __init__(self, slots: int, executor: Executor, on_outcome: Callable[[], None]) -> None:
        super().__init__(slots, executor, on_outcome)
        self._waiting: deque[ClaimedAttempt] = deque()

    @abstractmethod
    def _fill(self) -> None:
        """Start waiting tasks in free slots; called under the lock."""

    def submit(self, held: list[ClaimedAttempt]) -> None:
        with self._lock:
            self._waiting.extend(held)
            self._fill()

    def take_unstarted(self) -> list[ClaimedAttempt]:
        with self._lock:
            unstarted, self._waiting = list(self._waiting), deque()
        return unstarted

    @property
    def unstarted(self) -> int:
        return len(self._waiting)


def release_connections(held: ClaimedAttempt, *, aged: bool = True) -> bool:
    """Close the connections of this thread that the attempt left unusable or in another state than a new one.

    With ``aged``, also close those that are open for too long (``sessions.KEEP_SECONDS``). Returns whether any is open.
    """
    is_open = False
    for connection in connections.all(initialized_only=True):
        try:
            sessions.clean(connection, held)
            if getattr(connection.connection, "closed", False):
                connection.close()  # the task closed the driver's connection, of which Django does not know
            if aged:
                connection.close_if_unusable_or_obsolete()
            is_open = is_open or connection.connection is not None
        except Exception:  # the slot must survive, even if a task broke its connections
            logger.exception("a connection that a task used cannot be closed")
    return is_open


def prepare_slot() -> None:
    """Set up what is made once for all attempts of this thread; each attempt runs in a copy of its context.

    Django keeps caches and backends of tasks in the context. A cache that an attempt made would open connections of its
    own, and be gone with the attempt.
    """
    for handler in (caches, task_backends):
        for alias in handler:
            with suppress(Exception):  # the attempt that uses it reports the error
                handler[alias]


def handles_interruption(thread_id: int) -> bool:
    """Whether the thread runs a clean-up or an ``except`` block because of an interruption.

    Python swallows an exception that is raised while it runs a ``__del__`` method, or a callback of a
    weak reference or of the garbage collector. A thread that cleans up (an ``except`` or ``finally`` block,
    the end of a ``with`` block) has received the interruption and is left alone.
    """
    error = sys._current_exceptions().get(thread_id)  # noqa: SLF001 - the only way to see another thread's
    while error is not None and not isinstance(error, Interruption):
        error = error.__context__
    return error is not None
