"""A client of the HTTP API for programs without Django: submit, wait, list, cancel, workflows, and a worker.

    with Client("https://tasks.example.com", "tq_…") as queue:
        task = queue.submit("shop.tasks.send_receipt", {"order_id": 42})
        print(queue.wait(task["id"], seconds=60)["result"])

It needs only the standard library. Give it an ``httpx.Client`` to keep connections open.
"""

import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final, Literal, NotRequired, Protocol, Self, TypedDict, cast
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

type Id = str | uuid.UUID
type Json = Any
#: What a worker runs: a function of (parameters, task).
type Handler = Callable[[dict[str, Json], "ClaimedTask"], Json]
Status = Literal[
    "blocked", "scheduled", "queued", "executing", "completed", "failed", "cancelled", "dead_letter", "expired"
]
WorkflowState = Literal["running", "completed", "failed", "cancelled", "compensating", "compensated"]

ENDED: Final = frozenset({"completed", "failed", "cancelled", "dead_letter", "expired"})
#: Maximum seconds of one waiting request; ``wait`` sends several.
WAIT_SECONDS: Final = 30
#: How often a request that can be repeated is sent, and the pause before the next try where the server names none.
TRIES: Final = 5
PAUSE_SECONDS: Final = 1.0
#: The server, or what stands before it, asks to try again.
BUSY: Final = frozenset({429, 502, 503, 504})
#: The server refuses the content of a report, such as a result that is too large.
REFUSED: Final = frozenset({400, 413})


class Task(TypedDict):
    """A task; one that was just submitted, or is listed, has fewer fields."""

    id: str
    status: Status
    task_type: str
    queue: str
    priority: str
    created_at: str
    parameters: NotRequired[dict[str, Json] | None]
    result: NotRequired[Json]
    error: NotRequired[dict[str, Json] | None]
    queue_position: NotRequired[int | None]
    replayed: NotRequired[bool]


class Workflow(TypedDict):
    """A workflow; ``tasks`` has the ids of its tasks by name, where it was just submitted."""

    id: str
    name: str
    state: WorkflowState
    nodes: int
    created_at: str
    finished_at: str | None
    tasks: NotRequired[dict[str, str]]


class ClaimedTask(TypedDict):
    """A task that a worker holds."""

    id: str
    attempt: int
    task_type: str
    queue: str
    args: list[Json]
    parameters: dict[str, Json]
    timeout_seconds: float
    retry_count: int
    start_within_ms: NotRequired[int | None]


class ApiError(Exception):
    """The API refused: ``problem`` is its problem document, and its ``code`` is stable.

    The code is ``no_json`` if the answer is no JSON object: another server than ours gave it.
    """

    def __init__(self, status: int, problem: Mapping[str, Json]) -> None:
        super().__init__(f"{problem.get('code')}: {problem.get('detail')}")
        self.status, self.problem, self.code = status, problem, str(problem.get("code", ""))


def _may_pass(error: ApiError) -> bool:
    """Return whether a worker sends its request again later: the server is busy, or has an error of its own."""
    return error.status in BUSY or error.status >= 500  # noqa: PLR2004 - where errors of the server begin


class Http(Protocol):
    """The part of ``httpx.Client`` that the client uses."""

    def request(self, method: str, url: str, *, headers: Any, content: Any, timeout: Any) -> Any:
        """Send a request and return its answer."""

    def close(self) -> None:
        """Close the connections."""


class _NoRedirects(HTTPRedirectHandler):
    """Follow no redirect: ``urllib`` would send the key to the other server, and a POST as a GET."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request."""


_OPENER: Final = build_opener(_NoRedirects)


