"""Subscribe to events in this process: one thread reads the stream as long as there are listeners.

Events may be lost: a waiter must read the rows before it begins to wait and whenever it is woken.
"""

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Final

from asgiref.sync import SyncToAsync, sync_to_async

from queue_app.core.events import Event
from queue_app.core.states import TERMINAL, Status
from queue_app.exceptions import IndexUnavailable
from queue_app.models import Task, Workflow
from queue_app.services.notify import events
from queue_app.sql.connections import close_idle, idle
from queue_app.sql.database import alias

logger = logging.getLogger("taskqueue")

Listener = Callable[[list[Event]], None]

BLOCK_MS: Final = 1000
RETRY_SECONDS: Final = 1.0
#: Interval at which a waiter reads the row, because an event may be lost; shorter when no events are published.
CHECK_SECONDS: Final = 10.0
CHECK_SECONDS_WITHOUT_EVENTS: Final = 1.0
#: Minimum time between two looks at the row of a workflow.
WORKFLOW_SECONDS: Final = 1.0
_ENDS: Final = frozenset(status.value for status in TERMINAL)


class Hub:
    """Passes every event of the stream to all listeners; a listener must not block."""

    def __init__(self) -> None:
        self._listeners: dict[int, Listener] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Pass events to a listener while the block runs."""
        key = id(listener)
        self.add(key, listener)
        try:
            self.wait_until_ready()
            yield
        finally:
            self.remove(key)

    def add(self, key: int, listener: Listener) -> None:
        """Pass events to a listener until ``remove``. Does not block, so that a cancellation cannot come in between."""
        with self._lock:
            self._listeners[key] = listener
            if self._thread is None:
                self._ready.clear()
                self._thread = threading.Thread(target=self._run, name="taskqueue-events", daemon=True)
                self._thread.start()

    def wait_until_ready(self) -> None:
        """Wait until the thread knows where the stream ends now, so that no later event is missed."""
        self._ready.wait(2.0)

    def remove(self, key: int) -> None:
        """Stop passing events to a listener; without listeners the thread ends."""
        with self._lock:
            self._listeners.pop(key, None)

    @property
    def busy(self) -> bool:
        with self._lock:
            return self._thread is not None

    def _run(self) -> None:
        last: str | None = None
        while True:
            with self._lock:
                if not self._listeners:
                    self._thread = None
                    return
            try:
                if last is None:
                    last = events.last_id()
                    self._ready.set()
                found, last = events.read(last, count=events.MAX_COUNT, block_ms=BLOCK_MS)
            except Exception as error:  # the thread must survive any error, or later listeners wait in vain
                if not isinstance(error, IndexUnavailable):
                    logger.exception("the events could not be read")
                self._ready.set()
                last = None
                time.sleep(RETRY_SECONDS)
                continue
            if found:
                with self._lock:
                    listeners = list(self._listeners.values())
                for listener in listeners:
                    self._call(listener, found)

    @staticmethod
    def _call(listener: Listener, found: list[Event]) -> None:
        try:
            listener(found)
        except Exception:  # a broken listener must not keep events from the others
            logger.exception("an event listener failed")


hub = Hub()


def wait_for_end(task_id: uuid.UUID, seconds: float, idle: Callable[[], AbstractContextManager[None]] = idle) -> bool:
    """Wait up to ``seconds`` until a task has ended; return whether it has. A task that is gone has ended.

    The thread waits within ``idle``, which closes its connection to the database, unless a transaction is open.
    """
    return _wait(partial(_has_ended, task_id), task_id, seconds, idle)


def wait_for_workflow(
    workflow_id: uuid.UUID, seconds: float, idle: Callable[[], AbstractContextManager[None]] = idle
) -> bool:
    """Do the same as ``wait_for_end`` for a workflow.

    Events do not name workflows, so the end of any task wakes the thread, which reads the row at most once a second.
    """
    running = Workflow.objects.using(alias()).filter(pk=workflow_id, finished_at__isnull=True)
    return _wait(lambda: not running.exists(), None, seconds, idle, spacing=WORKFLOW_SECONDS)


def _wait(
    has_ended: Callable[[], bool],
    task_id: uuid.UUID | None,
    seconds: float,
    idle: Callable[[], AbstractContextManager[None]],
    *,
    spacing: float = 0.0,
) -> bool:
    until = time.monotonic() + seconds
    pause = CHECK_SECONDS if events.are_streamed() else CHECK_SECONDS_WITHOUT_EVENTS
    woken = threading.Event()
    with hub.listening(_on_end(task_id, woken.set)):
        while not has_ended():
            left = until - time.monotonic()
            if left <= 0:
                return False
            with idle():
                time.sleep(min(spacing, left))
                woken.wait(min(left - min(spacing, left), pause))
            woken.clear()
    return True


async def await_end(task_id: uuid.UUID, seconds: float | None) -> bool:
    """Do the same as ``wait_for_end`` for a coroutine, without a waiting thread; ``None`` means no limit.

    Meanwhile a request of an ASGI server holds no connection to the database, unless a transaction is open.
    """
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    until = None if seconds is None else loop.time() + seconds

    def wake() -> None:
        if not loop.is_closed():  # the hub's thread may call after the loop has ended
            loop.call_soon_threadsafe(woken.set)

    listen = _on_end(task_id, wake)
    pause = CHECK_SECONDS if events.are_streamed() else CHECK_SECONDS_WITHOUT_EVENTS
    hub.add(id(listen), listen)
    try:
        await sync_to_async(hub.wait_until_ready, thread_sensitive=False)()
        while not await sync_to_async(_has_ended_or_waits)(task_id):
            left = pause if until is None else min(pause, until - loop.time())
            if left <= 0:
                return False
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), left)
            woken.clear()
    finally:
        hub.remove(id(listen))
    return True


def _on_end(task_id: uuid.UUID | None, call: Callable[[], object]) -> Listener:
    """Return a listener that calls a function at the end of a task; ``None`` means any task."""
    wanted = task_id and str(task_id)

    def listen(found: list[Event]) -> None:
        if any(event.status in _ENDS and wanted in (None, event.task_id) for event in found):
            call()

    return listen


def _has_ended_or_waits(task_id: uuid.UUID) -> bool:
    """Return whether a task has ended; if not, its coroutine waits, so close the connection of its request's thread.

    Where all coroutines share one thread, they share its connection too, and another one may be using it.
    """
    ended = _has_ended(task_id)
    if not ended and SyncToAsync.thread_sensitive_context.get(None) is not None:
        close_idle()
    return ended


def _has_ended(task_id: uuid.UUID) -> bool:
    found = Task.objects.using(alias()).filter(pk=task_id).values_list("status", flat=True).first()
    return found is None or Status(found) in TERMINAL
