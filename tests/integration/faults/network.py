"""Faults of the network between each pair of processes: latency, loss, half-open connections, partitions that heal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.integration.faults.arena import Arena
from tests.integration.faults.run import HEARTBEAT, Run
from tests.integration.processes import Process
from tests.support.proxy import HOST, Proxy
from tests.support.waiting import let_pass


@dataclass(frozen=True)
class Network:
    """The way of one group of processes to both servers."""

    rows: Proxy
    index: Proxy

    @classmethod
    def of(cls, run: Run, **options: Any) -> Network:
        """Return a network of its own for some processes of a run."""
        arena = run.arena
        rows = run.on_exit(Proxy(arena.postgres.port, **options))
        return cls(rows, run.on_exit(Proxy(arena.valkey.port, **options)))

    def env(self, arena: Arena) -> dict[str, str]:
        """Return the environment that leads processes through it."""
        urls = {"DATABASE_URL": (arena.postgres.url(), self.rows), "REDIS_URL": (arena.valkey.url(), self.index)}
        return {
            name: url.replace(f"{HOST}:{proxy.target}/", f"{proxy.host}:{proxy.port}/")
            for name, (url, proxy) in urls.items()
        }


def slow_network(run: Run) -> None:
    """A slow network between the workers and both servers at times passes nothing on for some seconds"""
    run.load()
    network = Network.of(run, delay=0.002)
    run.fleet.scheduler()
    _supervised(run, network)
    for number, _ in enumerate(run.moments(4)):
        proxy = (network.rows, network.index)[number % 2]
        with run.watch.away():
            proxy.stall()
            let_pass(run.chance.uniform(1, 5))  # three silent seconds are a death
            proxy.resume()
        run.flowing_again("flowing after a stalled network (s)", time.monotonic())
    assert network.rows.passed > 0
    assert network.index.passed > 0
    run.reach(1)


def latency(run: Run) -> None:
    """Each message between any process and a server takes 100 ms, and 5 % of the packets are lost"""
    run.count = max(50, run.count // 10)
    run.load()
    network = Network.of(run, delay=0.1, loss=0.05)
    run.fleet.scheduler(**network.env(run.arena))
    _supervised(run, network)
    run.reach(1)


def half_open(run: Run) -> None:
    """Connections of workers and scheduler are forgotten on the way: each side waits for the other"""
    run.load()
    near, far = Network.of(run), Network.of(run)
    run.fleet.scheduler(**near.env(run.arena))
    _supervised(run, far)
    run.fleet.worker("--concurrency", "4", heartbeat=HEARTBEAT)
    for number, _ in enumerate(run.moments(3)):
        (far.index, near.index, far.rows)[number].forget()
        run.flowing_again("flowing after connections were forgotten (s)", time.monotonic())


def partition(run: Run) -> None:
    """Each pair of processes is cut off for longer than a worker may be silent, one pair after the other"""
    run.load()
    scheduler, workers = Network.of(run), Network.of(run)
    run.fleet.scheduler(**scheduler.env(run.arena))
    _supervised(run, workers)
    pairs = [scheduler.rows, scheduler.index, workers.rows, workers.index]
    run.chance.shuffle(pairs)
    for proxy, _ in zip(pairs, run.moments(len(pairs)), strict=True):
        with run.watch.away():
            proxy.stall()
            let_pass(6)  # twice the budget of a heartbeat of a second
            proxy.resume()
        run.flowing_again("flowing after a partition healed (s)", time.monotonic())


def _supervised(run: Run, network: Network) -> Process:
    options = ("--processes", "2", "--concurrency", "5")
    return run.fleet.worker(*options, heartbeat=HEARTBEAT, **network.env(run.arena))


FAULTS: list[Callable[[Run], None]] = [slow_network, latency, half_open, partition]
