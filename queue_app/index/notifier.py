"""Send hints without waiting for their replies, and many of a burst in one call.

A push that is awaited costs its caller a round trip; one that is sent costs a write to a
socket. The replies are read before the next one is sent. The first hint after a pause goes
out at once; those that follow within ``GATHER_SECONDS`` gather and go together, sent by the
next caller after that time, or by a thread when there is none.

What the server refused because it did not know the script, and what a connection that broke left
unanswered, is sent again (``index.line``): a push is idempotent, and an event may be told twice.
A hint that is lost all the same (the process ends, the server restarts) is the reconciler's, like
every other.

Events travel with the hints, before them: what became of a task never stands in the stream
before it was accepted.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import batched
from typing import Any

from queue_app.core.events import Run
from queue_app.core.records import Entry
from queue_app.index.lazy import redis
from queue_app.index.packed import pack
from queue_app.index.pipeline import Call, Line
from queue_app.index.publishing import publish_arguments, split

#: Hints that follow one another more closely than this go together.
GATHER_SECONDS = 0.005
#: So much later a thread does what the next caller has not done.
SLACK_SECONDS = 0.002
#: So many events wait at most for hints to go with: nobody waits for what is only told.
MAX_EVENTS = 2000
#: So many entries go in one call at most.
MAX_ENTRIES = 500
#: So many calls go to the socket at once: a burst's events and hints, and the question behind them, in one write.
TOGETHER = 3


class Poster:
    """One line for all threads of a process."""

    def __init__(
        self, client: redis.Redis, prefix: str, push: redis.commands.core.Script, publish: redis.commands.core.Script
    ) -> None:
        self._push = push
        self._publish = publish
        self._line = Line(client, prefix, (push, publish))
        self.forget()
        _posters.add(self)

    def forget(self) -> None:
        """Start afresh without closing: a forked child must not touch its parent's connection."""
        self._lock = threading.Lock()
        self._line.forget()
        self._gathered: list[Entry] = []
        self._events: list[Run] = []
        self._count = 0  # of what has gathered
        self.owes_hints = False  # posted, and perhaps not yet seen by the server
        self._since = 0.0  # when the first of them came
        self._sent_at = 0.0
        self._thread: threading.Thread | None = None
        self._gathering = threading.Event()
        self._failure: redis.RedisError | None = None
        self._gave_up_at = 0.0  # monotonic; the server did not answer in time

    def post(self, entries: Sequence[Entry], events: Sequence[Run] = ()) -> None:
        """Send hints and events, now or with those that follow.

        Raises ``redis.RedisError`` when these or earlier ones failed.
        """
        with self._turn():
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            now = time.monotonic()
            if not self._count:
                self._since = now
            self._gathered += entries
            self._events += events
            self._count += len(entries) + sum(max(1, len(run.task_ids)) for run in events)
            self.owes_hints = self.owes_hints or bool(entries)
            is_urgent = bool(self._gathered) or GATHER_SECONDS == 0  # without time to gather nothing does
            is_full = self._count >= (MAX_ENTRIES if is_urgent else MAX_EVENTS)
            if is_full or (is_urgent and now - self._sent_at >= GATHER_SECONDS):
                self._send_gathered(now)
            elif not self._gathering.is_set():
                self._start_thread()
                self._gathering.set()

    def flush(self) -> None:
        """Send what has gathered and wait until everything has been answered."""
        if self._count or self._line.outstanding:
            self._settle()

    def ask(
        self,
        script: redis.commands.core.Script,
        arguments: Sequence[Any],
        entries: Sequence[Entry] = (),
        events: Sequence[Run] = (),
    ) -> Any:
        """Call a script behind everything that was posted, and these; return its answer: one round trip for all.

        A server that had forgotten the scripts may answer before it has seen the hints.
        """
        return self._settle(Call(script, arguments), entries, events)

    def _settle(self, call: Call | None = None, entries: Sequence[Entry] = (), events: Sequence[Run] = ()) -> Any:
        with self._turn():
            self._gathered += entries
            self._events += events
            self._send_gathered(time.monotonic(), *([call] if call else []))
            try:
                return self._line.read(all_of_them=True, wanted=call)
            except redis.ConnectionError:
                self._line.send_again([])
                return self._line.read(all_of_them=True, wanted=call)
            finally:
                self.owes_hints = False

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Take the connection for oneself; let go of one whose server does not answer, or is a replica now.

        Threads that waited meanwhile do not wait for such a server once more each, one after the other.
        """
        asked_at = time.monotonic()
        with self._lock:
            if self._gave_up_at > asked_at:
                raise redis.TimeoutError("The server has just not answered another thread.")
            try:
                yield
            except (redis.TimeoutError, redis.ReadOnlyError):
                self._line.drop()
                self._gave_up_at = time.monotonic()
                raise

    def _send_gathered(self, now: float, *further: Call) -> None:
        entries, events, self._sent_at = self._gathered, self._events, now
        self._gathered, self._events, self._count = [], [], 0
        calls = [Call(self._publish, publish_arguments(part)) for part in split(events, MAX_ENTRIES)]
        calls += [Call(self._push, pack(part)) for part in batched(entries, MAX_ENTRIES)]
        calls += further
        for at in range(0, len(calls), TOGETHER):
            together = calls[at : at + TOGETHER]
            try:
                self._line.read(all_of_them=False)
                self._line.send(together)
            except redis.ConnectionError:
                self._line.send_again(together)

    def _start_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="taskqueue-hints", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """Send what has gathered when no further caller comes to do it.

        While callers come and send it only looks now and then, asleep in between: to be woken for each
        batch anew would cost them more than sending it.
        """
        while self._gathering.wait():
            pause = GATHER_SECONDS
            while pause:
                time.sleep(pause)
                try:
                    pause = self._send_late_ones()
                except redis.RedisError as error:
                    self._failure, pause = error, 0.0  # the next caller hears of it

    def _send_late_ones(self) -> float:
        """Send what has gathered for long enough; return how long (s) to sleep then, 0 when nobody comes any more."""
        with self._turn():
            now = time.monotonic()
            left = self._since + GATHER_SECONDS - now if self._count else self._sent_at + GATHER_SECONDS - now
            if left > 0:
                return left + SLACK_SECONDS
            self._gathering.clear()  # before it is sent, which may fail
            if self._count:
                self._send_gathered(now)
            return 0.0


_posters: weakref.WeakSet[Poster] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for poster in _posters:
        poster.forget()


def _flush_at_exit() -> None:
    for poster in _posters:
        try:
            poster.flush()
        except redis.RedisError:  # the reconciler will find the tasks
            continue


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_flush_at_exit)
