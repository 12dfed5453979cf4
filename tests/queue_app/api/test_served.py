"""The API under an ASGI server: event streams, and the example client of the documentation."""

from __future__ import annotations

import http.client
import json
import runpy
import select
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from queue_app.index import get_index
from queue_app.models import ApiKey
from queue_app.services.control.api_keys import create_key, forget_keys
from queue_app.services.lifecycle.actions import cancel
from tests.support.serving import serving
from tests.support.waiting import until

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "client.py"
PROGRAM = """
import uvicorn
from taskqueue_project.asgi import application
from queue_app.api.views import events
events.HEARTBEAT_SECONDS = 0.2
uvicorn.run(application, port={port}, log_level="warning")
"""


@pytest.fixture(scope="module")
def port(django_db_setup):
    limits = {"HEAVY_PER_MINUTE": 0, "READS_PER_MINUTE": 0}
    limits |= {"MAX_STREAMS": 10, "MAX_OPEN_PER_CALLER": 5, "MAX_CONNECTIONS": 4}
    with serving(lambda port: ("-c", PROGRAM.format(port=port)), {"PGAPPNAME": "served"}, **limits) as found:
        yield found


@pytest.fixture(autouse=True)
def fresh_keys(transactional_db):
    forget_keys()
    yield
    forget_keys()


class Stream:
    """One event stream, read line by line."""

    def __init__(self, port: int, secret: str, after: str | None = None, path: str = "/api/v1/events") -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Authorization": f"Bearer {secret}"} | ({"Last-Event-ID": after} if after else {})
        self.connection.request("GET", path, headers=headers)
        self.answer = self.connection.getresponse()
        assert (self.answer.status, self.answer.headers["Content-Type"]) == (200, "text/event-stream")

    def next(self) -> dict[str, str]:
        """Return the next event with its fields, or a comment under an empty name."""
        found: dict[str, str] = {}
        while line := self.answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": " if not line.startswith(":") else ":")
            found[name] = value.strip()
        return found

    def event(self) -> dict[str, str]:
        """Return the next event."""
        while "data" not in (found := self.next()):
            pass
        return found

    def close(self) -> None:
        self.connection.close()


def test_a_stream_continues_after_the_last_event_and_a_client_is_generated_from_the_document(port, alice, stored):
    _key, secret = create_key(alice.user, "live")
    with closing(Stream(port, secret)) as stream:
        assert stream.next() == {"retry": "3000"}
        assert stream.next() == {"": "heartbeat"}
        stored("bob")
        mine = stored("alice")
        get_index().flush()
        accepted = stream.event()
        assert accepted["event"] == "Accepted"
        assert json.loads(accepted["data"])["task_id"] == str(mine.id)  # bob's task came before and is not shown
    cancel(mine.id)
    get_index().flush()
    with closing(Stream(port, secret, after=accepted["id"])) as stream:
        cancelled = stream.event()
        assert (cancelled["event"], json.loads(cancelled["data"])["task_id"]) == ("Cancelled", str(mine.id))
        assert tuple(map(int, cancelled["id"].split("-"))) > tuple(map(int, accepted["id"].split("-")))

    example = runpy.run_path(str(EXAMPLE))
    client = example["Client"](f"http://127.0.0.1:{port}", secret)
    task = client.submit_task({"task_type": "taskqueue_project.demo.tasks.needs_gpu", "parameters": {"run_id": 1}})
    assert client.get_task(task_id=task["task_id"])["parameters"] == {"run_id": 1}
    assert client.reprioritise_task({"priority": "high"}, task_id=task["task_id"])["priority"] == "high"
    assert [found["task_id"] for found in client.list_tasks(status="pending", page_size=5)["results"]] == [
        task["task_id"]
    ]
    assert client.cancel_task(task_id=task["task_id"])["status"] == "cancelled"
    with pytest.raises(example["ApiError"], match="unknown_field"):
        client.submit_task({"task_type": "x", "priorty": "low"})


