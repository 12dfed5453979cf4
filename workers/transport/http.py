"""The transport of a worker without access to PostgreSQL and Redis: it calls a web process of the project."""

import http.client
import json
import os
import select
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from queue_app import signals
from queue_app.core.options import FORMER_NAMES, MAX_TIMEOUT_SECONDS
from queue_app.core.priorities import parse_band
from queue_app.core.records import (
    AttemptKey,
    ClaimedTask,
    HeartbeatAnswer,
    Outcome,
    ProgressReport,
    TaskFailure,
    Throttling,
    WorkerReport,
)
from queue_app.core.steps import Fields, Step
from queue_app.exceptions import AttemptLost, IndexUnavailable, InvalidTaskData, WorkerLost
from queue_app.index import Profile, WorkerMessage
from queue_app.services.worker.registration import WorkerIdentity
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.transport.base import OnWait, OutcomesRefused, Transport

# Messages between a worker and the slots of its process pool: tasks and outcomes as JSON.

_SIZE: Final = struct.Struct("!I")
_TIMES: Final = ("created_at", "queued_at", "started_at")
_IDS: Final = ("id", "worker_id", "workflow_id")


def task_form(task: ClaimedTask) -> dict[str, Any]:
    """Return a task as JSON values."""
    form = {field.name: getattr(task, field.name) for field in fields(task)}  # not ``asdict``, which copies deeply
    for name in _TIMES:
        form[name] = form[name].isoformat()
    for name in _IDS:
        form[name] = form[name] and str(form[name])
    return form


def task_of(form: dict[str, Any]) -> ClaimedTask:
    """Return the task that ``task_form`` described."""
    values = dict(form)
    for name in _TIMES:
        values[name] = datetime.fromisoformat(values[name])
    for name in _IDS:
        values[name] = values[name] and uuid.UUID(values[name])
    values["capabilities"] = tuple(values["capabilities"])
    return ClaimedTask(**values)


def outcome_form(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON values, without the task and the times, which the reader knows."""
    return {
        "result": outcome.result,
        "failure": outcome.failure and asdict(outcome.failure),
        "snooze": outcome.snooze,
        "throttle": outcome.throttle,
        "waits": outcome.waits,
        "is_late": outcome.is_late,
    }


def outcome_of(form: dict[str, Any], held: ClaimedAttempt, began: float) -> Outcome:
    """Return the outcome that ``outcome_form`` described, of an attempt that began at ``began`` and ends now."""
    failure, throttle = form["failure"], form["throttle"]
    return held.outcome(
        began,
        form["result"],
        failure=failure and TaskFailure(**failure),
        snooze=form["snooze"],
        throttle=throttle and Throttling(*throttle),
        waits=form["waits"],
        is_late=form["is_late"],
    )


def send(to: socket.socket, message: dict[str, Any]) -> None:
    """Send one message."""
    data = json.dumps(message, separators=(",", ":")).encode()
    to.sendall(_SIZE.pack(len(data)) + data)


class Reader:
    """Splits the data that arrives on a socket into messages."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._buffer = bytearray()

    def receive(self, flags: int = 0) -> list[dict[str, Any]] | None:
        """Wait for data and return the messages that are complete; ``None`` if the other side hung up.

        Raises ``BlockingIOError`` with the flag MSG_DONTWAIT if no data has arrived.
        """
        try:
            data = self._source.recv(65536, flags)
        except ConnectionError:
            data = b""
        if not data:
            return None
        self._buffer += data
        messages: list[dict[str, Any]] = []
        while len(self._buffer) >= _SIZE.size:
            end = _SIZE.size + _SIZE.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            messages.append(json.loads(self._buffer[_SIZE.size : end]))
            del self._buffer[:end]
        return messages


#: Maximum delay of an answer beyond the time that the request asks the server to wait.
TIMEOUT_SECONDS: Final = 20.0
MAX_WAIT: Final = 50.0
#: Maximum numbers of tasks, outcomes or reports, and of running attempts, per request.
MAX_POLL: Final = 100
MAX_RUNNING: Final = 1000
#: Maximum size of a request body in bytes; the server's own limit is a multiple (``api.body``).
MAX_BODY: Final = 256 * 1024
#: Maximum seconds by which one report moves a deadline.
MAX_EXTENSION: Final = MAX_TIMEOUT_SECONDS
#: Maximum seconds of a throttle.
MAX_THROTTLE: Final = 3600.0
#: Statuses of answers that refuse the content of a request.
REFUSALS: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})
#: Maximum seconds between two heartbeats.
MAX_HEARTBEAT: Final = 300.0
#: Field of ``ClaimedTask`` -> its name in the protocol.
_NAMES: Final = FORMER_NAMES | {"failures": "retry_count"}
_TASK_FIELDS: Final = frozenset(field.name for field in fields(ClaimedTask))

