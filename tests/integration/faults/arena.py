"""Servers that the faults alone use, so that they may be flushed, killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psutil
import psycopg
import redis

from taskqueue_project.embedded.data_directory import DataDirectory
from taskqueue_project.embedded.postgres import Postgres
from taskqueue_project.embedded.server import Server
from taskqueue_project.embedded.valkey import Valkey
from tests.integration.faults.stepping import Clock
from tests.integration.processes import ROOT, SETTINGS
from tests.support.waiting import until


class Stepping(Server):
    """A server whose clock may step."""

    clock: Clock | None = None

    def spawn_options(self) -> dict[str, Any]:
        """Preload the clock."""
        return super().spawn_options() | ({"env": os.environ | self.clock.env} if self.clock else {})


class Rows(Stepping, Postgres):
    """A PostgreSQL whose clock may step."""


class Places(Stepping, Valkey):
    """A Valkey whose clock may step."""


class Arena:
    """One PostgreSQL and one Valkey, each on a port that it keeps over restarts; Valkey keeps nothing else."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o711)  # PostgreSQL runs as another user when we are root
        self.folder = folder
        self.postgres = Rows(DataDirectory(folder / "rows"), durable=False)
        self.valkey = Places(DataDirectory(folder / "index"), durable=False)
        self._client: redis.Redis | None = None

    def __enter__(self) -> Self:
        """Start both and create the tables."""
        try:
            for server in (self.postgres, self.valkey):
                _start(server)
            self._client = redis.Redis.from_url(self.valkey.url())
            subprocess.run(
                [sys.executable, ROOT / "manage.py", "migrate", "--verbosity", "0"],
                env=self.env,
                check=True,
                timeout=120,
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop both."""
        if self._client is not None:
            self._client.close()
        for server in (self.valkey, self.postgres):
            server.stop()

    @property
    def env(self) -> dict[str, str]:
        """The environment for processes that shall work on these servers."""
        return os.environ | {
            "DATABASE_URL": self.postgres.url(),
            "REDIS_URL": self.valkey.url(),
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "PYTHONPATH": str(ROOT),
        }

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let this process work on these servers too, for the length of a block."""
        from django.conf import settings  # noqa: PLC0415 - needs the addresses
        from django.db import connections  # noqa: PLC0415
        from django.test import override_settings  # noqa: PLC0415

        url = urlsplit(self.postgres.url())
        address = {"HOST": url.hostname, "PORT": url.port, "USER": url.username, "PASSWORD": url.password}
        address |= {"NAME": url.path.strip("/")}
        caches = {**settings.CACHES, "faults": {**settings.CACHES["default"], "LOCATION": self.valkey.url()}}
        connections.close_all()
        parameters: dict[str, Any] = connections["default"].settings_dict
        before = dict(parameters)
        parameters.update(address)
        try:
            with override_settings(CACHES=caches, TASKQUEUE={**settings.TASKQUEUE, "REDIS_ALIAS": "faults"}):
                yield
        finally:
            connections.close_all()
            parameters.clear()
            parameters.update(before)

    # -- faults ------------------------------------------------------------------

    def flush(self) -> None:
        """Empty the index."""
        assert self._client is not None
        self._client.flushall()

    def kill_valkey(self) -> None:
        """End Valkey as a crash of its machine does; it keeps nothing."""
        _kill(self.valkey, signal.SIGKILL)

    def start_valkey(self) -> None:
        """Start it again, empty."""
        _start(self.valkey)

    def kill_postgres(self) -> None:
        """End PostgreSQL as a crash of its machine does: all its processes at once."""
        process = self.postgres.process
        assert process is not None
        for each in [*psutil.Process(process.pid).children(), psutil.Process(process.pid)]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(30)

    def stop_postgres(self) -> None:
        """Shut PostgreSQL down in its immediate mode."""
        _kill(self.postgres, signal.SIGQUIT)

    def start_postgres(self) -> None:
        """Start it again; it recovers from its log."""
        _start(self.postgres)

    def restart_postgres_at_once(self) -> None:
        """Stop PostgreSQL and start it."""
        self.stop_postgres()
        self.start_postgres()

    @contextmanager
    def own_clock(self, server: Rows | Places) -> Iterator[Clock]:
        """Restart a server with a clock that may step, and without it at the end."""
        clock = server.clock = Clock(server.data.root / "clock")
        try:
            self._restart(server)
            yield clock
        finally:
            server.clock = None
            self._restart(server)

    @staticmethod
    def _restart(server: Server) -> None:
        from django.db import connection  # noqa: PLC0415 - needs the addresses

        connection.close()
        _kill(server, signal.SIGQUIT if isinstance(server, Postgres) else signal.SIGKILL)
        _start(server)

    @contextmanager
    def stopped(self, server: Server) -> Iterator[None]:
        """Stop all processes of a server for a block (SIGSTOP): it keeps its connections and answers nothing."""
        assert server.process is not None
        processes = [psutil.Process(server.process.pid)]
        processes += processes[0].children(recursive=True)
        try:
            for each in processes:
                each.suspend()
            yield
        finally:
            for each in processes:
                with suppress(psutil.NoSuchProcess):
                    each.resume()

    @contextmanager
    def connections_taken(self) -> Iterator[None]:
        """Take every connection that PostgreSQL allows away from everyone else, for a block."""
        taken: list[psycopg.Connection] = []
        stop, full = threading.Event(), threading.Event()

        def take() -> None:
            while not stop.is_set():
                try:
                    url = f"{self.postgres.url()}?application_name=taker"
                    taken.append(psycopg.connect(url, connect_timeout=5, autocommit=True))
                except psycopg.OperationalError:
                    full.set()

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            assert full.wait(60)
            taken[0].execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND application_name <> 'taker'"
            )
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            for each in taken:
                each.close()

    def keep_append_only_file(self) -> None:
        """Let Valkey write every change to its disk, until it is started anew."""
        assert self._client is not None
        self._client.config_set("appendonly", "yes")

    def limit_memory(self, size: int) -> None:
        """Let Valkey refuse writes beyond so many bytes; 0: none."""
        assert self._client is not None
        self._client.config_set("maxmemory", size)

    def pause_valkey(self, seconds: float) -> None:
        """Let Valkey keep all commands waiting (CLIENT PAUSE)."""
        assert self._client is not None
        self._client.execute_command("CLIENT", "PAUSE", int(seconds * 1000), "ALL")

    def cut_connections(self) -> int:
        """End every other session of the database; return how many there were."""
        from django.db import connection  # noqa: PLC0415 - needs the addresses

        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return int(cursor.fetchone()[0])


def _start(server: Server) -> None:
    server.start()
    server.wait_until_ready()


def _kill(server: Server, number: int) -> None:
    assert server.process is not None
    server.process.send_signal(number)
    server.process.wait(30)


def patient[T](question: Callable[[], T]) -> T:
    """Ask the rows until they answer: PostgreSQL may be away, or may have cut our connection too."""
    from django.db import InterfaceError, OperationalError, connection  # noqa: PLC0415 - needs the addresses

    answers: list[T] = []

    def ask() -> bool:
        try:
            answers.append(question())
        except (OperationalError, InterfaceError):
            connection.close()
            return False
        return True

    until(ask, "PostgreSQL answers")
    return answers[0]
