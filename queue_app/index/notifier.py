"""Send notifications without waiting for their replies, and many of a burst in one call.

A notification is an entry (a queued task and its place, for ``lua/push.lua``) or an event (for ``lua/publish.lua``).
The first one after a pause is sent at once; further ones within ``GATHER_SECONDS`` are sent together by the next
caller, or by a thread when there is none. Replies are read before the next write. Events go before entries: the stream
never says what became of a task before it says that the task was accepted.

A call that the server refuses because it does not know the script is sent again, as are calls that a broken connection
left unanswered: a push is idempotent, and an event may appear twice. When a notification is lost anyway (the process
ends, the server restarts), the reconciler pushes the task.
"""

from __future__ import annotations

import atexit
import json
import os
import struct
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import batched
from typing import Any, NamedTuple

from queue_app import conf
from queue_app.core.counters import ADAPTED
from queue_app.core.events import COUNTED, EventName, Occasion, Run, traced_each
from queue_app.core.ids import as_texts
from queue_app.core.records import Entry, PackedLane
from queue_app.index.client import redis

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
#: Maximum number of unanswered calls; then the sender waits for the first reply, and for so long (s).
MAX_UNANSWERED = 64
ANSWER_SECONDS = 1.5
#: Maximum number of tasks per entry. One entry per task would cost a busy worker a sixth of its speed, most of it in
#: the server; entries of unlimited size would leave the stream without a limit, as it is capped in entries.
IDS_PER_ENTRY = 16
#: Maximum ids of one lane per call, and about the number of ids of all its lanes.
CHUNK = 1000
#: A lane costs a script as much as this number of further ids.
IDS_A_LANE = 19


def pack(entries: Iterable[Entry]) -> list[Any]:
    """Return the arguments of ``lua/push.lua`` for these entries."""
    lanes: dict[str, tuple[list[bytes], list[float]]] = {}
    for lane, score, task_id in entries:
        found = lanes.get(lane)
        if found is None:
            found = lanes[lane] = [], []
        found[0].append(task_id.bytes)
        found[1].append(score)
    arguments: list[Any] = []
    for lane, (ids, scores) in lanes.items():
        places = scores if len(set(scores)) > 1 else scores[:1]
        arguments += (lane, b"".join(ids), struct.pack(f">{len(places)}d", *places))
    return arguments


def lane_arguments(lanes: Iterable[PackedLane]) -> Iterator[list[str | bytes]]:
    """Yield the arguments of ``lua/push.lua`` or ``lua/misplaced.lua``, for one call after another."""
    arguments: list[str | bytes] = []
    count = 0
    for lane in lanes:
        for start in range(0, lane.size, CHUNK):
            part = lane.part(start, start + CHUNK)
            arguments += part
            count += part.size + IDS_A_LANE
            if count >= CHUNK:
                yield arguments
                arguments, count = [], 0
    if arguments:
        yield arguments


def publish_arguments(runs: Iterable[Run]) -> list[Any]:
    """Return the arguments of ``lua/publish.lua`` for these events, and for what they count."""
    settings = conf.get()
    published: list[tuple[Occasion, list[str]]] = []
    counts: dict[str, int] = {}
    keeps_events = settings.events.max_length > 0
    for occasion, task_ids, traces in runs:
        if occasion.name == COUNTED:
            for name, count in batched(occasion.details, 2):
                counts[name] = counts.get(name, 0) + int(count)
            continue
        if keeps_events:
            texts = as_texts(task_ids) if len(task_ids) > 1 else map(str, task_ids)  # faster for many, or for one
            entries = list(batched(texts, IDS_PER_ENTRY))
            if any(traces):
                for ids, some in zip(entries, batched(traces, IDS_PER_ENTRY), strict=True):
                    published.append((traced_each(occasion, ids, some), [" ".join(ids)]))
            else:
                published.append((occasion, [" ".join(ids) for ids in entries] or [""]))
        name = counter_of(occasion)
        counts[name] = counts.get(name, 0) + max(1, len(task_ids))
    return [
        settings.events.max_length,
        json.dumps(published),
        *((part for item in counts.items() for part in item) if settings.metrics.enabled else ()),
    ]


def counter_of(occasion: Occasion) -> str:
    """Return the name under which such events are counted (``core.counters``)."""
    if occasion.name == EventName.LIMIT_ADAPTED:
        return ADAPTED
    details = occasion.details
    reason = details[1] if details[:1] == ("reason",) else ""
    return f"event:{occasion.name}:{occasion.queue}:{occasion.priority}:{occasion.status}:{reason}"


def split(runs: Iterable[Run], size: int) -> Iterator[list[Run]]:
    """Cut events into parts of at most ``size``; neighbours of one occasion are joined, and the order stays.

    Counts that belong to no event go with the last part.
    """
    part: list[Run] = []
    counts: list[Run] = []
    ids: list[uuid.UUID] = []  # of the last run in the part
    parents: list[str | None] = []
    room = size
    for run in runs:
        occasion, task_ids, traces = run
        if occasion.name == COUNTED:
            counts.append(run)
            continue
        if not task_ids:
            part.append(Run(occasion, []))
        at = 0
        while at < len(task_ids):
            taken, of_taken = task_ids[at : at + room], traces[at : at + room]
            last = part[-1] if part else None
            if last and last.task_ids is ids and last.occasion == occasion and bool(parents) == bool(traces):
                ids += taken
                parents += of_taken
            else:
                ids, parents = list(taken), list(of_taken)
                part.append(Run(occasion, ids, parents))
            at += len(taken)
            room -= len(taken)
            if not room:
                yield part
                part, room = [], size
    part += counts
    if part:
        yield part


