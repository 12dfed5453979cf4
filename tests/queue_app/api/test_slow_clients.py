"""Clients that are slow, idle, or send too much, against servers as they are deployed."""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, suppress

import pytest

from queue_app import conf
from queue_app.api.body import body_limit
from queue_app.remote import tokens
from queue_app.services.control.api_keys import create_key, forget_keys
from tests.support.engine import until
from tests.support.serving import serving

ASGI = (
    "import uvicorn; from taskqueue_project.asgi import application;"
    "uvicorn.run(application, port={port}, log_level='critical')"
)
GUNICORN = ("-m", "gunicorn", "taskqueue_project.wsgi", "--threads", "8", "--log-level", "critical", "--bind")
PATH, LOGIN = "/api/v1/tasks", "/admin/login/"
#: Maximum of the health check, beyond twice what it takes without other requests to this server. What is held up, is
#: held up for seconds; beside other tests less says nothing.
MAX_MS = 500


def of_kind(kind: str, **limits: object) -> AbstractContextManager[int]:
    """Run a server, and give its port."""
    return serving(
        lambda port: ("-c", ASGI.format(port=port)) if kind == "asgi" else (*GUNICORN, f"127.0.0.1:{port}"),
        {},
        **limits,
    )


@pytest.fixture(scope="module")
def asgi(django_db_setup):
    with of_kind("asgi", READS_PER_MINUTE=0) as port:
        yield port


@pytest.fixture(scope="module")
def gunicorn(django_db_setup):
    with of_kind("gunicorn") as port:
        yield port


@pytest.fixture(autouse=True)
def fresh_keys(transactional_db):
    forget_keys()
    yield
    forget_keys()


