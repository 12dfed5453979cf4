"""The API over keep-alive connections: submissions on one web process, and reads by id under that load.

The clients are threads with bare sockets, which take little of the processor from the servers.
For scale the same server answers a view of the REST framework that does one INSERT.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from bench import Table, register
from bench_app.tasks import noop
from django.contrib.auth.models import Permission, User

from queue_app import registry
from queue_app.models import Queue, RuntimeSettings
from queue_app.services.control.api_keys import create_key
from tests.support.waiting import let_pass, turns, until

SECONDS = 8
CONNECTIONS = 8
#: Submissions a second beside which reads are measured, or three in five of what the server can do.
PACE = 400
SERVERS = {
    "gunicorn, 8 threads": ["gunicorn", "taskqueue_project.wsgi:application", "--threads", "8", "--bind"],
    "uvicorn": ["uvicorn", "taskqueue_project.asgi:application", "--no-access-log", "--log-level", "warning"],
}


def run(table: Table) -> None:
    """Measure each server in turn."""
    register()
    lift_limits()
    user = User.objects.create_user(f"bench-{time.time_ns()}")
    user.user_permissions.add(Permission.objects.get(codename="add_task", content_type__app_label="queue_app"))
    _, secret = create_key(user, "bench")
    seconds = SECONDS / min(table.scale, 4)
    try:
        for name, command in SERVERS.items():
            asked = ("≥ 400", "≥ 0.8", "≤ 20 ms") if "gunicorn" in name else ("-", "-", "-")
            with serving(command) as server:
                caller = Caller(server.port, secret)
                caller.posts(0.5)
                bare = caller.rate(caller.bare, seconds, server)
                posts = caller.rate(caller.submit, seconds, server)
                gets = caller.rate(caller.read, seconds, server)
                pace = min(PACE, 0.6 * posts.per_second)
                reads = caller.reads_beside_posts(seconds, pace)
            table.add(f"POST /tasks, {name}, one process, tasks/s", asked[0], f"{posts.per_second:,.0f}")
            ratio = posts.per_second / bare.per_second
            table.add(f"the same / a view that does one INSERT, {name}", asked[1], f"{ratio:.2f}")
            table.add(f"processor time of a POST /tasks, {name}", "-", f"{posts.cpu * 1000:.2f} ms")
            table.add(f"processor time of a GET by id, {name}", "-", f"{gets.cpu * 1000:.2f} ms")
            table.add(f"processor time of a view that does one INSERT, {name}", "-", f"{bare.cpu * 1000:.2f} ms")
            p99 = quantiles(reads, n=100)[98]
            table.add(f"p99 of GET by id beside {pace:.0f} POSTs a second, {name}", asked[2], f"{p99 * 1000:.1f} ms")
    finally:
        user.delete()


def lift_limits() -> None:
    """Let one user fill one queue."""
    most = 10**8
    RuntimeSettings.objects.update_or_create(pk=1, defaults={"max_pending_per_user": most})
    Queue.objects.update_or_create(pk="default", defaults={"max_length": most, "max_pending_per_user": most})


class Server(NamedTuple):
    """A web server with one process that answers requests."""

    port: int
    pid: int

    def cpu(self) -> float:
        """Return the seconds of processor time that it and its children have used."""
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.pid)], capture_output=True, text=True, check=False
        ).stdout
        ticks = 0
        for pid in [self.pid, *map(int, found.split())]:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(command: list[str]) -> Iterator[Server]:
    """Run a web server with one process."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    address = [f"127.0.0.1:{port}"] if command[-1] == "--bind" else ["--port", str(port)]
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "bench_settings"}
    process = subprocess.Popen([sys.executable, "-m", *command, *address], env=environment, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _answers(port) or process.poll() is not None, f"{command[0]} starts", 30)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        process.wait(20)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Rate(NamedTuple):
    """Requests a second, and the processor time of one (s)."""

    per_second: float
    cpu: float


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, request: bytes, status: bytes) -> bytes:
        """Send a request, return the body of its answer."""
        self._socket.sendall(request)
        got = b""
        while b"\r\n\r\n" not in got:
            got += self._socket.recv(65536)
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.split(b" ", 2)[1] == status, got
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += self._socket.recv(65536)
        return body


class Caller:
    """Calls a server on several connections at once."""

    def __init__(self, port: int, secret: str) -> None:
        self._port, self._secret = port, secret
        self._newest = ""
        body = json.dumps({"task_type": registry.type_of(noop), "parameters": {"number": 42}}).encode()
        self._submission = self._request("POST /api/v1/tasks", body)
        self._insert = self._request("POST /bench/insert", body)

    def _request(self, line: str, body: bytes = b"") -> bytes:
        head = (
            f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._secret}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def submit(self, connection: Connection) -> None:
        """Submit a task."""
        self._newest = json.loads(connection.call(self._submission, b"201"))["task_id"]

    def read(self, connection: Connection) -> None:
        """Read the newest task."""
        connection.call(self._request(f"GET /api/v1/tasks/{self._newest}"), b"200")

    def bare(self, connection: Connection) -> None:
        """Let a view insert a row."""
        connection.call(self._insert, b"201")

    def posts(self, seconds: float, *, pace: float = 0.0) -> int:
        """Submit for some seconds, as fast as possible or ``pace`` a second; return the number."""
        return self._calls(self.submit, seconds, pace=pace)

    def rate(self, call: Callable[[Connection], None], seconds: float, server: Server) -> Rate:
        """Measure a call."""
        cpu, began = server.cpu(), time.monotonic()
        count = self._calls(call, seconds)
        return Rate(count / (time.monotonic() - began), (server.cpu() - cpu) / count)

    def reads_beside_posts(self, seconds: float, pace: float) -> list[float]:
        """Return how long reads of the newest task take while ``pace`` tasks a second are submitted."""
        times: list[float] = []
        with ThreadPoolExecutor(1) as pool:
            posting = pool.submit(self.posts, seconds, pace=pace)
            connection = Connection(self._port)
            for _ in turns(seconds, pause=0.02):
                request = self._request(f"GET /api/v1/tasks/{self._newest}")
                began = time.perf_counter()
                connection.call(request, b"200")
                times.append(time.perf_counter() - began)
            posting.result()
        return times

    def _calls(self, call: Callable[[Connection], None], seconds: float, *, pace: float = 0.0) -> int:
        began = time.monotonic()

        def calls(number: int) -> int:
            """Call on one connection; with a pace in turn with the others, or they would all come at once."""
            connection = Connection(self._port)
            count, due = 0, began + (number / pace if pace else 0.0)
            while time.monotonic() < began + seconds:
                let_pass(max(0.0, due - time.monotonic()))
                call(connection)
                count += 1
                due += CONNECTIONS / pace if pace else 0.0
            return count

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            return sum(pool.map(calls, range(CONNECTIONS)))
