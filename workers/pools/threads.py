"""Slots as threads of the worker process: the default pool."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from django.db import connections

from queue_app.core.records import Outcome
from queue_app.exceptions import Interruption
from queue_app.registry import AnyTask
from queue_app.workers.context import ClaimedAttempt, note_interruption, shields
from queue_app.workers.executor import Executor
from queue_app.workers.outcomes import failed

logger = logging.getLogger("taskqueue")


class ThreadPool:
    """Runs held tasks in order on a fixed number of threads, and gathers the outcomes."""

    name = "threads"
    kill_after: float | None = None  # a thread cannot be killed, only given up when it is overdue
    repeat_after: float | None = 1.0

    def __init__(self, slots: int, executor: Executor, on_outcome: Callable[[], None]) -> None:
        self.slots = slots
        self._executor = executor
        self._on_outcome = on_outcome
        self._waiting: SimpleQueue[ClaimedAttempt | None] = SimpleQueue()
        self._outcomes: deque[Outcome] = deque()
        self._running: dict[int, tuple[ClaimedAttempt, float]] = {}  # by thread: one task may be here in two attempts
        self._interrupted: set[int] = set()  # threads in which an interruption was raised
        self._lock = threading.Lock()  # an interruption must meet the attempt that it is meant for
        self._threads: list[threading.Thread] = []

    def can_run(self, task: AnyTask) -> bool:
        """Whether a task may run here: coroutine functions too, on an event loop of their own."""
        return True

    def start(self) -> None:
        """Start the threads; daemons, so that a stuck task cannot keep the process alive."""
        for _ in range(self.slots):
            self._add_slot()

    def _add_slot(self) -> None:
        thread = threading.Thread(target=self._slot, name=f"slot-{len(self._threads) + 1}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def submit(self, held: list[ClaimedAttempt]) -> None:
        """Take tasks to run, in this order."""
        for item in held:
            self._waiting.put(item)

    def take_outcomes(self) -> list[Outcome]:
        """Return the outcomes since the last call, in the order in which they ended."""
        outcomes: list[Outcome] = []
        while self._outcomes:
            outcomes.append(self._outcomes.popleft())
        return outcomes

    def take_unstarted(self) -> list[ClaimedAttempt]:
        """Take back the tasks that no slot has begun."""
        unstarted: list[ClaimedAttempt] = []
        while True:
            try:
                item = self._waiting.get_nowait()
            except Empty:
                return unstarted
            if item is not None:
                unstarted.append(item)

    def running(self) -> list[tuple[ClaimedAttempt, float]]:
        """Return what runs now, and for how many seconds."""
        now = time.monotonic()
        return [(held, now - since) for held, since in list(self._running.values())]

    @property
    def unstarted(self) -> int:
        """How many tasks wait for a slot."""
        return self._waiting.qsize()

    def stop(self) -> None:
        """Let the threads end once they are idle."""
        for _ in self._threads:
            self._waiting.put(None)

    def interrupt(self, held: ClaimedAttempt, interruption: type[Interruption]) -> bool:
        """Raise ``interruption`` in the thread that runs this attempt; return false when none does, or it was done.

        It arrives at the next step of Python code: a call that blocks outside of Python
        (a long query, ``time.sleep``) ends first.
        """
        with self._lock:
            for slot, (running, _) in list(self._running.items()):  # threads add what they begin meanwhile
                if running is held and slot not in self._interrupted:
                    self._interrupted.add(slot)
                    note_interruption(held, interruption)
                    with shields:
                        if not held.shielded:  # else it is raised at the end of the shield
                            _raise_in_thread(slot, interruption)
                    return True
        return False

    def interrupt_again(self, held: ClaimedAttempt) -> None:
        """Raise the interruption once more in a thread that goes on with the attempt.

        Python swallows an exception that is raised while it runs a ``__del__`` method, or a callback of a
        weak reference or of the garbage collector. A thread that cleans up (an ``except`` or ``finally`` block,
        the end of a ``with`` block) has received the interruption and is left alone.
        """
        with self._lock:
            for slot, (running, _) in list(self._running.items()):
                if running is held and held.interruption is not None:
                    note_interruption(held, held.interruption)
                    with shields:
                        if not held.shielded and not _handles_interruption(slot):
                            _raise_in_thread(slot, held.interruption)

    def abandon(self, held: ClaimedAttempt, error: Interruption) -> Outcome | None:
        """Give up on the thread that runs this attempt and does not end; another takes its slot.

        Returns the attempt's outcome as a failure, or ``None`` when it has ended meanwhile.
        """
        with self._lock:
            for slot, (running, since) in list(self._running.items()):
                if running is held:
                    del self._running[slot]
                    self._add_slot()
                    return failed(held, since, error)
        return None

    def _slot(self) -> None:
        slot = threading.get_ident()
        while (held := self._waiting.get()) is not None:
            outcome = self._attempt(slot, held)
            while True:
                try:
                    mine = self._leave(slot, held)
                    break
                except Interruption:  # it came as the attempt had ended, before it was out of reach
                    continue
            if not mine:
                return  # abandoned: another thread has this slot, and the outcome was reported
            self._outcomes.append(outcome)
            self._on_outcome()
            _release_connections()
        connections.close_all()

    def _attempt(self, slot: int, held: ClaimedAttempt) -> Outcome:
        began = time.monotonic()
        late: Interruption | None = None
        while True:
            try:
                if late is not None:
                    return failed(held, began, late)
                self._running[slot] = (held, began)
                return self._executor.run(held)
            except Interruption as interruption:  # it came while the attempt was ending
                late = interruption

    def _leave(self, slot: int, held: ClaimedAttempt) -> bool:
        """End the attempt's time in the slot, after which no interruption can reach the thread."""
        with self._lock:
            _raise_in_thread(slot, None)  # takes back one that has not arrived
            self._interrupted.discard(slot)
            running = self._running.get(slot)
            if running is None or running[0] is not held:
                return False
            del self._running[slot]
            return True


def _raise_in_thread(thread_id: int, interruption: type[Interruption] | None) -> None:
    """Set, or take back, an exception that the thread raises at its next step of Python code (CPython's own means)."""
    value = ctypes.py_object(interruption) if interruption else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), value)


def _handles_interruption(thread_id: int) -> bool:
    """Whether the thread is inside of a block that an interruption ends, or in its clean-up."""
    error = sys._current_exceptions().get(thread_id)  # noqa: SLF001 - there is no other way to see another thread's
    while error is not None and not isinstance(error, Interruption):
        error = error.__context__
    return error is not None


def _release_connections() -> None:
    """Close what this thread's task left unusable or open for too long, as Django does after a request."""
    for connection in connections.all(initialized_only=True):
        try:
            connection.close_if_unusable_or_obsolete()
        except Exception:  # the slot must live on, whatever a task did to its connections
            logger.exception("a connection that a task used cannot be closed")