def test_a_stream_under_the_names_of_another_system(port, alice, stored):
    _key, secret = create_key(alice.user, "live")
    wanted = "/api/v1/executions/events?event=ExecutionCancelled&event=Promoted"
    with closing(Stream(port, secret, path=wanted)) as stream:
        assert stream.next() == {"retry": "3000"}
        cancel(stored("alice").id)
        get_index().flush()
        assert stream.event()["event"] == "ExecutionCancelled"
    assert alice.get("/api/v1/executions/events?event=ExecutionPaused").data["code"] == "unknown_event"


def test_a_revoked_key_ends_its_stream(port, alice):
    key, secret = create_key(alice.user, "live")
    with closing(Stream(port, secret)) as stream:
        assert stream.next() == {"retry": "3000"}
        ApiKey.objects.filter(pk=key.pk).update(revoked_at=timezone.now())  # by another process
        began = time.monotonic()
        while stream.answer.readline():
            assert time.monotonic() - began < 30
        assert time.monotonic() - began < 10, "two seconds, and what a busy machine adds"


def get(port: int, path: str, secret: str = "") -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {secret}"} if secret else {})
        answer = connection.getresponse()
        answer.read()
        return answer.status, dict(answer.headers)


def connections() -> int:
    """Count the connections of other processes to the database of this test."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND application_name = 'served'"
        )
        return cursor.fetchone()[0]


def test_many_requests_at_once_hold_few_connections(port, alice, stored):
    """Under ASGI every request has a thread; without a limit many at once opened 180 connections and kept them."""
    stored()
    _key, secret = create_key(alice.user, "many")
    most = 0
    with ThreadPoolExecutor(100) as pool:
        asked = [pool.submit(get, port, "/api/v1/tasks", secret) for _ in range(250)]
        while wait(asked, timeout=0.01).not_done:
            most = max(most, connections())
    assert {each.result()[0] for each in asked} <= {200, 503}
    assert sum(each.result()[0] == 200 for each in asked) > 100
    assert 1 <= most <= 4 + 2, "a server process may still end after its connection was closed"
    until(lambda: connections() == 0, "none is kept")


def test_waiting_requests_hold_no_connection_and_do_not_delay_health_checks(port, alice, bob, stored):
    task, other = stored(), stored("bob")
    node = {"name": "only", "task_type": "taskqueue_project.demo.tasks.needs_gpu", "parameters": {"run_id": 1}}
    flow = f"/api/v1/workflows/{bob.post('/api/v1/workflows', {'name': 'w', 'tasks': [node]}).data['id']}"
    secrets = {user: create_key(user.user, "wait")[1] for user in (alice, bob)}
    with ThreadPoolExecutor(12) as pool:
        waits = [pool.submit(get, port, f"/api/v1/tasks/{task.id}?wait=60", secrets[alice]) for _ in range(6)]
        until(lambda: any(each.done() for each in waits), "the sixth is refused")
        [refused] = [each.result() for each in waits if each.done()]
        assert (refused[0], refused[1]["Retry-After"]) == (429, "2")
        waits += [pool.submit(get, port, f"/api/v1/tasks/{other.id}?wait=60", secrets[bob]) for _ in range(4)]
        waits.append(pool.submit(get, port, f"{flow}?wait=60", secrets[bob]))
        until(lambda: connections() == 0, "those that wait hold none")
        assert get(port, "/healthz")[0] == get(port, "/readyz")[0] == 200
        for each in (task, other):
            cancel(each.id)
        bob.post(f"{flow}/cancel")
        get_index().flush()
        assert sorted(each.result()[0] for each in waits) == [200] * 10 + [429]


def test_streams_whose_clients_reset_leave_their_places(port, alice):
    """Ten places; before, each early reset took one for good."""
    _key, secret = create_key(alice.user, "reset")
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\r\n".encode()
    for number in range(60):
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(request)
        select.select([client], [], [], 0.002 * (number % 10))
        client.close()

    def all_are_free() -> bool:
        with ExitStack() as stack, suppress(AssertionError):
            for _ in range(5):
                stack.enter_context(closing(Stream(port, secret)))
            return True
        return False

    until(all_are_free, "all places of this caller are free")
