"""Faults of the servers and of the network: each disturbs a run, and leaves it to finish by itself."""

from __future__ import annotations

import time

from queue_app.services.notify import index as notify
from tests.integration.faults.arena import patient
from tests.integration.faults.run import Run
from tests.integration.faults.starts import disturbed, start
from tests.support.waiting import let_pass, turns

# -- the index -------------------------------------------------------------------------


def flush(run: Run) -> None:
    """Empty the index at random moments."""
    for _ in disturbed(run, 5, "FLUSHALL"):
        run.arena.flush()


def flush_every_second(run: Run, seconds: int = 60) -> None:
    """Empty the index every second for a while, with work for all of that time."""
    start(run)
    for _ in turns(seconds, pause=1):
        missing = 400 - (len(run.order) - run.ended())
        if missing > 0:
            run.load(missing)
        run.arena.flush()
        run.measured["flushes"] = run.measured.get("flushes", 0) + 1


def restart_valkey(run: Run) -> None:
    """Kill Valkey, which keeps nothing, and start it again."""
    for _ in disturbed(run, 3, "a restart of Valkey"):
        run.arena.kill_valkey()
        run.arena.start_valkey()


def valkey_away(run: Run, seconds: float = 10) -> None:
    """Take Valkey away for a while; callers enqueue as if nothing had happened."""
    run.load()
    start(run)
    run.reach(run.chance.uniform(0.05, 0.5))
    run.arena.kill_valkey()
    errors, slowest = 0, 0.0
    before = len(run.order)
    for _ in turns(seconds, pause=0.01):  # a hundred a second, not as many as fit
        began = time.monotonic()
        try:
            run.one()
        except Exception as error:  # noqa: BLE001 - what the caller would see
            errors += 1
            print(f"enqueue: {error!r}")
        slowest = max(slowest, time.monotonic() - began)
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


def pause_valkey(run: Run, seconds: float = 10) -> None:
    """Let Valkey keep all commands waiting for a while (CLIENT PAUSE), and stop it as long (SIGSTOP)."""
    for number in disturbed(run, 2, "Valkey went on"):
        with run.watch.away():
            if number:
                with run.arena.stopped(run.arena.valkey):
                    let_pass(seconds)
            else:
                run.arena.pause_valkey(seconds)
                let_pass(seconds)


# -- the rows --------------------------------------------------------------------------


def restart_postgres(run: Run) -> None:
    """Shut PostgreSQL down in its immediate mode, and start it again."""
    for _ in disturbed(run, 2, "a restart of PostgreSQL"):
        run.arena.restart_postgres_at_once()


def stop_postgres(run: Run, seconds: float = 10) -> None:
    """Stop all processes of PostgreSQL for a while (SIGSTOP), and let them go on."""
    for _ in disturbed(run, 2, "PostgreSQL went on"):
        with run.watch.away(), run.arena.stopped(run.arena.postgres):
            let_pass(seconds)


def use_up_connections(run: Run, seconds: float = 20) -> None:
    """Cut all sessions of PostgreSQL, and let others take every connection that it allows for a while."""
    for _ in disturbed(run, 1, "connections became free"):
        with run.watch.away(), run.arena.connections_taken():
            let_pass(seconds)


def cut_connections(run: Run) -> None:
    """End every session of PostgreSQL, several times."""
    for _ in disturbed(run, 4, "all connections were cut"):
        cut = patient(run.arena.cut_connections)
        run.measured["connections cut"] = run.measured.get("connections cut", 0) + cut
