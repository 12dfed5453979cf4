"""A worker on a machine of its own: a network namespace, whose packets the network can drop without a word."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from tests.integration.faults.network import Network
from tests.integration.faults.run import HEARTBEAT, Run
from tests.integration.faults.stepping import Skipped
from tests.support.waiting import until

HERE, THERE = "10.213.77.1", "10.213.77.2"
#: The address of no interface: packets to it are lost silently.
NOWHERE = "02:00:00:00:00:01"
#: The time after which a connection without any answer breaks, and room for a busy machine.
GIVEN_UP_SECONDS = 40.0


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Machine:
    """A network namespace behind a pair of interfaces."""

    def __init__(self) -> None:
        self.name = f"tq{os.getpid()}"

    def __enter__(self) -> Self:
        """Make it."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise Skipped("only root may make a network namespace, with ip (Debian: iproute2)")
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        except subprocess.CalledProcessError as error:
            self.__exit__()
            raise Skipped(f"a network namespace cannot be made here: {error.stderr.decode().strip()}") from None
        for inside, device, address in ((False, self.name, HERE), (True, "eth0", THERE)):
            where = ("-n", self.name) if inside else ()
            _ip(*where, "addr", "add", f"{address}/30", "dev", device)
            _ip(*where, "link", "set", device, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it; the pair of interfaces goes with it."""
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let the processes that this thread starts run on the machine."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        os.setns(there, os.CLONE_NEWNET)
        try:
            yield
        finally:
            os.setns(home, os.CLONE_NEWNET)
            os.close(home)
            os.close(there)

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Drop all packets to it and from it for a block; neither side hears of it."""
        ways = ((HERE, ("-n", self.name), "eth0"), (THERE, (), self.name))
        for address, where, device in ways:
            _ip(*where, "neigh", "replace", address, "lladdr", NOWHERE, "dev", device, "nud", "permanent")
        try:
            yield
        finally:
            for address, where, device in ways:
                _ip(*where, "neigh", "del", address, "dev", device)

    def connections(self, port: int) -> int:
        """Return how many established connections to a port it has."""
        command = ["ip", "netns", "exec", self.name, "cat", "/proc/net/tcp"]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[1:]
        found = [line.split()[2:4] for line in lines]
        return sum(remote.endswith(f":{port:04X}") and state == "01" for remote, state in found)


def machine_vanishes(run: Run) -> None:
    """Drop every packet of a worker's machine until its connections break; the network forgets them, and comes back"""
    run.count = max(50, run.count // 10)
    machine = run.on_exit(Machine())
    network = Network.of(run, host=HERE)
    run.load()
    run.fleet.scheduler()
    with machine.entered():
        options = ("--processes", "2", "--concurrency", "2")
        worker = run.fleet.worker(*options, heartbeat=HEARTBEAT, **network.env(run.arena))
    for _ in run.moments(1):
        with run.watch.away():
            with machine.cut_off():
                began = time.monotonic()
                assert machine.connections(network.rows.port) > 0
                until(lambda: not machine.connections(network.rows.port), "connections break", GIVEN_UP_SECONDS)
                run.measured["connections to PostgreSQL given up after (s)"] = time.monotonic() - began
                network.rows.forget()
                network.index.forget()
            began = time.monotonic()
        run.flowing_again("flowing after a machine came back (s)", began)
    run.reach(1)
    assert worker.alive