type Form = dict[str, Any]


class ServerRefused(Exception):
    """The server understood the request and refused it; ``code`` gives the reason."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"The server refused ({status} {code}): {detail}")
        self.status, self.code = status, code


class ServerFull(IndexUnavailable):
    """The server holds as many waiting requests as it may."""

    def __init__(self, detail: str, retry_after: float) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class HttpTransport(Transport):
    """Calls the endpoints under ``/internal/workers/`` of one server.

    After a loss of the index the server registers its remote workers again. When a worker dies, the reaper notices the
    missing heartbeats. Every poll lists the tasks that the worker holds, and the server gives back the others.
    """

    def __init__(self, server: str, token: str) -> None:
        parts = urlsplit(server)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidTaskData("server", f"server must be an address like https://example.org, not {server!r:.100}.")
        if not token:
            raise InvalidTaskData("token", "token is missing: give it, or set TASKQUEUE_TOKEN.")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._path = f"{parts.path.rstrip('/')}/internal/workers"
        self._token = token
        self._local = threading.local()
        self._ids: dict[uuid.UUID, uuid.UUID] = {}  # the server's id of each worker of this process
        self._cancelled: set[uuid.UUID] = set()
        self._unserved: set[str] = set()
        self._state: Form = {"draining": False, "tasks_done": 0, "free_slots": 0}  # as of the last heartbeat
        self._running: set[AttemptKey] = set()  # grants; two may belong to the same task

    # -- what the runtime asks -----------------------------------------------------

    def register(
        self, identity: WorkerIdentity, profile: Profile, *, concurrency: int, heartbeat_seconds: float
    ) -> None:
        body: Form = {"name": identity.name, "version": identity.version, "capacity": concurrency}
        body["heartbeat_seconds"] = min(max(heartbeat_seconds, 1.0), MAX_HEARTBEAT)
        for name in ("queues", "capabilities", "task_types"):
            body[name] = list(getattr(profile, name))
        answer = self._post("/register", body)
        self._ids[identity.id] = uuid.UUID(answer["worker_id"])
        self._unserved = set(answer.get("unserved", ()))  # an older server does not say

    def heartbeat(self, worker_id: uuid.UUID, report: WorkerReport, held: Sequence[AttemptKey]) -> HeartbeatAnswer:
        state = {name: getattr(report, name) for name in ("draining", "tasks_done", "free_slots")}
        self._state = state | report.usage._asdict()
        running = [_grant_form(key) for key in held]
        try:
            answer = self._call(worker_id, "heartbeat", self._state | {"running": running[:MAX_RUNNING]})
        except WorkerLost:
            return HeartbeatAnswer(alive=False)
        except ServerRefused as error:
            if error.status not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                raise
            return HeartbeatAnswer(alive=False)  # the token was revoked, and with it the worker's tasks
        self._cancelled = {uuid.UUID(task_id) for task_id in answer["cancel"]}
        self._unserved = set(answer.get("unserved", ()))
        lost = frozenset(key for key in held if str(key[0]) in answer["lost"])
        stacks = [uuid.UUID(task_id) for task_id in answer.get("stacks", ())]  # an older server says less
        return HeartbeatAnswer(True, answer["drain"], lost, answer.get("again", False), stacks)

    def deregister(self, worker_id: uuid.UUID, profile: Profile, *, tasks_done: int) -> None:
        self._call(worker_id, "deregister", {"tasks_done": tasks_done})

    def wait_for_wake(self, worker_id: uuid.UUID, seconds: float) -> WorkerMessage | None:
        try:
            answer = self._call(worker_id, "wait", {"wait": min(seconds, MAX_WAIT)}, wait=seconds)
        except ServerFull as error:
            time.sleep(min(seconds, error.retry_after))
            return None
        if answer.get("notified"):  # an older server does not say
            return WorkerMessage.NOTIFICATION
        return WorkerMessage.WAKE_UP if answer["called"] else None

    def unserved_types(self, profile: Profile) -> set[str]:
        return self._unserved - set(profile.task_types)  # as of the registration or the last heartbeat

    def change_profile(self, worker_id: uuid.UUID, before: Profile, after: Profile) -> None:
        self._call(worker_id, "heartbeat", self._state | {"task_types": list(after.task_types)})

    def cancel_requests(self, worker_id: uuid.UUID, tasks: Collection[uuid.UUID]) -> set[uuid.UUID]:
        return set(self._cancelled)

    def claim(
        self, profile: Profile, worker_id: uuid.UUID, want: int, *, reserve: bool, on_wait: OnWait
    ) -> list[ClaimedTask]:
        holding, asked_at = [str(task_id) for task_id, *_ in self._running], time.monotonic()
        found = self._call(worker_id, "poll", {"available_capacity": min(want, MAX_POLL), "holding": holding})
        tasks = [_task(form, self._ids[worker_id], asked_at) for form in found["tasks"]]
        if found.get("next_start_ms") is not None:  # an older server sends none
            on_wait(found["next_start_ms"] / 1000, found.get("loading", False))
        self._running |= {task.key for task in tasks}
        return tasks

    def finish(self, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
        accepted: set[uuid.UUID] = set()
        for part, forms in _in_bodies(outcomes, _outcome_form):
            try:
                accepted |= self._report(part[0].task.worker_id, forms)
            except ServerRefused as error:
                if error.status in REFUSALS:
                    raise OutcomesRefused(str(error)) from error
                raise
            self._running -= {outcome.task.key for outcome in part}
            for outcome in part:
                if outcome.failure is not None and outcome.task.id in accepted:
                    signals.attempt_failed.send(None, outcome=outcome, status=None, retry_in=None)
        return accepted

    def give_back(self, tasks: list[ClaimedTask]) -> None:
        if tasks:
            results = [_grant_form(task.key) | {"status": "released"} for task in tasks]
            self._report(tasks[0].worker_id, results)
            self._running -= {task.key for task in tasks}

    def record_progress(self, reports: Sequence[ProgressReport]) -> None:
        for part, forms in _in_bodies(reports, _report_form):
            others = self._running - {(report.task_id, report.attempt, report.leased_at) for report in part}
            running = [*forms, *map(_grant_form, others)][:MAX_RUNNING]  # a heartbeat names all that the worker holds
            self._post(f"/{part[0].worker_id}/heartbeat", self._state | {"running": running})

    def stored_steps(self, task: ClaimedTask) -> list[Step]:
        return self._steps(task, "list")

    def record_step(self, task: ClaimedTask, step: Step) -> None:
        self._steps(task, "store", step)

    def await_signal(self, task: ClaimedTask, step: Step, schema: Fields | None) -> Step:
        return self._steps(task, "wait", step, schema)[0]

    def _steps(
        self, task: ClaimedTask, action: str, step: Step | None = None, schema: Fields | None = None
    ) -> list[Step]:
        body: Form = _grant_form(task.key) | {"action": action, "payload_fields": schema}
        if step is not None:
            form = step._asdict()
            del form["is_done"]
            form["value"] = None if step.value is None else json.loads(step.value)
            form["until"] = None if step.until is None else step.until.isoformat()
            body["step"] = form
        try:
            answer = self._post(f"/{task.worker_id}/steps", body)
        except WorkerLost as error:
            raise AttemptLost(str(error)) from error
        except ServerRefused as error:
            if error.code == "stale_lease":
                raise AttemptLost(str(error)) from error
            raise
        return [_step(form) for form in answer["steps"]]

    # -- HTTP ------------------------------------------------------------------------

    def _report(self, server_id: uuid.UUID | None, results: list[Form]) -> set[uuid.UUID]:
        answer = self._post(f"/{server_id}/result", {"results": results})
        return {uuid.UUID(task_id) for task_id in answer["accepted"]}

    def _call(self, worker_id: uuid.UUID, action: str, body: Form, wait: float = 0.0) -> Any:
        return self._post(f"/{self._ids[worker_id]}/{action}", body, wait=wait)

    def _post(self, path: str, body: Form, wait: float = 0.0) -> Any:
        """Send a request on this thread's connection; return the JSON of the answer.

        Raises ``IndexUnavailable`` when the server does not answer or cannot work now (the worker
        tries again later), and ``WorkerLost`` when the server no longer knows the worker.
        """
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            connection = self._connection(TIMEOUT_SECONDS + wait)
            connection.request("POST", self._path + path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            status, data = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise IndexUnavailable(
                f"The server {self._host} cannot be reached: {str(error) or type(error).__name__}"
            ) from None
        if status < HTTPStatus.MULTIPLE_CHOICES:
            return json.loads(data)
        code, detail = _problem(data)
        if code in {"worker_lost", "worker_not_found"}:
            raise WorkerLost(detail)
        if code in {"too_many_waiters", "too_many_of_caller"}:
            raise ServerFull(detail, float(response.headers.get("Retry-After", "2")))
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            raise IndexUnavailable(f"The server {self._host} cannot work now ({status} {code}): {detail}")
        raise ServerRefused(status, code, detail)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if getattr(self._local, "pid", None) != os.getpid():  # a connection from before the fork is the parent's
            self._local.__dict__.clear()
            self._local.pid = os.getpid()
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None and _is_closed_by_server(connection):
            self._drop()
            connection = None
        if connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            connection = self._local.connection = kind(self._host, self._port, timeout=timeout)
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        return connection

    def _drop(self) -> None:
        connection = self._local.__dict__.pop("connection", None)
        if connection is not None:
            connection.close()


def _is_closed_by_server(connection: http.client.HTTPConnection) -> bool:
    """Whether the server ended an idle connection, as servers do after seconds; nothing else can be read then."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _problem(data: bytes) -> tuple[str, str]:
    try:
        found = json.loads(data)
        return str(found["code"]), str(found["detail"])
    except (ValueError, KeyError, TypeError):
        return "unknown", "the answer gives no reason"


