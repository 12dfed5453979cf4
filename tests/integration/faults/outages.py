"""Faults of the servers and of the network: each disturbs a run, and leaves it to finish by itself."""

from __future__ import annotations

import threading
import time

from queue_app.services.notify import index as notify
from tests.integration.faults.arena import patient
from tests.integration.faults.run import HEARTBEAT, Run
from tests.integration.faults.starts import start
from tests.support.proxy import Proxy

# -- the index -------------------------------------------------------------------------


def flush(run: Run) -> None:
    """Empty the index at random moments."""
    run.load()
    start(run)
    for _ in run.moments(5):
        run.arena.flush()
        run.flowing_again("flowing after FLUSHALL (s)", time.monotonic())


def flush_every_second(run: Run, seconds: int = 60) -> None:
    """Empty the index every second for a while, with work for all of that time."""
    start(run)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        missing = 400 - (len(run.order) - run.ended())
        if missing > 0:
            run.load(missing)
        time.sleep(1)  # the fault itself
        run.arena.flush()
        run.measured["flushes"] = run.measured.get("flushes", 0) + 1


def restart_valkey(run: Run) -> None:
    """Kill Valkey, which keeps nothing, and start it again."""
    run.load()
    start(run)
    for _ in run.moments(3):
        run.arena.kill_valkey()
        run.arena.start_valkey()
        run.flowing_again("flowing after a restart of Valkey (s)", time.monotonic())


def valkey_away(run: Run, seconds: float = 10) -> None:
    """Take Valkey away for a while; callers enqueue as if nothing had happened."""
    run.load()
    start(run)
    run.reach(run.chance.uniform(0.05, 0.5))
    run.arena.kill_valkey()
    until, errors, slowest = time.monotonic() + seconds, 0, 0.0
    before = len(run.order)
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            run.one()
        except Exception as error:  # noqa: BLE001 - what the caller would see
            errors += 1
            print(f"enqueue: {error!r}")
        slowest = max(slowest, time.monotonic() - began)
        threading.Event().wait(0.01)  # a hundred a second, not as many as fit
    run.arena.start_valkey()
    back_at = time.monotonic()
    run.flowing_again("flowing after Valkey came back (s)", back_at)
    notify.breaker.reset()
    run.measured |= {
        "enqueued while Valkey was down": len(run.order) - before,
        "enqueue errors while Valkey was down": errors,
        "slowest enqueue while Valkey was down (s)": slowest,
    }
    assert not errors
    assert len(run.order) > before


# -- the rows --------------------------------------------------------------------------


def restart_postgres(run: Run) -> None:
    """Shut PostgreSQL down in its immediate mode, and start it again."""
    run.load()
    start(run)
    for _ in run.moments(2):
        run.arena.restart_postgres_at_once()
        run.flowing_again("flowing after a restart of PostgreSQL (s)", time.monotonic())


def cut_connections(run: Run) -> None:
    """End every session of PostgreSQL, several times."""
    run.load()
    start(run)
    for _ in run.moments(4):
        cut = patient(run.arena.cut_connections)
        run.measured["connections cut"] = run.measured.get("connections cut", 0) + cut
        run.flowing_again("flowing after all connections were cut (s)", time.monotonic())


def slow_network(run: Run) -> None:
    """Put a slow network between the workers and both servers, which at times passes nothing on."""
    run.load()
    arena = run.arena
    with Proxy(arena.postgres.port, delay=0.002) as rows, Proxy(arena.valkey.port, delay=0.002) as index:
        env = {
            "DATABASE_URL": arena.postgres.url().replace(f":{rows.target}/", f":{rows.port}/"),
            "REDIS_URL": arena.valkey.url().replace(f":{index.target}/", f":{index.port}/"),
        }
        run.fleet.scheduler()
        workers = [run.fleet.worker("--processes", "2", "--concurrency", "5", heartbeat=HEARTBEAT, **env)]
        for number, _ in enumerate(run.moments(4)):
            proxy = (rows, index)[number % 2]
            proxy.stall()
            time.sleep(run.chance.uniform(1, 5))  # the fault itself; three silent seconds are a death
            proxy.resume()
            run.flowing_again("flowing after a stalled network (s)", time.monotonic())
        assert rows.passed > 0
        assert index.passed > 0
        run.reach(1)
        for worker in workers:
            worker.kill()
