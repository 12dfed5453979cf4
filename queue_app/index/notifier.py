"""Send notifications without waiting for their replies, and many of a burst in one call.

A notification is an entry (a queued task and its place, for ``lua/push.lua``) or an event (for ``lua/publish.lua``).
The first one after a pause is sent at once; further ones within ``GATHER_SECONDS`` are sent together by the next
caller, or by a thread when there is none. Replies are read before the next write. Events go before entries: the stream
never says what became of a task before it says that the task was accepted.

Refused calls, and calls that a broken connection left unanswered, are sent again (``index.pipeline``): a push is
idempotent, and an event may appear twice. When a notification is lost anyway (the process ends, the server
restarts), the reconciler pushes the task.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Sequence
from itertools import batched
from typing import Any

from queue_app.core.events import Run
from queue_app.core.records import Entry
from queue_app.index.client import redis
from queue_app.index.notifications import pack, publish_arguments, split
from queue_app.index.pipeline import Pipeline, ScriptCall

#: Notifications that follow one another more closely than this are sent together.
GATHER_SECONDS = 0.005
#: Extra time that the thread leaves to the next caller.
SLACK_SECONDS = 0.002
#: Maximum number of events that wait for entries to go with.
MAX_EVENTS = 2000
#: Maximum number of entries, or of events, per call.
MAX_ENTRIES = 500
#: Maximum number of calls per write: the events and entries of a burst, and the script call behind them.
MAX_CALLS = 3


class _PipelineLock:
    """The lock of a pipeline; closes its connection if the server does not answer, or is a replica now.

    Threads that waited for the lock meanwhile fail at once: otherwise each would wait for that server in turn.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._lock = threading.Lock()
        self._timed_out_at = 0.0  # monotonic; the server did not answer in time

    def __enter__(self) -> None:
        asked_at = time.monotonic()
        self._lock.acquire()
        if self._timed_out_at > asked_at:
            self._lock.release()
            raise redis.TimeoutError("The server has just not answered another thread.")

    def __exit__(self, _kind: object, error: BaseException | None, _frames: object) -> None:
        try:
            if error is not None and isinstance(error, (redis.TimeoutError, redis.ReadOnlyError)):
                self._pipeline.disconnect()
                self._timed_out_at = time.monotonic()
        finally:
            self._lock.release()


class Notifier:
    """One pipeline for all threads of a process."""

    def __init__(
        self, client: redis.Redis, prefix: str, push: redis.commands.core.Script, publish: redis.commands.core.Script
    ) -> None:
        self._push = push
        self._publish = publish
        self._pipeline = Pipeline(client, prefix, (push, publish))
        self.reset()
        _notifiers.add(self)

    def reset(self) -> None:
        """Start afresh without closing: a forked child must not touch its parent's connection."""
        self._lock = _PipelineLock(self._pipeline)
        self._pipeline.reset()
        self._entries: list[Entry] = []
        self._events: list[Run] = []
        self._count = 0  # gathered entries and events
        self.has_unconfirmed_entries = False  # the server may not have seen them yet
        self._since = 0.0  # when the first gathered one came
        self._sent_at = 0.0
        self._thread: threading.Thread | None = None
        self._gathering = threading.Event()
        self._failure: redis.RedisError | None = None

    def notify(self, entries: Sequence[Entry], events: Sequence[Run] = ()) -> None:
        """Send entries and events, now or with the next ones; raise ``redis.RedisError`` when earlier ones failed."""
        with self._lock:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            now = time.monotonic()
            if not self._count:
                self._since = now
            if entries:
                self._entries += entries
                self._count += len(entries)
                self.has_unconfirmed_entries = True
            for run in events:
                self._events.append(run)
                self._count += len(run.task_ids) or 1
            is_urgent = bool(self._entries) or GATHER_SECONDS == 0
            is_full = self._count >= (MAX_ENTRIES if is_urgent else MAX_EVENTS)
            if is_full or (is_urgent and now - self._sent_at >= GATHER_SECONDS):
                self._send_gathered(now)
            elif not self._gathering.is_set():
                try:
                    self._start_thread()
                except RuntimeError:  # the interpreter is about to exit, or the system has no room for a thread
                    self._send_gathered(now)
                else:
                    self._gathering.set()

    def post(self, calls: Sequence[ScriptCall]) -> None:
        """Send calls of scripts without waiting for their replies; the next call of this process goes after them."""
        with self._lock:
            for call in calls:
                self._pipeline.load(call.script)
            self.has_unconfirmed_entries = True
            self._send_gathered(time.monotonic(), *calls)

    def flush(self) -> None:
        """Send the gathered notifications and wait for all replies."""
        if self._count or self._pipeline.unanswered:
            self.call(None)

    def call(
        self,
        script: redis.commands.core.Script | None,
        arguments: Sequence[Any] = (),
        entries: Sequence[Entry] = (),
        events: Sequence[Run] = (),
        *,
        once: bool = False,
    ) -> Any:
        """Call a script, if any, after all earlier notifications and these, in one round trip; return its reply.

        With ``once`` the call is not repeated when its reply was lost.
        A server that had forgotten the scripts may reply before it has seen the notifications.
        """
        call = ScriptCall(script, arguments) if script else None
        with self._lock:
            self._entries += entries
            self._events += events
            self._send_gathered(time.monotonic(), *([call] if call else []))
            try:
                return self._pipeline.read(wait=True, wanted=call)
            except redis.ConnectionError:
                if once:
                    self._pipeline.forget(call)
                self._pipeline.resend([])
                reply = self._pipeline.read(wait=True, wanted=call)
                if once:
                    raise
                return reply
            finally:
                self.has_unconfirmed_entries = False

    def _send_gathered(self, now: float, *further: ScriptCall) -> None:
        entries, events, self._sent_at = self._entries, self._events, now
        self._entries, self._events, self._count = [], [], 0
        calls = [ScriptCall(self._publish, publish_arguments(part)) for part in split(events, MAX_ENTRIES)]
        calls += [ScriptCall(self._push, pack(part)) for part in batched(entries, MAX_ENTRIES)]
        calls += further
        for at in range(0, len(calls), MAX_CALLS):
            together = calls[at : at + MAX_CALLS]
            try:
                self._pipeline.read(wait=False)
                self._pipeline.send(together)
            except redis.ConnectionError:
                self._pipeline.resend(together)

    def _start_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="taskqueue-notifier", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """Send the gathered notifications if no further caller does.

        While callers come and send, the thread only polls, asleep in between: waking it for each batch would cost the
        callers more than sending it themselves.
        """
        while self._gathering.wait():
            pause = GATHER_SECONDS
            while pause:
                time.sleep(pause)
                try:
                    pause = self._send_overdue()
                except redis.RedisError as error:
                    self._failure, pause = error, 0.0  # raised to the next caller

    def _send_overdue(self) -> float:
        """Send notifications that are old enough; return how long (s) to sleep then, 0 when no caller comes."""
        with self._lock:
            now = time.monotonic()
            left = self._since + GATHER_SECONDS - now if self._count else self._sent_at + GATHER_SECONDS - now
            if left > 0:
                return left + SLACK_SECONDS
            self._gathering.clear()  # before sending, which may fail
            if self._count:
                self._send_gathered(now)
            return 0.0


_notifiers: weakref.WeakSet[Notifier] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for notifier in _notifiers:
        notifier.reset()


def _flush_at_exit() -> None:
    for notifier in _notifiers:
        try:
            notifier.flush()
        except redis.RedisError:  # the reconciler will find the tasks
            continue


os.register_at_fork(after_in_child=_reset_after_fork)
atexit.register(_flush_at_exit)
