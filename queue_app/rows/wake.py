"""Wake-up calls: a worker that has nothing to do sleeps until PostgreSQL calls it.

A call is a mark in the worker's row of ``queue_app_rows_call`` (``sql/wake_1.sql``), and NOTIFY is only the bell: the
process then reads its marks. So a call that comes while no thread waits or the connection is broken is not lost, and
where no bell rings (behind PgBouncer in transaction mode) the process looks once a second.

Why a task does not wait although a worker is idle: a claim records in its own transaction, behind the lock of claims,
that it left slots free. A push shares that lock. So a claim that did not see the pushed lane had committed before, and
the push sees that its worker is idle. A mark is removed before its worker claims, so what finds a mark need not call.

Why not all workers come: one push calls one idle worker for each lane, and only one for lanes that it can all run. A
worker that was called a moment ago counts. A claim that fills its worker calls the next one.
"""

import contextlib
import logging
import math
import os
import random
import select
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import psycopg
from django.db import Error as DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from queue_app.exceptions import in_one_line
from queue_app.index import WorkerMessage
from queue_app.rows.tables import IS_IN_FORCE, ask
from queue_app.sql.database import alias

#: Seconds between two looks where no bell rings, and between two tries to connect.
POLL_SECONDS: Final = 1.0
#: Seconds between two looks where the bell rings: they find a broken connection.
LOOK_SECONDS: Final = 8.0
#: Seconds after its last wait after which a worker is forgotten: a remote one may wait in another process next.
FORGET_SECONDS: Final = 30.0

_WAKE: Final = f"SELECT queue_app_wake_1(NULL, %s), {IS_IN_FORCE}"
_TELL: Final = """
WITH told AS (
    UPDATE queue_app_rows_call SET told = true
    WHERE worker_id IN (SELECT worker_id FROM queue_app_rows_call WHERE worker_id = ANY(%s) ORDER BY 1 FOR UPDATE)
    RETURNING worker_id
)
SELECT pg_notify('taskqueue_' || worker_id, '') FROM told
"""
_TAKE: Final = """
WITH called AS (
    SELECT worker_id, told FROM queue_app_rows_call
    WHERE worker_id = ANY(%s) AND (woken IS NOT NULL OR told) ORDER BY 1 FOR UPDATE
)
UPDATE queue_app_rows_call AS c SET woken = NULL, told = false FROM called WHERE c.worker_id = called.worker_id
RETURNING called.worker_id, called.told
"""
_FORGET: Final = """
DELETE FROM queue_app_rows_call AS c WHERE NOT EXISTS (
    SELECT FROM queue_app_worker AS w WHERE w.id = c.worker_id AND w.status IN ('active', 'draining'))
RETURNING 1
"""

_log = logging.getLogger("taskqueue")


def wake(freed: Sequence[uuid.UUID] | None = None) -> tuple[int, bool]:
    """Call an idle worker if it can run what waits, or what waits for the slots of ended tasks.

    Returns how many were called, and whether claims read the rows.
    """
    woken, is_in_force = ask("wake", (_WAKE, [None if freed is None else list(freed)]))[0]
    return woken, is_in_force


def tell(worker_ids: Iterable[uuid.UUID]) -> None:
    """Let workers read their rows now."""
    ask("tell", (_TELL, [list(worker_ids)]))


def wait(worker_id: uuid.UUID, seconds: float) -> WorkerMessage | None:
    """Wait up to ``seconds`` until there may be work or a row of the worker changed; return which, or ``None``."""
    return _listener.wait(worker_id, seconds)


def forget(worker_id: uuid.UUID) -> None:
    """Stop listening for a worker that ends, and delete the rows of those that have ended."""
    _listener.forget(worker_id)
    ask("forget", (_FORGET, []))


def can_listen() -> bool:
    """Whether a connection of this project hears notifications; behind a pooler of transactions none does."""
    return not connections[alias()].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")


