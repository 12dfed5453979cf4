"""PostgreSQL fails over to a standby with asynchronous replication: the last acknowledged commits are gone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import connection, connections

from queue_app.core.states import Status
from queue_app.models import Task
from taskqueue_project.embedded.data_directory import DataDirectory
from tests.integration.faults.arena import Arena, Rows, patient
from tests.integration.faults.network import Network
from tests.integration.faults.run import HEARTBEAT, Run
from tests.integration.processes import lines
from tests.support.proxy import Proxy
from tests.support.waiting import let_pass, until


class Standby(Rows):
    """A copy of another server that follows it."""

    primary: Rows
    way: Proxy  # to the primary

    def url(self) -> str:
        """Return the address for clients, with the password of the primary."""
        return self.primary.url().replace(f":{self.primary.port}/", f":{self.port}/")

    def prepare(self) -> None:
        """Copy the primary."""
        url = self.primary.url().replace(f":{self.primary.port}/", f":{self.way.port}/").rpartition("/")[0]
        self.directory.mkdir(mode=0o700)
        options = self.spawn_options()
        if "user" in options:
            os.chown(self.directory, options["user"], options["group"])
        copy = [self.binaries / "pg_basebackup", "-d", f"{url}/postgres", "-D", self.directory, "-R", "-c", "fast"]
        subprocess.run(copy, check=True, **options)

    def has(self, tasks: int) -> bool:
        """Whether it has received so many tasks."""
        with psycopg.connect(self.url(), autocommit=True) as own:
            return bool(own.execute("SELECT count(*) >= %s FROM queue_app_task", [tasks]).fetchone() == (True,))

    def promote(self) -> None:
        """Make it take writes."""
        with psycopg.connect(self.url(), autocommit=True) as own:
            own.execute("SELECT pg_promote()")


@contextmanager
def standby_of(arena: Arena, way: Proxy) -> Iterator[Standby]:
    """Start a standby; at the end, work on the primary goes on."""
    parameters = connections["default"].settings_dict
    server = Standby(DataDirectory(arena.folder / f"standby-{time.monotonic_ns()}"), durable=False)
    server.primary, server.way = arena.postgres, way
    try:
        server.start()
        server.wait_until_ready()
        yield server
    finally:
        connection.close()
        parameters["PORT"] = arena.postgres.port
        server.stop()
        if not arena.postgres.is_running():
            arena.start_postgres()


def take_over(run: Run, standby: Standby, network: Network) -> None:
    """Kill the primary, promote the standby, and lead this process and the workers there."""
    run.arena.kill_postgres()
    standby.promote()
    connections["default"].settings_dict["PORT"] = standby.port
    network.rows.target = standby.port
    connection.close()


def fail_over(run: Run) -> None:
    """PostgreSQL fails over to a standby that lacks the last second of acknowledged commits"""
    way = run.on_exit(Proxy(run.arena.postgres.port))
    standby = run.on_exit(standby_of(run.arena, way))
    network = Network.of(run)
    env = network.env(run.arena)
    run.load()
    run.fleet.scheduler(**env)
    for options in (("--processes", "2", "--concurrency", "3"), ("--concurrency", "4")):
        run.fleet.worker(*options, heartbeat=HEARTBEAT, **env)
    next(run.moments(1))
    way.forget()
    run.load(run.count // 10)
    let_pass(1)  # so much is lost
    with run.watch.away():
        take_over(run, standby, network)
    promoted_at = time.monotonic()
    # Tasks whose ends were lost execute again by their rows, until their workers give them back. No function runs for
    # them, and the index knows that their slots are free.
    run.not_capped = set(
        patient(lambda: list(Task.objects.filter(status=Status.EXECUTING).values_list("id", flat=True)))
    )
    kept = set(patient(lambda: list(Task.objects.values_list("id", flat=True))))
    gone = [task_id for task_id, *_ in run.order if task_id not in kept]
    run.order = [each for each in run.order if each[0] in kept]
    run.measured["acknowledged tasks that the failover lost"] = len(gone)
    assert gone, "the standby lacks some"
    run.flowing_again("flowing after a failover of PostgreSQL (s)", promoted_at)
    let_pass(max(0.0, promoted_at + 3 - time.monotonic()))
    begun = len(lines(run.log))
    until(lambda: run.ended() >= len(run.order), "all that is left ends", 120)
    wrong = {f"+{run.texts[task_id]}" for task_id in gone} & set(lines(run.log)[begun:])
    run.broken += [f"ran although its row is gone: {line}" for line in wrong]
