"""The way of a worker without access to PostgreSQL and Redis: it asks a web process of the project."""

from __future__ import annotations

import http.client
import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from django.tasks.base import TaskError

from queue_app.core.priorities import parse_band
from queue_app.core.records import ClaimedTask, Outcome, ProgressReport
from queue_app.exceptions import IndexUnavailable, InvalidTaskData, WorkerLost
from queue_app.index import Profile
from queue_app.services.repair.workers import WorkerIdentity
from queue_app.workers.transport.base import OutcomesRefused

logger = logging.getLogger("taskqueue")

#: An answer that takes so much longer than was asked for does not come.
TIMEOUT_SECONDS: Final = 20.0
MAX_POLL: Final = 100
#: Nor does the server take more than some multiple of this at once (``api.body``).
MAX_BODY: Final = 256 * 1024
#: The answers by which it refuses what a request says, whoever sends it.
REFUSALS: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})
MAX_WAIT: Final = 50.0
MAX_THROTTLE: Final = 3600.0

type Wait = Callable[[float], None]
type Form = dict[str, Any]

# ruff: noqa: D102 - the functions of the package say what each does


class ServerRefused(Exception):
    """The server understood and refused; ``code`` says why."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"The server refused ({status} {code}): {detail}")
        self.status, self.code = status, code


class HttpTransport:
    """Calls the endpoints under ``/internal/workers/`` of one server."""

    def __init__(self, server: str, token: str) -> None:
        parts = urlsplit(server)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidTaskData("server", f"server must be an address like https://example.org, not {server!r:.100}.")
        if not token:
            raise InvalidTaskData("token", "token is needed: give --token, or set TASKQUEUE_TOKEN.")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._path = f"{parts.path.rstrip('/')}/internal/workers"
        self._token = token
        self._local = threading.local()
        self._ids: dict[uuid.UUID, uuid.UUID] = {}  # of workers here, by their ids on the server
        self._cancel: set[uuid.UUID] = set()
        self._drain = False
        self._unserved: set[str] = set()
        self._draining, self._done = False, 0
        self._running: set[tuple[uuid.UUID, int]] = set()  # what is held; one task may be here in two attempts

    # -- what the runtime asks -----------------------------------------------------

    def register(
        self, identity: WorkerIdentity, profile: Profile, *, concurrency: int, heartbeat_seconds: float
    ) -> None:
        answer = self._post(
            "/register",
            {
                "name": identity.name,
                "version": identity.version,
                "queues": list(profile.queues),
                "capabilities": list(profile.capabilities),
                "task_types": list(profile.task_types),
                "concurrency": concurrency,
            },
        )
        self._ids[identity.id] = uuid.UUID(answer["worker_id"])

    def register_again(self, profile: Profile, worker_id: uuid.UUID) -> None:
        """Nothing to do: the server does it."""

    def heartbeat(self, worker_id: uuid.UUID, *, draining: bool, tasks_done: int) -> bool:
        self._draining, self._done = draining, tasks_done
        running = [{"task_id": str(task_id), "attempt": attempt} for task_id, attempt in list(self._running)]
        try:
            answer = self._call(
                worker_id, "heartbeat", {"draining": draining, "tasks_done": tasks_done, "running": running[:1000]}
            )
        except WorkerLost:
            return False
        except ServerRefused as error:
            if error.status not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                raise
            return False  # the token was revoked, and the tasks with it
        self._cancel, self._drain = {uuid.UUID(task_id) for task_id in answer["cancel"]}, answer["drain"]
        self._unserved = set(answer.get("unserved", ()))
        return True

    def is_asked_to_drain(self, worker_id: uuid.UUID) -> bool:
        return self._drain

    def deregister(self, worker_id: uuid.UUID, profile: Profile, *, tasks_done: int) -> None:
        self._call(worker_id, "deregister", {"tasks_done": tasks_done})

    def wait_for_wake(self, worker_id: uuid.UUID, seconds: float) -> bool:
        return bool(self._call(worker_id, "wait", {"wait": min(seconds, MAX_WAIT)}, wait=seconds)["called"])

    def unserved_types(self, profile: Profile) -> set[str]:
        return self._unserved - set(profile.task_types)  # as of the last heartbeat

    def change_profile(self, worker_id: uuid.UUID, before: Profile, after: Profile) -> None:
        said = {"task_types": list(after.task_types), "draining": self._draining, "tasks_done": self._done}
        self._call(worker_id, "heartbeat", said)

    def cancel_requests(self, worker_id: uuid.UUID) -> set[uuid.UUID]:
        return set(self._cancel)

    def claim(
        self, profile: Profile, worker_id: uuid.UUID, want: int, on_wait: Wait | None = None
    ) -> list[ClaimedTask]:
        holding = [str(task_id) for task_id, _ in self._running]
        found = self._call(worker_id, "poll", {"want": min(want, MAX_POLL), "holding": holding})
        tasks = [_task(form, self._ids[worker_id]) for form in found["tasks"]]
        self._running |= {(task.id, task.attempt) for task in tasks}
        return tasks

    def finish(self, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
        accepted: set[uuid.UUID] = set()
        for part, forms in _in_bodies(outcomes, _result):
            try:
                accepted |= self._report(part[0].task.worker_id, forms)
            except ServerRefused as error:
                if error.status in REFUSALS:
                    raise OutcomesRefused(str(error)) from error
                raise
            for outcome in part:
                self._running.discard((outcome.task.id, outcome.task.attempt))
        return accepted

    def give_back(self, tasks: list[ClaimedTask]) -> int:
        if not tasks:
            return 0
        results = [{"task_id": str(task.id), "attempt": task.attempt, "status": "released"} for task in tasks]
        returned = self._report(tasks[0].worker_id, results)
        for task in tasks:
            self._running.discard((task.id, task.attempt))
        return len(returned)

    def give_back_unacknowledged(self, worker_id: uuid.UUID, known: list[uuid.UUID]) -> int:
        return 0  # every poll names what is held; the server gives back the rest

    def note(self, notes: Sequence[ProgressReport]) -> None:
        for _part, running in _in_bodies(notes, _said):
            said = {"running": running, "draining": self._draining, "tasks_done": self._done}
            self._post(f"/{notes[0].worker_id}/heartbeat", said)

    def earlier_attempts(self, task_id: uuid.UUID) -> tuple[list[TaskError], list[str]]:
        return [], []

    def make_due(self) -> int:
        return 0

    def wake_idle_workers(self) -> int:
        return 0

    def rebuild_if_needed(self) -> object:
        return None

    # -- HTTP ------------------------------------------------------------------------

    def _report(self, server_id: uuid.UUID | None, results: list[dict[str, Any]]) -> set[uuid.UUID]:
        answer = self._post(f"/{server_id}/result", {"results": results})
        return {uuid.UUID(task_id) for task_id in answer["accepted"]}

    def _call(self, worker_id: uuid.UUID, what: str, body: dict[str, Any], wait: float = 0.0) -> Any:
        return self._post(f"/{self._ids[worker_id]}/{what}", body, wait=wait)

    def _post(self, path: str, body: dict[str, Any], wait: float = 0.0) -> Any:
        """Send a request on this thread's connection; return the answer's JSON.

        Raises ``IndexUnavailable`` when the server does not answer or cannot work now (the
        runtime waits and tries again), ``WorkerLost`` when the worker is not known any more.
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
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            raise IndexUnavailable(f"The server {self._host} cannot work now ({status} {code}): {detail}")
        raise ServerRefused(status, code, detail)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            connection = self._local.connection = kind(self._host, self._port, timeout=timeout)
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        return connection

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None