class _Caller:
    """Sends requests with the key, and repeats those that may be repeated."""

    def __init__(self, address: str, key: str, *, timeout: float = 10.0, http: Http | None = None) -> None:
        self._address, self._key, self._timeout, self._http = address.rstrip("/"), key, timeout, http

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._http is not None:
            self._http.close()

    def call(self, method: str, path: str, body: Json = None, *, waits: float = 0.0, key: str = "") -> Any:
        """Return the JSON of an answer; raise ``ApiError``, or ``ConnectionError`` without an answer.

        What changes nothing, and what has an idempotency ``key``, is repeated after a lost connection or a busy server.
        """
        headers = {"Authorization": f"Bearer {self._key}", "Accept": "application/json"}
        headers |= {"Content-Type": "application/json"} if body is not None else {}
        headers |= {"Idempotency-Key": key} if key else {}
        data = None if body is None else json.dumps(body).encode()
        tries = TRIES if key or method in {"GET", "PUT", "DELETE"} else 1
        for left in range(tries - 1, -1, -1):
            try:
                status, found, text = self._send(method, self._address + path, headers, data, self._timeout + waits)
            except ConnectionError:
                if not left:
                    raise
                time.sleep(PAUSE_SECONDS)
                continue
            if status in BUSY and left:
                named = found.get("Retry-After") or ""
                time.sleep(int(named) if named.isdigit() else PAUSE_SECONDS)
                continue
            break
        answer = None
        with suppress(ValueError):
            answer = json.loads(text)
        if not isinstance(answer, dict):
            raise ApiError(status, {"code": "no_json", "detail": text[:200].decode(errors="replace")})
        if status >= 400:  # noqa: PLR2004 - where errors begin
            raise ApiError(status, answer)
        return answer

    def _send(
        self, method: str, url: str, headers: dict[str, str], data: bytes | None, timeout: float
    ) -> tuple[int, Any, bytes]:
        if self._http is not None:
            try:
                got = self._http.request(method, url, headers=headers, content=data, timeout=timeout)
            except Exception as error:
                if type(error).__module__.startswith("httpx"):  # imported only by those who use it
                    raise ConnectionError(str(error)) from error
                raise
            return got.status_code, got.headers, got.content
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"The address must begin with http:// or https://, not {url[:40]!r}.")
        try:
            try:
                answer: Any = _OPENER.open(Request(url, data, headers, method=method), timeout=timeout)  # noqa: S310 - checked
            except HTTPError as error:
                answer = error
            with answer:
                return answer.status, answer.headers, answer.read()
        except (OSError, HTTPException) as error:  # also no answer in time, and one that breaks off
            raise ConnectionError(str(getattr(error, "reason", "") or error)) from error


class Client(_Caller):
    """Submits tasks and workflows, and follows them. Threads may share a client."""

    def submit(
        self, task_type: str, parameters: dict[str, Json] | None = None, *, idempotency_key: str = "", **options: Json
    ) -> Task:
        """Submit a task, with options such as ``priority="high"``; a lost answer does not make a second one."""
        body = {"task_type": task_type, "parameters": parameters or {}, **options}
        return cast("Task", self.call("POST", "/api/v1/tasks", body, key=idempotency_key or uuid.uuid4().hex))

    def get(self, task_id: Id) -> Task:
        """Return a task, with its parameters, its result and its errors."""
        return cast("Task", self.call("GET", f"/api/v1/tasks/{task_id}"))

    def wait(self, task_id: Id, seconds: float = 60) -> Task:
        """Return a task when it has ended; raise ``TimeoutError`` if it has not within ``seconds``."""
        return cast("Task", self._wait(f"/api/v1/tasks/{task_id}", seconds, lambda task: task["status"] in ENDED))

    def tasks(self, **filters: Json) -> Iterator[Task]:
        """Yield all tasks that match filters such as ``status="failed"``, newest first."""
        return cast("Iterator[Task]", self._pages("/api/v1/tasks", filters))

    def cancel(self, task_id: Id) -> Task:
        """Cancel a waiting task, or ask a running one to stop; return it."""
        self.call("DELETE", f"/api/v1/tasks/{task_id}")
        return self.get(task_id)

    def submit_workflow(
        self, name: str, tasks: Sequence[Mapping[str, Json]], *, idempotency_key: str = "", **options: Json
    ) -> Workflow:
        """Submit all tasks of a workflow or none; a task names what it waits for in ``after``."""
        body = {"name": name, "tasks": list(tasks), **options}
        return cast("Workflow", self.call("POST", "/api/v1/workflows", body, key=idempotency_key or uuid.uuid4().hex))

    def workflow(self, workflow_id: Id) -> Workflow:
        """Return a workflow."""
        return cast("Workflow", self.call("GET", f"/api/v1/workflows/{workflow_id}"))

    def wait_for_workflow(self, workflow_id: Id, seconds: float = 60) -> Workflow:
        """Return a workflow when it has ended; raise ``TimeoutError`` if it has not within ``seconds``."""
        found = self._wait(f"/api/v1/workflows/{workflow_id}", seconds, lambda flow: flow["finished_at"] is not None)
        return cast("Workflow", found)

    def workflows(self, **filters: Json) -> Iterator[Workflow]:
        """Yield all workflows that match filters such as ``standing="open"``, newest first."""
        return cast("Iterator[Workflow]", self._pages("/api/v1/workflows", filters))

    def cancel_workflow(self, workflow_id: Id, reason: str = "") -> Workflow:
        """Cancel what a workflow still has to do, and compensate what it has done."""
        path = f"/api/v1/workflows/{workflow_id}/cancel"
        return cast("Workflow", self.call("POST", path, {"reason": reason}, key=uuid.uuid4().hex))

    def _wait(self, path: str, seconds: float, has_ended: Callable[[Any], bool]) -> Any:
        until = time.monotonic() + seconds
        while True:
            asked = max(0, min(WAIT_SECONDS, math.ceil(until - time.monotonic())))
            found = self.call("GET", f"{path}?wait={asked}", waits=asked)
            if has_ended(found):
                return found
            if time.monotonic() >= until:
                raise TimeoutError(f"{path} has not ended within {seconds:g} seconds.")

    def _pages(self, path: str, filters: Mapping[str, Json]) -> Iterator[Any]:
        query = dict(filters)
        while True:
            page = self.call("GET", f"{path}?{urlencode(query, doseq=True)}")
            yield from page["results"]
            if page["next_cursor"] is None:
                return
            query["cursor"] = page["next_cursor"]


