"""Clients that begin requests and do not end them, against the web process as it is shipped."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from queue_app.remote import tokens
from tests.integration.faults.run import Run
from tests.integration.faults.starts import start
from tests.integration.processes import Fleet, eventually

#: Number of half-sent requests.
CLIENTS = 60
#: The longest that answers may take beside them, in ms. A heartbeat may wait for servers that are under load.
LIMITS_MS = {"/healthz": 100.0, "a heartbeat": 1000.0}
ASKED = 40


def half_sent_requests(run: Run) -> None:
    """Send half of 60 requests; health checks and heartbeats of remote workers are answered all the same."""
    run.load()
    start(run)
    found = beside(run.fleet)
    run.measured |= {f"ms of {name} beside {CLIENTS} half-sent requests": ms for name, ms in found.items()}
    run.broken += [f"{name} took {ms:.0f} ms" for name, ms in found.items() if ms > LIMITS_MS[name]]
    run.reach(1)


def beside(fleet: Fleet) -> dict[str, float]:
    """Return how long a health check and a heartbeat take beside half-sent requests, in ms."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    web = fleet.shipped_web(port)
    eventually(lambda: _listens(port), "it listens")
    secret = tokens.create("far")[1]
    worker = eventually(lambda: _ask(port, "register", secret, {}).get("worker_id"), "a worker registers")
    heads = [
        "POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Len",
        "POST /admin/login/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n ",
        f"POST /internal/workers/{worker}/poll HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{{",
    ]
    with ExitStack() as stack:
        for number in range(CLIENTS):
            client = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
            client.sendall(heads[number % len(heads)].encode())
        measured = {
            "/healthz": _typical(lambda: _ask(port, "", "", None)),
            "a heartbeat": _typical(lambda: _ask(port, f"{worker}/heartbeat", secret, {"running": []})),
        }
    web.kill()
    return measured


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _typical(ask: Callable[[], Any]) -> float:
    """Return the median time of an answer: another process may delay some, and a server that is held up all."""
    times = []
    for _ in range(ASKED):
        began = time.monotonic()
        ask()
        times.append((time.monotonic() - began) * 1000)
    return sorted(times)[ASKED // 2]


def _ask(port: int, path: str, secret: str, body: object) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with closing(connection):
        if body is None:
            connection.request("GET", "/healthz")
        else:
            headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
            connection.request("POST", f"/internal/workers/{path}", json.dumps(body), headers)
        answer = connection.getresponse()
        assert answer.status in {200, 201}, answer.read()
        found: dict[str, Any] = json.loads(answer.read())
        return found
