"""Chains, chords and steps of Celery and DBOS, run by an interpreter that has one of them: prints {name: steps/s}.

    python peer_flows.py celery|dbos        # DATABASE_URL and REDIS_URL name the servers

Celery has two workers of four processes, which wait for tasks. The rate is taken from the first end to the last.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

CHAINS, WIDE, STEPS = 100, 2000, 10

try:
    from celery import Celery, chain, chord
except ImportError:
    Celery = None
else:
    server = os.environ["REDIS_URL"].rpartition("/")[0] + "/9"
    app = Celery("peer_flows", broker=server, backend=server)

    @app.task
    def step(number, *_before):
        return number

    @app.task
    def gather(numbers):
        return len(numbers)


def of_celery():
    """Return the rates of chains of ten, and of one chord."""
    further = [step.s() for _ in range(STEPS - 1)]
    argv = [sys.executable, "-m", "celery", "-A", "peer_flows", "worker", "-c", "4", "-l", "ERROR"]
    workers = [
        subprocess.Popen([*argv, "-n", f"w{n}@h"], cwd=Path(__file__).parent, stdout=sys.stderr) for n in range(2)
    ]
    try:
        while len(app.control.ping(timeout=1) or ()) < len(workers):
            step.delay(0).get(timeout=60)
        return {
            "chains": celery_rate(lambda: [chain(step.s(n), *further).apply_async() for n in range(CHAINS)]),
            "fan": celery_rate(lambda: [chord([step.s(n) for n in range(WIDE)])(gather.s())]),
        }
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(30)


def celery_rate(store):
    """Return steps/s of the workers, from the first end to the last."""
    ends = store()
    for result in ends:
        result.get(timeout=600)
    times = sorted(result.date_done for end in ends for result in results_of(end))
    return (len(times) - 1) / (times[-1] - times[0]).total_seconds()


def results_of(end):
    """Return the results of a chain or a chord."""
    found = []
    while end is not None:
        found += getattr(end, "results", None) or [end]
        end = end.parent
    return found


def of_dbos():
    """Return the rate of workflows of ten steps, through a queue of one process with eight at once."""
    import psycopg  # noqa: PLC0415 - another interpreter has it
    from dbos import DBOS  # noqa: PLC0415

    url = os.environ["DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS peer_dbos")
        connection.execute("CREATE DATABASE peer_dbos")
    config = {"name": "peer", "system_database_url": url.rpartition("/")[0] + "/peer_dbos"}
    DBOS(config=config | {"run_admin_server": False, "log_level": "ERROR"})

    @DBOS.step()
    def one(number):
        return number

    @DBOS.workflow()
    def flow(_number):
        return sum(one(n) for n in range(STEPS))

    DBOS.launch()
    DBOS.register_queue("peer", worker_concurrency=8, polling_interval_sec=0.05)
    DBOS.enqueue_workflow("peer", flow, 0).get_result()
    began = time.perf_counter()
    for handle in [DBOS.enqueue_workflow("peer", flow, n) for n in range(CHAINS)]:
        handle.get_result()
    rate = CHAINS * STEPS / (time.perf_counter() - began)
    DBOS.destroy()
    return {"chains": rate, "steps": rate}


if __name__ == "__main__":
    print(json.dumps(of_celery() if sys.argv[1] == "celery" and Celery else of_dbos()))