class _Box:
    """The calls of one worker that have come and were not heard."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.message: WorkerMessage | None = None
        self.left_at = math.inf  # when (monotonic) its last wait ended, if none waits


class Listener:
    """The thread that hears the calls of all workers of this process, on a connection of its own.

    It ends with the last worker. While it has no connection, each worker claims once a second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[uuid.UUID, _Box] = {}
        self._thread: threading.Thread | None = None
        self.bell = os.pipe()
        os.set_blocking(self.bell[1], False)

    def wait(self, worker_id: uuid.UUID, seconds: float) -> WorkerMessage | None:
        """Wait for a call of this worker."""
        with self._lock:
            box = self._boxes.setdefault(worker_id, _Box())
            self._ring()  # a call may have come since its last wait
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="taskqueue-listener", daemon=True)
                self._thread.start()
            box.left_at = math.inf
        box.changed.wait(seconds)
        with self._lock:
            message, box.message = box.message, None
            box.changed.clear()
            box.left_at = time.monotonic()
        return message

    def forget(self, worker_id: uuid.UUID) -> None:
        """Let the waits of a worker end."""
        with self._lock:
            box = self._boxes.pop(worker_id, None)
            if box:
                box.changed.set()
                self._ring()

    def _ring(self) -> None:
        """Let the thread look at its workers again."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.bell[1], b"!")

    def _deliver(self, worker_id: uuid.UUID, message: WorkerMessage) -> None:
        with self._lock:
            box = self._boxes.get(worker_id)
            if box:
                if box.message is not WorkerMessage.NOTIFICATION:
                    box.message = message
                box.changed.set()

    def _has_workers(self) -> bool:
        """Return whether there is a worker to listen for; if not, the thread has to end."""
        with self._lock:
            long_ago = time.monotonic() - FORGET_SECONDS
            self._boxes = {key: box for key, box in self._boxes.items() if box.left_at > long_ago}
            if not self._boxes:
                self._thread = None
            return bool(self._boxes)

    def _workers(self) -> dict[uuid.UUID, bool]:
        """Return the workers, and whether each waits now."""
        with self._lock:
            return {key: box.left_at == math.inf for key, box in self._boxes.items()}

    def _run(self) -> None:
        line: _Line | None = None
        failed = False
        while self._has_workers():
            try:
                line = line or _Line()
                for worker_id, told in line.take(self._workers()):  # once it is connected, which takes a while
                    self._deliver(worker_id, WorkerMessage.NOTIFICATION if told else WorkerMessage.WAKE_UP)
                if failed:
                    _log.info("wake-up calls are heard again")
                failed = False
                line.sleep(self.bell[0])
            except (DatabaseError, psycopg.Error, OSError) as error:
                if not failed:
                    _log.warning(
                        "no connection for wake-up calls, so workers look once a second: %s", in_one_line(error)
                    )
                failed = True
                _close(line)
                line = None
                _wait_for(self.bell[0], None, POLL_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
                for worker_id in self._workers():
                    self._deliver(worker_id, WorkerMessage.WAKE_UP)
        _close(line)


class _Line:
    """The connection of the listener: Django's parameters, but autocommit, and of no pool."""

    def __init__(self) -> None:
        ours = connections[alias()]
        options = {key: value for key, value in ours.settings_dict["OPTIONS"].items() if key != "pool"}
        self._database: BaseDatabaseWrapper = type(ours)(ours.settings_dict | {"OPTIONS": options}, ours.alias)
        self._database.connect()
        self._raw: psycopg.Connection[Any] = self._database.connection
        self._raw.autocommit = True
        self._raw.add_notify_handler(lambda _: setattr(self, "_is_called", True))
        self._is_called = False
        self._can_listen = can_listen()
        self._heard: set[uuid.UUID] = set()

    def take(self, workers: Mapping[uuid.UUID, bool]) -> list[tuple[uuid.UUID, bool]]:
        """Listen for the workers. Of those that wait, return which were called, and whether their rows changed.

        The others may wait in another process, as remote workers do.
        """
        self._is_called = False
        if self._can_listen and self._heard != set(workers):
            for word, names in (("LISTEN", set(workers) - self._heard), ("UNLISTEN", self._heard - set(workers))):
                for worker_id in names:
                    self._raw.execute(f'{word} "taskqueue_{worker_id}"'.encode())
            self._heard = set(workers)
        waiting = [worker_id for worker_id, waits in workers.items() if waits]
        return self._raw.execute(_TAKE, [waiting]).fetchall() if waiting else []

    def sleep(self, bell: int) -> None:
        """Wait until PostgreSQL or the process rings, or it is time to look."""
        if self._is_called:
            return
        if _wait_for(bell, self._raw.fileno(), LOOK_SECONDS if self._can_listen else POLL_SECONDS):
            self._raw.pgconn.consume_input()
            while self._raw.pgconn.notifies():
                pass

    def close(self) -> None:
        self._database.close()


def _close(line: _Line | None) -> None:
    if line is not None:
        with contextlib.suppress(Exception):  # it is broken
            line.close()


def _wait_for(bell: int, line: int | None, seconds: float) -> bool:
    """Wait until the process rings or something has arrived from PostgreSQL; return whether that has."""
    poll = select.poll()
    for number in (bell, line):
        if number is not None:
            poll.register(number, select.POLLIN)
    ready = [number for number, _ in poll.poll(seconds * 1000)]
    if bell in ready:
        os.read(bell, 4096)
    return line in ready


_listener = Listener()


def _begin_anew() -> None:
    """In a forked process: the thread and the connection are its parent's."""
    global _listener  # noqa: PLW0603 - one for each process
    for end in _listener.bell:
        os.close(end)
    _listener = Listener()


os.register_at_fork(after_in_child=_begin_anew)