def _problem(data: bytes) -> tuple[str, str]:
    try:
        found = json.loads(data)
        return str(found["code"]), str(found["detail"])
    except (ValueError, KeyError, TypeError):
        return "unknown", "it says no more"


def _task(form: dict[str, Any], server_id: uuid.UUID) -> ClaimedTask:
    return ClaimedTask(
        id=uuid.UUID(form["task_id"]),
        attempt=form["attempt"],
        task_type=form["task_type"],
        queue=form["queue"],
        priority=parse_band(form["priority"]),
        capabilities=tuple(form["capabilities"]),
        user=form["user"],
        timeout=form["timeout"],
        max_retries=form["max_retries"],
        retry_delay=form["retry_delay"],
        failures=form["failures"],
        args=json.dumps(form["args"]),
        parameters=json.dumps(form["parameters"]),
        concurrency_key=form["concurrency_key"],
        weight=form["weight"],
        worker_id=server_id,
        trace=form["traceparent"],
        created_at=datetime.fromisoformat(form["created_at"]),
        queued_at=datetime.fromisoformat(form["queued_at"]),
        started_at=datetime.fromisoformat(form["started_at"]),
    )


def _in_bodies[T](items: Iterable[T], form: Callable[[T], Form]) -> Iterator[tuple[list[T], list[Form]]]:
    """Cut what is to be sent, and its forms, into requests as large as the server takes them."""
    part: list[T] = []
    forms: list[Form] = []
    size = 0
    for item in items:
        found = form(item)
        length = len(json.dumps(found))
        if part and (len(part) == MAX_POLL or size + length > MAX_BODY):
            yield part, forms
            part, forms, size = [], [], 0
        part.append(item)
        forms.append(found)
        size += length
    if part:
        yield part, forms


def _said(note: ProgressReport) -> Form:
    return {
        "task_id": str(note.task_id),
        "attempt": note.attempt,
        "progress": note.progress,
        "message": note.message,
        "lines": note.lines,
        "dropped": note.dropped,
        "extend": note.extend,
    }


def _result(outcome: Outcome) -> Form:
    form: Form = {"task_id": str(outcome.task.id), "attempt": outcome.task.attempt}
    if outcome.snooze is not None:
        return form | {"status": "snoozed", "snooze": outcome.snooze}
    if outcome.throttle is not None:  # a gate that is closed for longer is closed again by the next who finds out
        throttle = {"scope": outcome.throttle.scope, "seconds": min(outcome.throttle.seconds, MAX_THROTTLE)}
        return form | {"status": "throttled", "throttle": throttle}
    failure = outcome.failure
    if failure is None:
        return form | {"status": "completed", "result": None if outcome.result is None else json.loads(outcome.result)}
    error = {
        "class": failure.exception_class,
        "message": failure.message,
        "traceback": failure.traceback,
        "retriable": failure.retriable,
        "retry_after": failure.retry_after,
        "reason": failure.reason,
    }
    return form | {"status": "failed", "error": error}
