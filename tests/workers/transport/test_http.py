"""The reports of a remote worker: split into requests that the server accepts; one refusal does not stop the others."""

import json
import socket
import threading
import uuid
from collections import defaultdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from django.utils import timezone

from queue_app.core.records import Outcome, ProgressReport, TaskFailure
from queue_app.index import WorkerMessage
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.in_flight import InFlight
from queue_app.workers.transport.http import MAX_BODY, MAX_POLL, HttpTransport, ServerRefused
from tests.workers import chores
from tests.workers.test_executor import claimed

SERVER = uuid.uuid4()


class Server(HttpTransport):
    """Takes bodies up to a size, and results that are not ``poison``."""

    def __init__(self, most: int = 3 * MAX_BODY) -> None:
        super().__init__("http://localhost", "tqw_x")
        self.most = most
        self.bodies: list[dict] = []
        self.answer: dict = {}
        self._ids = defaultdict(uuid.uuid4)

    def _post(self, path, body, wait=0.0):
        if len(json.dumps(body)) > self.most:
            raise ServerRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload_too_large", "too large")
        results = body.get("results", [])
        if any(item.get("result") == "poison" or item.get("snooze", 0) > 100 for item in results):
            raise ServerRefused(HTTPStatus.BAD_REQUEST, "invalid", "poison")
        self.bodies.append(body)
        return {"accepted": [item["task_id"] for item in results]} | self.answer


@pytest.fixture
def server():
    """The transport to it."""
    return Server()


def ended(result: str | None = None, **options) -> Outcome:
    now = timezone.now()
    return Outcome(claimed(chores.echo, 1).task, now, now, result, **options)


def report(server: Server, outcomes: list[Outcome]) -> InFlight:
    in_flight = InFlight(server)
    in_flight.add([ClaimedAttempt(outcome.task, 0.0) for outcome in outcomes])
    for outcome in outcomes:
        in_flight.record(outcome)
    assert in_flight.report()
    assert not in_flight.is_pending
    return in_flight


def test_many_large_outcomes_go_in_several_requests(server):
    failure = TaskFailure("builtins.ValueError", "no", "x" * 20_000)
    assert report(server, [ended(failure=failure) for _ in range(80)]).done == 80
    sizes = [len(json.dumps(body)) for body in server.bodies]
    assert max(sizes) <= MAX_BODY + 1000
    assert min(sizes[:-1]) > MAX_BODY // 2, "and no more of them than needed"
    report(server, [ended() for _ in range(MAX_POLL + 1)])
    assert [len(body["results"]) for body in server.bodies[-2:]] == [MAX_POLL, 1]


@pytest.mark.parametrize(
    "bad", [{"result": '"poison"'}, {"snooze": 1000.0}, {"result": json.dumps("x" * 4 * MAX_BODY)}]
)
def test_an_outcome_that_the_server_refuses_becomes_a_failure_and_stops_no_other(server, bad):
    before, refused, after = ended("1"), ended(**bad), ended("2")
    assert report(server, [before, refused, after]).done == 3
    reported = {item["task_id"]: item for body in server.bodies for item in body["results"]}
    assert reported[str(refused.task.id)]["status"] == "failed"
    assert reported[str(refused.task.id)]["error"]["class"].endswith("OutcomesRefused")
    assert {reported[str(each.task.id)]["status"] for each in (before, after)} == {"completed"}


def test_long_logs_of_many_attempts_go_in_several_requests(server):
    notes = [ProgressReport(uuid.uuid4(), 1, SERVER, lines="x" * 50_000) for _ in range(64)]
    server.record_progress(notes)
    assert sum(len(body["running"]) for body in server.bodies) == 64
    assert max(len(json.dumps(body)) for body in server.bodies) <= MAX_BODY + 1000


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        ({"called": True, "notified": True}, WorkerMessage.NOTIFICATION),
        ({"called": True, "notified": False}, WorkerMessage.WAKE_UP),
        ({"called": True}, WorkerMessage.WAKE_UP),  # an older server
        ({"called": False}, None),
    ],
)
def test_a_notification_lets_the_worker_send_its_heartbeat_now(server, answer, call):
    server.answer = answer
    assert server.wait_for_wake(uuid.uuid4(), 1) is call


class Hasty(BaseHTTPRequestHandler):
    """Keeps a connection open after its answer, and closes it if no request follows at once."""

    protocol_version = "HTTP/1.1"
    timeout = 0.05

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.callers.append(self.client_address)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def finish(self):
        super().finish()
        self.request.shutdown(socket.SHUT_RDWR)
        self.server.closed.set()

    def log_message(self, *_):
        pass


def test_a_connection_that_the_server_closed_is_not_used_again():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hasty) as server:
        server.callers, server.closed = [], threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        worker = HttpTransport(f"http://127.0.0.1:{server.server_port}", "tqw_x")
        assert worker._post("/a", {}) == {}
        assert server.closed.wait(60)
        assert worker._post("/b", {}) == {}
        worker._drop()
        server.shutdown()
    assert len(set(server.callers)) == 2


@pytest.mark.parametrize(
    ("answer", "news"),
    [
        ({"next_start_ms": None, "loading": False}, []),
        ({"next_start_ms": 1500, "loading": False}, [(1.5, False)]),
        ({"next_start_ms": 100, "loading": True}, [(0.1, True)]),
        ({"next_start_ms": 100}, [(0.1, False)]),  # an older server
    ],
)
def test_a_claim_hears_of_the_next_start_and_of_a_rebuild(server, answer, news):
    server.answer = {"tasks": [], **answer}
    heard = []
    assert server.claim(None, SERVER, 1, reserve=True, on_wait=lambda *found: heard.append(found)) == []
    assert heard == news
