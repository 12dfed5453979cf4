"""The disk of a server is full for a while. A small file system in memory stands for it, which only root may mount."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.db import DatabaseError, connection

from queue_app.exceptions import TaskQueueError
from queue_app.services.notify import index
from queue_app.services.repair.rebuild import rebuild
from taskqueue_project.embedded.server import Server
from tests.integration.faults.arena import patient
from tests.integration.faults.run import Run
from tests.integration.faults.starts import disturbed, start
from tests.integration.faults.stepping import Skipped
from tests.support.waiting import turns

ROOM_MB = 48


@contextmanager
def small_disk(server: Server) -> Iterator[Path]:
    """Move the files of a server to a file system with little room, and back at the end."""
    if os.geteuid() != 0:
        raise Skipped("only root may mount a small file system")
    place, aside = server.directory, server.directory.with_name("aside")
    size = int(subprocess.run(["du", "-sm", place], capture_output=True, check=True).stdout.split()[0])
    connection.close()
    server.stop()
    place.rename(aside)
    place.mkdir()
    shutil.copystat(aside, place)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size + ROOM_MB}m", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        if not mounted:
            raise Skipped("a file system cannot be mounted here")
        subprocess.run(["cp", "-a", f"{aside}/.", place], check=True)
        server.start()
        server.wait_until_ready()
        yield place
    finally:
        connection.close()
        server.stop()
        if mounted:
            subprocess.run(["umount", place], check=True)
        place.rmdir()
        aside.rename(place)
        server.start()
        server.wait_until_ready()


@contextmanager
def full(place: Path) -> Iterator[None]:
    """Fill the file system for a block."""
    filler = place / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        filler.unlink()


def fill_disk_of_postgres(run: Run, seconds: float = 10) -> None:
    """Fill the disk of PostgreSQL for 10 s while callers enqueue"""
    place = run.on_exit(small_disk(run.arena.postgres))
    run.load()
    start(run)
    refused = 0
    for _ in run.moments(1):
        with run.watch.away():
            with full(place):
                for _ in turns(seconds, pause=0.1):
                    try:
                        run.load(20)
                    except (DatabaseError, TaskQueueError):
                        refused += 1
                        connection.close()
            if (
                not run.arena.postgres.is_running()
            ):  # it ends if it cannot write its log; a service manager starts it again
                run.arena.start_postgres()
        run.flowing_again("flowing after the disk had room again (s)", time.monotonic())
    run.measured["enqueues that PostgreSQL refused without room"] = refused


def fill_disk_of_valkey(run: Run, seconds: float = 10) -> None:
    """Fill the disk of Valkey, which keeps an append-only file, for 10 s while callers enqueue"""
    place = run.on_exit(small_disk(run.arena.valkey))
    run.arena.keep_append_only_file()
    index.breaker.reset()
    patient(rebuild)
    for _ in disturbed(run, 1, "the disk had room again"):
        with run.watch.away(), full(place):
            for _ in turns(seconds, pause=0.1):
                run.load(5)