class ScriptCall(NamedTuple):
    """A script and its arguments, sent and not yet answered."""

    script: redis.commands.core.Script
    arguments: Sequence[Any]


class Pipeline:
    """A connection, taken from the client's pool when first used; for one thread at a time."""

    def __init__(self, client: redis.Redis, prefix: str, scripts: Sequence[redis.commands.core.Script]) -> None:
        self._client = client
        self._prefix = prefix
        self._scripts = list(scripts)  # loaded on each new connection
        self.reset()

    def reset(self) -> None:
        """Start afresh without closing: a forked child must not touch its parent's connection."""
        self.connection: Any = None
        self.unanswered: deque[ScriptCall] = deque()

    def resend(self, calls: Sequence[ScriptCall]) -> None:
        """Send the unanswered calls, then these, on a new connection."""
        unanswered = [*self.unanswered, *calls]
        self.disconnect()
        self.send(unanswered)

    def send(self, calls: Sequence[ScriptCall]) -> None:
        """Send calls in one write; raise ``redis.ConnectionError`` if the connection is broken."""
        if self.connection is None:
            self.connection = self._client.connection_pool.get_connection()
            self._load_scripts(self.connection)
        elif not self.unanswered:
            self.connection.can_read(timeout=0)  # raises if the server closed it; the write would not
        connection = self.connection
        packed = [
            part
            for script, arguments in calls
            for part in connection.pack_command("EVALSHA", script.sha, 1, self._prefix, *arguments)
        ]
        connection.send_packed_command([b"".join(packed)])  # each part would be a write of its own
        self.unanswered.extend(calls)

    def load(self, script: redis.commands.core.Script) -> None:
        """Load a script before its first call: a server that refuses the call would run the next one before it."""
        if script not in self._scripts:
            self._client.script_load(script.script)
            self._scripts.append(script)

    def _load_scripts(self, connection: Any) -> None:
        """Load the scripts: a new connection may lead to a new server, which would refuse the first call."""
        connection.send_packed_command(
            [part for script in self._scripts for part in connection.pack_command("SCRIPT", "LOAD", script.script)]
        )
        try:
            for _ in self._scripts:
                connection.read_response()
        except redis.ResponseError:
            self.disconnect()  # the second reply must not be taken for the reply to a call
            raise

    def read(self, *, wait: bool, wanted: ScriptCall | None = None) -> Any:
        """Read the replies that have arrived, or wait for all; return the one to ``wanted``."""
        answer = None
        while self.unanswered and (wait or self._is_answered()):
            try:
                response = self.connection.read_response()
            except redis.exceptions.NoScriptError:
                call = self.unanswered.popleft()
                self._client.script_load(call.script.script)
                self.send([call])
            except redis.ResponseError:
                self.unanswered.popleft()
                raise
            else:
                if self.unanswered.popleft() is wanted:
                    answer = response
        return answer

    def _is_answered(self) -> bool:
        """Whether a reply has come; waits for it if too many calls are unanswered."""
        is_full = len(self.unanswered) >= MAX_UNANSWERED
        is_answered: bool = self.connection.can_read(timeout=ANSWER_SECONDS if is_full else 0)
        if is_full and not is_answered:
            raise redis.TimeoutError(f"no answer within {ANSWER_SECONDS:g} s")
        return is_answered

    def forget(self, call: ScriptCall | None) -> None:
        """Do not send a call again, and do not wait for its reply; the connection must be broken."""
        self.unanswered = deque(each for each in self.unanswered if each is not call)

    def disconnect(self) -> None:
        connection, self.connection = self.connection, None
        self.unanswered.clear()
        if connection is not None:
            connection.disconnect()
            self._client.connection_pool.release(connection)


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

    def call(  # noqa: PLR0913 - how to call
        self,
        script: redis.commands.core.Script | None,
        arguments: Sequence[Any] = (),
        entries: Sequence[Entry] = (),
        events: Sequence[Run] = (),
        *,
        once: bool = False,
        within: float | None = None,
    ) -> Any:
        """Call a script, if any, after all earlier notifications and these, in one round trip; return its reply.

        With ``once`` the call is not repeated when its reply was lost. Raises an error if the first of the replies
        takes longer than ``within`` seconds.
        A server that had forgotten the scripts may reply before it has seen the notifications.
        """
        call = ScriptCall(script, arguments) if script else None
        with self._lock:
            self._entries += entries
            self._events += events
            self._send_gathered(time.monotonic(), *([call] if call else []))
            try:
                if within is not None and not self._pipeline.connection.can_read(within):
                    raise redis.TimeoutError(f"no answer within {within:g} s")
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