def _step(form: Form) -> Step:
    until = form["until"] and datetime.fromisoformat(form["until"])
    return Step(**form | {"until": until, "value": None if form["value"] is None else json.dumps(form["value"])})


def _task(form: Form, server_id: uuid.UUID, asked_at: float) -> ClaimedTask:
    values = {name: value for name, value in form.items() if name in _TASK_FIELDS}
    values |= {name: form[given] for name, given in _NAMES.items()}
    values |= {"id": form["task_id"], "trace": form["traceparent"], "worker_id": str(server_id), "workflow_id": None}
    values |= {name: json.dumps(form[name]) for name in ("args", "parameters")}
    metadata = form.get("metadata")  # an older server sends none
    values["metadata"] = None if metadata is None else json.dumps(metadata)
    if (leave := form.get("start_within_ms")) is not None:  # an older server sends none
        values["start_by"] = asked_at + leave / 1000
    return task_of(values | {"priority": parse_band(form["priority"])})


def _in_bodies[T](items: Iterable[T], to_form: Callable[[T], Form]) -> Iterator[tuple[list[T], list[Form]]]:
    """Split items and their forms into requests that the server accepts."""
    part: list[T] = []
    forms: list[Form] = []
    size = 0
    for item in items:
        form = to_form(item)
        length = len(json.dumps(form))
        if part and (len(part) == MAX_POLL or size + length > MAX_BODY):
            yield part, forms
            part, forms, size = [], [], 0
        part.append(item)
        forms.append(form)
        size += length
    if part:
        yield part, forms