def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict, dict]:
    """Return status, headers and JSON of an answer; the status is 0 without one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection), suppress(OSError):
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), json.loads(answer.read())
    return 0, {}, {}


def opened(port: int, secret: str, length: str, path: str = PATH) -> socket.socket:
    """Send the head of a request, without a byte of its body."""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n"
    client.sendall(f"{head}Content-Type: application/json\r\n{length}\r\n\r\n".encode())
    return client


def health_ms(port: int) -> float:
    """Return the time that three of four health checks exceed.

    A machine with other work delays some of them; a server that something else holds up delays all.
    """
    times = []
    for _ in range(15):
        began = time.monotonic()
        assert ask(port, "GET", "/healthz")[0] == 200
        times.append((time.monotonic() - began) * 1000)
        time.sleep(0.02)
    return sorted(times)[len(times) // 4]


@pytest.fixture
def secret(alice) -> str:
    return create_key(alice.user, "slow")[1]


@pytest.mark.parametrize("kind", ["asgi", "gunicorn"])
def test_polls_that_wait_do_not_delay_health_checks(request, engine, kind):
    """Ten polls on eight threads once delayed the check by 20 s; four may wait now, and the others hear so at once."""
    token = tokens.create("far")[1]
    port = request.getfixturevalue(kind)
    with ThreadPoolExecutor(10) as pool:
        bearer, calm = {"Authorization": f"Bearer {token}"}, health_ms(port)
        worker = ask(port, "POST", "/internal/workers/register", b"{}", **bearer)[2]["worker_id"]
        wait = json.dumps({"wait": 6}).encode()
        polls = [pool.submit(ask, port, "POST", f"/internal/workers/{worker}/poll", wait, **bearer) for _ in range(10)]
        if kind == "asgi":
            time.sleep(1)
        else:
            until(lambda: sum(poll.done() for poll in polls) == 6, "all but four are refused")
        assert health_ms(port) < 2 * calm + MAX_MS
        refused = [poll.result() for poll in polls if poll.done()]
        assert len(refused) == (0 if kind == "asgi" else 6), "the others still wait"
        assert {(status, headers["Retry-After"], told["code"]) for status, headers, told in refused} <= {
            (503, "2", "too_many_waiters")
        }
        assert sorted({poll.result()[0] for poll in polls}) == ([200] if kind == "asgi" else [200, 503])


def test_a_burst_of_requests_does_not_delay_health_checks(asgi, secret):
    """They wait for the database on the event loop, not in a thread each. With 500 the check took 5.4 s before."""
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        text = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\r\n"
        calm = health_ms(asgi)
        clients = [stack.enter_context(closing(socket.create_connection(("127.0.0.1", asgi)))) for _ in range(300)]
        for client in clients:
            client.settimeout(60)
            client.sendall(text.encode())
        answers = pool.submit(lambda: [client.recv(65536).split(b"\r\n")[0] for client in clients])
        assert health_ms(asgi) < 2 * calm + MAX_MS
        assert not answers.done(), "the burst was over before it was measured"
        assert set(answers.result()) == {b"HTTP/1.1 200 OK"}


def test_slow_bodies_hold_nothing_and_end(secret):
    with of_kind("asgi", BODY_SECONDS=4) as port, ExitStack() as stack:
        calm = health_ms(port)
        places = [PATH, PATH, PATH, LOGIN] * 50
        slow = [stack.enter_context(closing(opened(port, secret, "Content-Length: 500", place))) for place in places]
        over = threading.Event()

        def drip() -> None:
            while not over.wait(0.2):
                for client in slow[1:]:
                    with suppress(OSError):
                        client.send(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert health_ms(port) < 2 * calm + MAX_MS
            answers = [client.recv(65536) for client in slow]
        finally:
            over.set()
            thread.join()
        assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 408 Request Timeout"}
        rest = slow[0].makefile("rb").read()  # the others send after the end, which may reset the connection
        assert b'"code":"body_too_slow"' in answers[0] + rest


def test_slow_bodies_hold_a_thread_of_gunicorn_each_until_their_clients_leave(gunicorn, secret):
    """Without a proxy that reads whole requests; the other threads answer meanwhile."""
    calm = health_ms(gunicorn)
    for _ in range(2):
        with ExitStack() as stack:
            for _ in range(6):
                stack.enter_context(closing(opened(gunicorn, secret, "Content-Length: 500"))).sendall(b" ")
            assert health_ms(gunicorn) < 2 * calm + MAX_MS
    with ThreadPoolExecutor(8) as pool:  # every thread is free again
        answers = pool.map(lambda _: ask(gunicorn, "GET", PATH, Authorization=f"Bearer {secret}")[0], range(8))
        assert list(answers) == [200] * 8


@pytest.mark.parametrize("path", [PATH, LOGIN, "/nothing/"])
@pytest.mark.parametrize("length", ["Content-Length: 100000000", "Transfer-Encoding: chunked"])
def test_a_body_that_is_too_large_is_not_taken(asgi, secret, length, path):
    """Before, Django wrote all of it to the disk, and the view then refused it."""
    with closing(opened(asgi, secret, length, path)) as client, ThreadPoolExecutor(1) as pool:
        answer, sent, part = pool.submit(client.recv, 65536), 0, b" " * 65536
        with suppress(OSError):  # the server closes the connection
            while sent < 100_000_000 and not answer.done():
                client.sendall(b"10000\r\n" + part + b"\r\n" if "chunked" in length else part)
                sent += len(part)
        assert answer.result().startswith(b"HTTP/1.1 413")
        assert sent < body_limit(conf.get().payload) + 20_000_000, "what sockets buffer"


@pytest.mark.parametrize("kind", ["asgi", "gunicorn"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity"])
def test_nothing_is_decompressed(request, secret, kind, encoding):
    headers = {"Authorization": f"Bearer {secret}", "Content-Encoding": encoding}
    status, _, told = ask(request.getfixturevalue(kind), "POST", PATH, b"\x1f\x8b", **headers)
    assert (status, told["code"]) == (415, "unsupported_media_type")


def test_ten_thousand_idle_connections(asgi, secret):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = min(10_000, (hard if hard != resource.RLIM_INFINITY else 10**6) - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, many + 500), hard))
    try:
        with ExitStack() as stack:
            calm = health_ms(asgi)
            for _ in range(many):
                stack.enter_context(closing(socket.create_connection(("127.0.0.1", asgi), timeout=60)))
            assert health_ms(asgi) < 2 * calm + MAX_MS
            assert ask(asgi, "GET", PATH, Authorization=f"Bearer {secret}")[0] == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert many >= 10_000 or os.environ.get("CI") is None, "the limit of open files is too low here"
