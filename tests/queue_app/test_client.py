"""The client for programs without Django: the page about it runs, and nothing is lost or done twice."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import pytest
from django.conf import settings as project
from django.contrib.auth.models import Permission, User

from queue_app import client as module
from queue_app.client import ApiError, Client, Worker
from queue_app.core.states import TERMINAL, Status
from queue_app.models import Queue, Task
from queue_app.models.workflow import WorkflowState
from queue_app.remote import tokens
from queue_app.services.control.api_keys import create_key, forget_keys
from tests.docs.pages import blocks
from tests.support.engine import Side, until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "python-client.md"
GPU = "taskqueue_project.demo.tasks.needs_gpu"
WITHOUT_DJANGO = """
import sys
sys.modules["django"] = sys.modules["httpx"] = None
from queue_app.client import Client, Worker
print(Client("http://127.0.0.1:1", "tq_x"), Worker("http://127.0.0.1:1", "tqw_x"))
"""


def test_it_needs_neither_django_nor_httpx():
    subprocess.run([sys.executable, "-c", WITHOUT_DJANGO], check=True, capture_output=True)


@pytest.fixture
def served(transactional_db, settings, engine, live_server, monkeypatch):
    unlimited = dict.fromkeys(("HEAVY_PER_MINUTE", "READS_PER_MINUTE", "SUBMITS_PER_MINUTE"), 0)
    settings.TASKQUEUE = {**project.TASKQUEUE, "API": unlimited}
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.05)
    Queue.objects.get_or_create(name="default")
    forget_keys()
    yield live_server.url
    forget_keys()


@pytest.fixture
def key(served) -> str:
    user = User.objects.create_user("ann")
    user.user_permissions.add(Permission.objects.get(codename="add_task", content_type__app_label="queue_app"))
    return create_key(user, "client")[1]


@pytest.fixture
def token(served) -> str:
    return tokens.create("client", capabilities=["gpu"])[1]


def test_the_page_runs(served, key, token, monkeypatch):
    monkeypatch.setitem(Worker.run.__kwdefaults__, "wait", 1)  # the last request for work ends sooner
    *python, run, kept = [block.text for block in blocks(PAGE) if block.language == "python"]
    names: dict[str, Any] = {}

    def execute(text: str) -> None:
        text = text.replace("https://tasks.example.com", served).replace("tq_…", key).replace("tqw_…", token)
        exec(compile(text, str(PAGE), "exec"), names)  # noqa: S102 - our own page

    for text in python:
        execute(text)
    execute(kept)
    execute(run.partition("worker.run(")[0])
    side = Side(lambda: execute("worker.run(" + run.partition("worker.run(")[2]))
    done = Client(served, key).wait(names["task"]["id"], seconds=60)
    assert (done["status"], done["result"]) == ("completed", {"run": 4})
    names["worker"].stop()
    side.result()


def test_a_lost_answer_makes_no_second_task(served, key):
    sent: list[bytes] = []

    class LosesAnswers(Client):
        def _send(self, *args: Any) -> Any:
            answer = super()._send(*args)
            sent.append(answer[2])
            if len(sent) == 1:
                raise ConnectionResetError("the answer is lost")
            return answer

    task = LosesAnswers(served, key).submit(GPU, {"run_id": 1})
    assert [json.loads(text)["id"] for text in sent] == [task["id"]] * 2
    assert task["replayed"]
    assert Task.objects.count() == 1


@pytest.fixture
def answering():
    """Return a function that starts a server, which gives each connection the next of these answers, then closes it."""
    with ExitStack() as stack:

        def start(*answers: bytes) -> tuple[str, list[bytes]]:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            asked: list[bytes] = []

            def serve() -> None:
                for answer in answers:
                    connection, _ = listener.accept()
                    with connection:
                        asked.append(connection.recv(65_536))
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(65_536):  # the rest of the request; unread, it would reset the connection
                            pass

            stack.callback(Side(serve).result)
            return f"http://127.0.0.1:{listener.getsockname()[1]}", asked

        yield start


BROKEN_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"
PAGE_OF_A_PROXY = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n<p>"
MOVED = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"


def test_an_answer_that_breaks_off_is_as_good_as_none(answering, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    address, asked = answering(BROKEN_OFF, b"no HTTP\r\n\r\n", b"", BROKEN_OFF, b"")
    queue = Client(address, "tq_x")
    with pytest.raises(ConnectionError):
        queue.submit(GPU, {"run_id": 1})
    assert len(asked) == module.TRIES


def test_silence_is_no_answer_and_not_the_end_of_a_wait(monkeypatch):
    monkeypatch.setattr(module, "TRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ConnectionError):
        Client(f"http://127.0.0.1:{silent.getsockname()[1]}", "tq_x", timeout=0.05).wait("1", seconds=0)


def test_another_server_gets_no_key_and_its_page_is_no_task(answering):
    address, asked = answering(MOVED, PAGE_OF_A_PROXY)
    queue = Client(address, "tq_x")
    for status in (302, 200):
        with pytest.raises(ApiError, match="no_json") as refused:
            queue.submit(GPU, {"run_id": 1})
        assert refused.value.status == status
    assert all(request.startswith(b"POST /api/v1/tasks") for request in asked)


def test_a_busy_server_is_asked_again_and_a_refusal_is_final(served, key):
    answers = iter([(503, {"Retry-After": "0"}, b"{}"), (429, {}, b"{}"), (404, {}, b"<html>not ours</html>")])

    class Busy(Client):
        def _send(self, *args: Any) -> Any:
            return next(answers)

    with pytest.raises(ApiError, match="no_json: <html>not ours") as refused:
        Busy(served, key).get("1")
    assert refused.value.status == 404
    with pytest.raises(ValueError, match="http://"):
        Client("file:///etc/passwd", key).get("1")


def test_a_worker_reports_failures_and_what_was_cancelled(served, key, token):
    queue, worker, began = Client(served, key), Worker(served, token), threading.Event()

    def fails(parameters: dict[str, Any], task: module.ClaimedTask) -> None:
        if parameters["run_id"] == 2:
            began.set()
            until(lambda: task["id"] in worker.cancelled, "the worker hears of it")
        raise LookupError(f"no run {parameters['run_id']}")

    failed, held = (queue.submit(GPU, {"run_id": number}, max_retries=0)["id"] for number in (1, 2))
    side = Side(lambda: worker.run({GPU: fails}, capacity=2, wait=1, capabilities=["gpu"], heartbeat_seconds=1))
    found = queue.wait(failed, seconds=60)
    assert found["status"] == "dead_letter"
    assert (found["error"] or {})["message"] == "no run 1"
    assert began.wait(60)
    queue.cancel(held)
    assert queue.wait(held, seconds=60)["status"] == "cancelled"
    worker.stop()
    side.result()


def test_a_refused_result_is_a_failure_and_one_that_meets_an_error_of_the_server_is_sent_again(served, key, token):
    queue, found = Client(served, key), []

    class Unlucky(Worker):
        def _send(self, method: str, url: str, *rest: Any) -> Any:
            if not url.endswith("/result"):
                return super()._send(method, url, *rest)
            found.append(json.loads(rest[1])["status"])
            return super()._send(method, url, *rest) if len(found) > 1 else (500, {}, b"{}")

    worker = Unlucky(served, token)
    task = queue.submit(GPU, {"run_id": 1}, max_retries=0)["id"]
    side = Side(lambda: worker.run({GPU: lambda *_: "x" * 2_000_000}, wait=1, capabilities=["gpu"]))
    ended = queue.wait(task, seconds=60)
    worker.stop()
    side.result()
    assert found == ["completed", "completed", "failed"]
    assert (ended["status"], ended["error"]["class"]) == ("dead_letter", "ResultRefused")


def test_a_worker_whose_token_was_revoked_ends(served, key, token):
    worker = Worker(served, token)
    side = Side(lambda: worker.run({GPU: lambda *_: None}, wait=0, capabilities=["gpu"]))
    until(lambda: bool(worker._path), "it has registered")
    tokens.revoke("client")
    with pytest.raises(ApiError) as refused:
        side.result()
    assert refused.value.status == 401


def test_its_types_name_the_states_of_the_server():
    assert set(get_args(module.Status)) == set(map(str, Status))
    assert set(map(str, TERMINAL)) == module.ENDED
    assert set(get_args(module.WorkflowState)) == set(map(str, WorkflowState))
