"""Notify the index of what was committed, or condemn it; a notification may be lost.

A process may die between COMMIT and the notification, or Redis may be away. The rows are committed, and the
reconciler repairs the index from them. So a failed notification is logged, not raised. After a failure, no thread of
this process sends notifications for a few seconds; otherwise each caller would wait for a server that does not answer.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Concatenate

from django.db import Error as DatabaseError, connections
from django.dispatch import Signal

from queue_app import conf, signals
from queue_app.core.events import Run
from queue_app.core.records import Entry, TaskRef
from queue_app.exceptions import IndexDamaged, IndexUnavailable
from queue_app.index import Index, get_index, import_client, is_loaded, is_open, operation_of
from queue_app.services.owner import check_owner
from queue_app.services.way import follow
from queue_app.sql import snapshot
from queue_app.sql.database import call_on_commit, is_in_transaction
from queue_app.telemetry import transition_log

_log = logging.getLogger("taskqueue")

#: Receives the position that a task has in its queue, ``None`` when it has none.
type OnLocated = Callable[[int | None], object]

#: Minimum time without notifications after one failed, in seconds.
HOLD_BACK_SECONDS = 2.0
#: The pause is at least this multiple of the time that the failure took, so callers wait at most 1/5 of the time.
HOLD_BACK_FACTOR = 4
#: Time between two looks of a process that holds notifications back, whether claims read the rows.
LOOK_SECONDS = 0.5
#: Maximum time for which notifications wait for the thread that imports the client library of Redis, and a fork for the
#: first notification itself.
PATIENCE_SECONDS = 2.0
#: Maximum time for which a fork waits for the import. Only a caller that forks while it imports a module can reach it:
#: that module may be the one for which the thread waits.
FORK_PATIENCE_SECONDS = 60.0
#: Time in which the caller continues before that thread begins: Python runs one of them at a time.
HEAD_START_SECONDS = 0.02
#: As in the column ``condemned_because``.
MAX_BECAUSE = 300


class Breaker:
    """Holds notifications back for a moment after one failed."""

    def __init__(self) -> None:
        self.open_until = 0.0  # monotonic
        self._look_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether notifications are held back now."""
        return time.monotonic() < self.open_until

    def trip(self, waited: float = 0.0) -> None:
        """Hold notifications back from now on; longer when the caller ``waited`` long for the failure (s)."""
        self.open_until = time.monotonic() + max(HOLD_BACK_SECONDS, HOLD_BACK_FACTOR * waited)

    def finds_rows(self) -> bool:
        """Look, not too often, whether claims read the rows by now; then nothing needs to be held back."""
        if (now := time.monotonic()) < self._look_at or conf.get().index != conf.REDIS:
            return False
        self._look_at = now + LOOK_SECONDS
        with suppress(DatabaseError):
            if follow().is_rows:
                self.reset()
        return not self.is_open

    def reset(self) -> None:
        self.open_until = 0.0


breaker = Breaker()


def condemn(because: str) -> bool:
    """Make the rows refuse the present index; the scheduler, or any worker that claims, then rebuilds it.

    Returns false if nothing was done: a rebuild is due anyway, or the last condemnation is too recent. Each further one
    within ten minutes has to wait twice as long, up to 7 s if the last rebuild helped, else up to five minutes. So a
    fault that a rebuild cannot cure does not keep the workers from working in between. Inside the caller's transaction
    nothing is done, because every grant would wait for the end of that transaction.

    If the process dies after the commit, the next turn of the scheduler finds an outdated generation.
    """
    is_rows = get_index().way == conf.ROWS
    if is_in_transaction() or not snapshot.condemn(because[:MAX_BECAUSE], is_rows=is_rows):
        return False
    signals.index_condemned.send(None, because=because)
    return True


def notify_index[**P, R](
    operation: Callable[Concatenate[Index, P], R], name: str, *args: P.args, **kwargs: P.kwargs
) -> R | None:
    """Call ``operation`` with the index and return its result; if the index is out of reach, log that instead."""
    began = time.monotonic()
    if began < breaker.open_until and not breaker.finds_rows():
        return None
    index = get_index()
    try:
        return operation_of(index, operation)(index, *args, **kwargs)
    except IndexUnavailable as error:
        if isinstance(error, IndexDamaged):
            condemn(str(error))
        breaker.trip(time.monotonic() - began)
        signals.index_unreachable.send(None, operation=name, error=error)
        return _over_rows(index, operation, *args, **kwargs)


def _over_rows[**P, R](
    failed: Index, operation: Callable[Concatenate[Index, P], R], *args: P.args, **kwargs: P.kwargs
) -> R | None:
    """Notify the index in the rows instead, if claims read them."""
    with suppress(IndexUnavailable, DatabaseError):
        if failed.way == conf.REDIS and breaker.finds_rows():
            return operation_of(get_index(), operation)(get_index(), *args, **kwargs)
    return None