def _grant_form(key: AttemptKey) -> Form:
    stamp = {"leased_at": key[2]} if key[2] else {}  # an older server gave none, and accepts none
    return {"task_id": str(key[0]), "attempt": key[1]} | stamp


def _report_form(report: ProgressReport) -> Form:
    form = asdict(report) | {"extend": min(report.extend, MAX_EXTENSION)}
    del form["worker_id"], form["leased_at"]
    if report.stack is None:  # an older server does not ask, and does not know the field
        del form["stack"]
    return form | _grant_form((report.task_id, report.attempt, report.leased_at))


def _outcome_form(outcome: Outcome) -> Form:
    form = _grant_form(outcome.task.key)
    if outcome.snooze is not None:
        return form | {"status": "snoozed", "snooze": outcome.snooze}
    if outcome.waits:
        return form | {"status": "waiting"}
    if outcome.throttle is not None:  # if the gate must stay closed for longer, the next attempt closes it again
        throttle = {"scope": outcome.throttle.scope, "seconds": min(outcome.throttle.seconds, MAX_THROTTLE)}
        return form | {"status": "throttled", "throttle": throttle}
    if outcome.failure is not None:
        error = asdict(outcome.failure)
        error["class"] = error.pop("exception_class")
        return form | {"status": "failed", "error": error}
    return form | {"status": "completed", "result": None if outcome.result is None else json.loads(outcome.result)}
