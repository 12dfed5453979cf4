"""Slots as threads of the worker process: the default pool."""

import ctypes
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from django.db import connections

from queue_app.core.records import Outcome
from queue_app.exceptions import Interruption
from queue_app.workers import stack
from queue_app.workers.context import ClaimedAttempt, shields
from queue_app.workers.executor import Executor
from queue_app.workers.lifecycle import essential_thread
from queue_app.workers.outcomes import failed
from queue_app.workers.pools.base import Pool, handles_interruption, prepare_slot, release_connections
from queue_app.workers.sessions import KEEP_SECONDS, renew, watch_sessions


class ThreadPool(Pool):
    """Runs claimed tasks in order on a number of threads.

    A thread cannot be killed. A stuck one keeps its slot until it ends, or until the worker's process is replaced.
    """

    name = "threads"
    repeat_after: float | None = 1.0

    def __init__(self, slots: int, executor: Executor, on_outcome: Callable[[], None]) -> None:
        super().__init__(slots, executor, on_outcome)
        self._waiting: SimpleQueue[ClaimedAttempt | None] = SimpleQueue()
        self._running: dict[int, tuple[ClaimedAttempt, float]] = {}  # by thread: two attempts may be of one task
        self._threads: list[threading.Thread] = []
        self._alive = 0  # threads that take tasks
        self._is_stopped = False

    def start(self) -> None:
        """Start the threads; they are daemons, so that a stuck task cannot keep the process alive."""
        watch_sessions()
        self.resize(self.slots)

    def stop(self) -> None:
        """Let the threads end once they are idle."""
        self._is_stopped = True
        for _ in self._threads:
            self._waiting.put(None)

    def _resized(self) -> None:
        while self._alive < self.slots:
            self._alive += 1
            self._add_slot()
        for _ in range(self._alive - self.slots):
            self._waiting.put(None)  # wakes an idle thread

    def _is_surplus(self) -> bool:
        """Whether the calling thread ends, because there are too many."""
        if self._alive <= self.slots:  # without the lock, which slots of quick tasks would fight for
            return False
        with self._lock:
            is_surplus = self._alive > self.slots
            self._alive -= is_surplus
            return is_surplus

    def _add_slot(self) -> None:
        thread = essential_thread(self._slot, f"slot-{len(self._threads) + 1}")
        thread.start()
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def submit(self, held: list[ClaimedAttempt]) -> None:
        for item in held:
            self._waiting.put(item)

    def take_unstarted(self) -> list[ClaimedAttempt]:
        unstarted: list[ClaimedAttempt] = []
        while True:
            try:
                item = self._waiting.get_nowait()
            except Empty:
                return unstarted
            if item is not None:
                unstarted.append(item)

    def _started(self) -> Iterable[tuple[ClaimedAttempt, float]]:
        return list(self._running.values())  # a copy: threads add their attempts without the lock

    @property
    def unstarted(self) -> int:
        return self._waiting.qsize()

    def _cleans_up(self, slot: int) -> bool:
        return handles_interruption(slot)

    def _slot_of(self, held: ClaimedAttempt) -> int | None:
        return next((slot for slot, (item, _) in list(self._running.items()) if item is held), None)

    def _raise(self, slot: int, held: ClaimedAttempt, interruption: type[Interruption]) -> None:
        """Raise the interruption at the thread's next step of Python code.

        A call that blocks outside of Python (a long query, ``time.sleep``) ends first.
        """
        with shields:
            if not held.shielded:  # otherwise the end of the shield raises it
                _raise_in_thread(slot, interruption)

    def _stack(self, slot: int) -> str:
        return stack.as_text(stack.of_thread(slot))

    def _abandon(self, slot: int, held: ClaimedAttempt) -> float:
        return self._running.pop(slot)[1]

    def _slot(self) -> None:
        slot = threading.get_ident()
        prepare_slot()
        has_sessions = False
        while not self._is_surplus():
            try:
                held = self._waiting.get(timeout=KEEP_SECONDS if has_sessions else None)
            except Empty:
                connections.close_all()
                has_sessions = False
                continue
            if held is None:
                if self._is_stopped:
                    break
                continue
            if has_sessions:
                renew()
            outcome = self._attempt(slot, held)
            while True:
                try:
                    is_mine = self._release(slot, held)
                    break
                except Interruption:  # it arrived after the attempt had ended
                    continue
            if not is_mine:
                break  # the process ends, and ``abandon`` returned the outcome
            self._outcomes.append(outcome)
            self._on_outcome()
            has_sessions = release_connections(held)
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
            except Interruption as interruption:  # it arrived while the attempt was ending
                late = interruption

    def _release(self, slot: int, held: ClaimedAttempt) -> bool:
        """End the attempt's time in the slot, so that no interruption can reach the thread any more."""
        with self._lock:
            _raise_in_thread(slot, None)  # takes back an exception that has not arrived
            running = self._running.get(slot)
            if running is None or running[0] is not held:
                return False
            del self._running[slot]
            return True


def _raise_in_thread(thread_id: int, interruption: type[Interruption] | None) -> None:
    """Set the exception that a thread raises at its next step of Python code, or take it back (CPython only)."""
    value = ctypes.py_object(interruption) if interruption else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), value)