class FirstNotifications:
    """Sends the first notifications of a process by a thread, which imports the client library and connects to Redis.

    The import takes a tenth of a second or more, for which no caller should wait. The interpreter waits for the thread
    before it exits, and ``fork`` waits for it too: a child could not complete an import of its parent's thread.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Sequence[Entry], Sequence[Run]]] = deque()
        self._thread: threading.Thread | None = None
        self._since = 0.0  # monotonic
        self._is_open = False  # whether this process has opened the index
        self._imported = threading.Event()
        os.register_at_fork(before=self._finish)

    def notify(self, entries: Sequence[Entry], events: Sequence[Run]) -> None:
        """Notify the index; by the thread, if this process has not opened the index yet."""
        self._is_open = self._is_open or is_open()
        if self._is_open or breaker.is_open:
            notify_index(Index.notify, "push", entries, events)
            return
        self._waiting.append((entries, events))
        if self._thread is None:
            self._since = time.monotonic()
            self._thread = threading.Thread(target=self._send_soon, name="taskqueue-first-notifications")
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter is about to exit, or the system has no room for a thread
                self._send()
        elif is_open() or not self._thread.is_alive() or time.monotonic() > self._since + PATIENCE_SECONDS:
            self._send()  # the thread may have ended a moment ago; and some servers run no threads of Python

    def prepare(self) -> None:
        """Import the library now, where the index is in Redis."""
        with suppress(Exception):  # the first notification meets the same error, and reports it
            if conf.get().index == conf.REDIS:
                import_client()
        self._imported.set()

    def _send_soon(self) -> None:
        if not is_loaded():
            time.sleep(HEAD_START_SECONDS)
        self.prepare()
        try:
            self._send()
        finally:
            connections.close_all()  # after a failure this thread has asked PostgreSQL for the way

    def _send(self) -> None:
        while self._waiting:
            try:
                entries, events = self._waiting.popleft()
            except IndexError:  # another thread took it
                return
            notify_index(Index.notify, "push", entries, events)

    def _finish(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._imported.wait(FORK_PATIENCE_SECONDS)
            self._thread.join(PATIENCE_SECONDS)


first = FirstNotifications()


def on_commit[**P](
    operation: Callable[Concatenate[Index, P], object], name: str, *args: P.args, **kwargs: P.kwargs
) -> None:
    """Call ``notify_index`` once the caller's transaction has committed, if the index belongs to this database.

    A copy of the database has the same tasks and queues. A pause or a cancellation there must not reach the index of
    the original.
    """

    def checked(index: Index, /, *args: P.args, **kwargs: P.kwargs) -> None:
        check_owner()
        operation_of(index, operation)(index, *args, **kwargs)

    call_on_commit(lambda: notify_index(checked, name, *args, **kwargs))


def remove_on_commit(tasks: Sequence[TaskRef]) -> None:
    """Take tasks out of the index once the caller's transaction has committed."""
    on_commit(_take_out, "remove", tasks)


def _take_out(index: Index, tasks: Sequence[TaskRef]) -> None:
    """Remove tasks, and put back those that another process has queued again since the commit."""
    if index.remove(tasks):
        index.push(snapshot.refs([task.id for task in tasks]))


def send_on_commit(signal: Signal, **values: object) -> None:
    """Send a signal once the caller's transaction has committed."""
    call_on_commit(partial(signal.send, None, **values))


@dataclass(slots=True, eq=False)
class PushOnCommit:
    """A hook that publishes the events and pushes the tasks of one transaction in one call."""

    entries: list[Entry]
    events: list[Run]
    callbacks: list[Callable[[], object]]
    on_located: OnLocated | None
    ran: bool = False  # a test may run the hooks of a transaction that continues

    def join(self, last: object) -> bool:
        """Add what this hook would send to the last hook of the transaction; return false if that sends nothing."""
        if not isinstance(last, PushOnCommit) or last.ran:
            return False
        last.entries += self.entries
        last.events += self.events
        last.callbacks += self.callbacks
        return True

    def __call__(self) -> None:
        self.ran = True
        for callback in self.callbacks:
            callback()
        if self.events and conf.get().events.log:
            transition_log.log_events(self.events)
        if self.on_located and len(self.entries) == 1:
            self.on_located(notify_index(Index.notify_and_locate, "push", self.entries[0], self.events))
        else:
            first.notify(self.entries, self.events)


def push_on_commit(
    entries: Sequence[Entry],
    on_push: Callable[[], object] | None = None,
    *,
    events: Sequence[Run] = (),
    on_located: OnLocated | None = None,
) -> None:
    """Push tasks and publish events once the caller's transaction has committed; at once when there is none.

    One hook gathers what a transaction pushes, unless a savepoint that could be rolled back alone lies in between.
    ``on_push`` is called before the push, whether the push arrives or not. When the transaction pushes only one task,
    ``on_located`` is called with the position of that task, asked for in the same round trip.
    """
    if entries or events:
        push = PushOnCommit([*entries], [*events], [on_push] if on_push else [], on_located)
        call_on_commit(push, push.join)