class Worker(_Caller):
    """Runs tasks in threads, with a token of remote workers (``tqw_…``).

    Python cannot stop a thread: a long function looks whether ``cancelled`` has the id of its task.
    """

    def __init__(self, address: str, token: str, *, timeout: float = 10.0, http: Http | None = None) -> None:
        super().__init__(address, token, timeout=timeout, http=http)
        self.cancelled: set[str] = set()
        self._held: dict[str, ClaimedTask] = {}  # until their results are accepted
        self._path = ""
        self._done = 0
        self._stop = threading.Event()

    def stop(self) -> None:
        """Let ``run`` take no more tasks, and return when those that run have ended."""
        self._stop.set()

    def run(self, handlers: Mapping[str, Handler], *, capacity: int = 1, wait: float = 20, **options: Json) -> None:
        """Run tasks of these types until ``stop`` is called; ``options`` are those of a registration, such as queues.

        An exception of a function is a failed attempt. Raises ``ApiError`` if the server no longer knows the worker.
        """
        body = {"task_types": sorted(handlers), "capacity": capacity, **options}
        registered = self.call("POST", "/internal/workers/register", body)
        self._path = f"/internal/workers/{quote(registered['id'])}"
        beats = threading.Thread(target=self._beat, args=(registered["heartbeat_seconds"] / 3,), daemon=True)
        beats.start()
        with ThreadPoolExecutor(capacity) as pool:
            while not self._stop.is_set():
                free = capacity - len(self._held)
                if free:
                    with suppress(OSError):
                        self._claim(free, wait, lambda task, at: pool.submit(self._run, handlers, task, at))
                        continue
                self._stop.wait(PAUSE_SECONDS if free else 0.02)
        beats.join()
        self.call("POST", f"{self._path}/deregister", {"tasks_done": self._done})

    def _claim(self, free: int, wait: float, start: Callable[[ClaimedTask, float], object]) -> None:
        body = {"available_capacity": free, "wait": wait, "holding": list(self._held)}
        asked = time.monotonic()
        try:
            found = self.call("POST", f"{self._path}/poll", body, waits=wait)
        except ApiError as error:
            if _may_pass(error):
                raise ConnectionError(str(error)) from error
            self._stop.set()
            raise
        if found["drain"]:
            self._stop.set()
        for task in found["tasks"]:
            self._held[task["id"]] = task
            start(task, asked)

    def _run(self, handlers: Mapping[str, Handler], task: ClaimedTask, asked: float) -> None:
        within = task.get("start_within_ms")
        report: dict[str, Json] = {"task_id": task["id"], "attempt": task["attempt"]}
        if within is not None and time.monotonic() - asked > within / 1000:
            report["status"] = "released"  # its rate or delay no longer covers the start
        else:
            try:
                report |= {"status": "completed", "result": handlers[task["task_type"]](task["parameters"], task)}
                json.dumps(report)
            except Exception as error:  # noqa: BLE001 - whatever a function raises ends its attempt
                reason = "cancelled" if task["id"] in self.cancelled else "error"
                failure = {"class": type(error).__name__, "message": str(error), "reason": reason}
                report = {**report, "status": "failed", "result": None, "error": failure}
        while task["id"] in self._held:  # a result may be sent twice: the server accepts the same one again
            try:
                self.call("POST", f"{self._path}/result", report)
                self._done += 1
            except ApiError as error:
                if error.status in REFUSED and report["status"] == "completed":
                    failure = {"class": "ResultRefused", "message": str(error)}
                    report = {**report, "status": "failed", "result": None, "error": failure}
                    continue
                if _may_pass(error):
                    time.sleep(PAUSE_SECONDS)
                    continue
            except OSError:
                time.sleep(PAUSE_SECONDS)
                continue
            self._held.pop(task["id"], None)
        self.cancelled.discard(task["id"])

    def _beat(self, seconds: float) -> None:
        while not self._stop.wait(seconds) or self._held:
            running = [{"task_id": task["id"], "attempt": task["attempt"]} for task in list(self._held.values())]
            body = {"running": running, "draining": self._stop.is_set(), "tasks_done": self._done}
            with suppress(OSError, ApiError):
                found = self.call("POST", f"{self._path}/heartbeat", body)
                if found["drain"]:
                    self._stop.set()
                self.cancelled.update(found["cancel"])
                for task_id in found["lost"]:
                    self._held.pop(task_id, None)
            if self._stop.is_set():
                time.sleep(min(seconds, PAUSE_SECONDS))
