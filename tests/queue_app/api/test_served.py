"""The API under an ASGI server: event streams, and the example client of the documentation."""

from __future__ import annotations

import http.client
import json
import runpy
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from django.utils import timezone

from queue_app.index import get_index
from queue_app.models import ApiKey
from queue_app.services.control.api_keys import create_key, forget_keys
from queue_app.services.lifecycle.actions import cancel

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "client.py"
PROGRAM = """
import uvicorn
from taskqueue_project.asgi import application
from queue_app.api.views import events
events.HEARTBEAT_SECONDS = 0.2
uvicorn.run(application, port={port}, log_level="warning")
"""


@pytest.fixture
def port(process_env):
    """Run a server on the database and index of this test."""
    forget_keys()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = process_env | {"DJANGO_SETTINGS_MODULE": "taskqueue_project.settings.test"}
    server = subprocess.Popen([sys.executable, "-W", "ignore", "-c", PROGRAM.format(port=port)], env=environment)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        deadline = time.monotonic() + 60
        while not listens():
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield port
    finally:
        server.kill()  # a graceful stop would wait for open streams
        server.wait(60)
        forget_keys()


class Stream:
    """One event stream, read line by line."""

    def __init__(self, port: int, secret: str, after: str | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Authorization": f"Bearer {secret}"} | ({"Last-Event-ID": after} if after else {})
        self.connection.request("GET", "/api/v1/events", headers=headers)
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


def test_a_revoked_key_ends_its_stream(port, alice):
    key, secret = create_key(alice.user, "live")
    with closing(Stream(port, secret)) as stream:
        assert stream.next() == {"retry": "3000"}
        ApiKey.objects.filter(pk=key.pk).update(revoked_at=timezone.now())  # by another process
        began = time.monotonic()
        while stream.answer.readline():
            assert time.monotonic() - began < 30
        assert time.monotonic() - began < 10, "two seconds, and what a busy machine adds"
