"""What an idle worker and an idle scheduler cost, and how often they ask the servers."""

from contextlib import ExitStack

import psutil
from bench import Table, process
from django.db import connection
from django_redis import get_redis_connection
from growth import processor_seconds

from queue_app.models import Schedule
from queue_app.schedules.edit import create_schedule
from tests.support.waiting import let_pass

SECONDS = 20
SCHEDULES = 100
SETTLE_SECONDS = 16  # ten seconds after it began to lead, a scheduler does overdue upkeep once


def run(table: Table) -> None:
    """Watch one process of each kind for twenty seconds without work."""
    watch(table, "worker", "≤ 0.1 %", "≤ one in 5 s of each", "runworker")
    # It looks at the index and at the rows every second, and compares them every five.
    watch(table, "scheduler", "≤ 0.4 %", "≤ 3 a second of each", "runscheduler")
    watch(table, "worker with a scheduler", "≤ 0.5 %", "≤ 3.5 a second of each", "runworker", "--with-scheduler")
    for number in range(SCHEDULES):
        create_schedule(f"hourly {number}", {"task_type": "bench_app.tasks.noop", "args": [1], "every": 3600})
    watch(table, f"scheduler with {SCHEDULES} schedules", "≤ 0.4 %", "≤ 3 a second of each", "runscheduler")
    Schedule.objects.all().delete()
    _watch_two(table)


def _watch_two(table: Table) -> None:
    """Watch two workers with schedulers, one of which leads, and both servers."""
    with ExitStack() as stack:
        pids = [stack.enter_context(process("runworker", "--with-scheduler")).pid for _ in range(2)]
        let_pass(SETTLE_SECONDS)
        used = processor_seconds(*pids)
        let_pass(SECONDS)
        used = processor_seconds(*pids) - used
    what = "two idle workers with schedulers, and both servers"
    table.add(f"{what}, processor time in {SECONDS} s", "≤ 0.12 s", f"{used:.2f} s")


def watch(table: Table, kind: str, share: str, requests: str, *command: str) -> None:
    """Watch one process without work."""
    client = get_redis_connection("default")
    with process(*command) as child:
        let_pass(SETTLE_SECONDS)
        watched = psutil.Process(child.pid)
        _autovacuum(on=False)  # its transactions would be counted too
        client.config_resetstat()
        before, commits = sum(watched.cpu_times()[:2]), _commits()
        let_pass(SECONDS)
        cpu = sum(watched.cpu_times()[:2]) - before
        scripts = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
        commits = _commits() - commits - 1  # the question itself
        _autovacuum(on=True)
    table.add(f"idle {kind}, share of a core over {SECONDS} s", share, f"{cpu / SECONDS:.2%}")
    table.add(f"idle {kind}, requests in {SECONDS} s: scripts, transactions", requests, f"{scripts}, {commits}")


def _autovacuum(*, on: bool) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER SYSTEM SET autovacuum = {'on' if on else 'off'}")
        cursor.execute("SELECT pg_reload_conf()")
    let_pass(1)


def _commits() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_stat_clear_snapshot(), xact_commit FROM pg_stat_database WHERE datname = current_database()"
        )
        return int(cursor.fetchone()[1])
