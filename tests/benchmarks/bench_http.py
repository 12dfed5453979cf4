"""The API over keep-alive connections: submissions on one web process, and reads by id under that load."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles

from bench import Table, register
from bench_app.tasks import noop
from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token

from queue_app import registry
from queue_app.models import Queue, RuntimeSettings

SECONDS = 8
CONNECTIONS = 8
SERVERS = {
    "gunicorn, 8 threads": ["gunicorn", "taskqueue_project.wsgi:application", "--threads", "8", "--bind"],
    "uvicorn": ["uvicorn", "taskqueue_project.asgi:application", "--no-access-log", "--log-level", "warning"],
}


def run(table: Table) -> None:
    """Measure each server in turn."""
    register()
    lift_limits()
    user = User.objects.create_user(f"bench-{time.time_ns()}")
    token = Token.objects.create(user=user).key
    try:
        for name, command in SERVERS.items():
            with serving(command) as port:
                posts, reads = asyncio.run(load(port, token, SECONDS / min(table.scale, 4)))
            asked = ("≥ 400", "≤ 20 ms") if "gunicorn" in name else ("-", "-")
            table.add(f"POST /tasks, {name}, one process, tasks/s", asked[0], f"{posts:,.0f}")
            table.add(f"p99 of GET by id meanwhile, {name}", asked[1], f"{quantiles(reads, n=100)[98] * 1000:.1f} ms")
    finally:
        user.delete()


def lift_limits() -> None:
    """Let one user fill one queue."""
    most = 10**8
    RuntimeSettings.objects.update_or_create(pk=1, defaults={"max_pending_per_user": most})
    Queue.objects.update_or_create(pk="default", defaults={"max_length": most, "max_pending_per_user": most})


@contextmanager
def serving(command: list[str]) -> Iterator[int]:
    """Run a web server with one process; yield its port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    address = [f"127.0.0.1:{port}"] if command[-1] == "--bind" else ["--port", str(port)]
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "bench_settings"}
    process = subprocess.Popen([sys.executable, "-m", *command, *address], env=environment, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[0]} did not start")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(20)


async def load(port: int, token: str, seconds: float) -> tuple[float, list[float]]:
    """Submit on several connections, and read what was submitted on one more; return tasks/s and times of reads."""
    body = json.dumps({"task_type": registry.type_of(noop), "parameters": {"order_id": 42}}).encode()
    newest: list[str] = []
    await submitting(port, token, body, newest, time.monotonic() + 0.5)  # warm
    count = len(newest)
    began = time.monotonic()
    times: list[float] = []
    reader = asyncio.create_task(reading(port, token, newest, times, began + seconds))
    await asyncio.gather(*(submitting(port, token, body, newest, began + seconds) for _ in range(CONNECTIONS)))
    took = time.monotonic() - began
    await reader
    return (len(newest) - count) / took, times


async def submitting(port: int, token: str, body: bytes, newest: list[str], until: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < until:
        status, answer = await call(reader, writer, token, "POST /api/v1/tasks", body)
        assert status == 201, answer
        newest.append(answer["task_id"])
    writer.close()


async def reading(port: int, token: str, newest: list[str], times: list[float], until: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < until:
        began = time.perf_counter()
        status, answer = await call(reader, writer, token, f"GET /api/v1/tasks/{newest[-1]}", b"")
        assert status == 200, answer
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.02)
    writer.close()


async def call(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, line: str, body: bytes
) -> tuple[int, dict]:
    head = (
        f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Token {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    raw = (await reader.readuntil(b"\r\n\r\n")).decode()
    headers = dict(part.lower().split(": ", 1) for part in raw.split("\r\n")[1:] if part)
    answer = await reader.readexactly(int(headers["content-length"]))
    return int(raw.split()[1]), json.loads(answer)
