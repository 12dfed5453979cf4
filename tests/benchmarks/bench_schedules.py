"""Schedules: two hours of simulated time under faults, and the lateness of a real scheduler with 10 000 of them."""

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from bench import Table, process, reset
from django.db import connection, transaction

from queue_app.models import Schedule, ScheduleTick, Task
from queue_app.services.schedules.edit import create_schedule
from queue_app.services.schedules.tick import run_due

SCHEDULES = 10_000
HOURS = 2
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CRONS = ("*/10 * * * *", "0 * * * *", "7,37 * * * *", "30 12-14 * * *", "@hourly", "*/30 8-18 * * *")
REAL_SECONDS = 60


class Killed(Exception):
    """The scheduler dies before its commit."""


def run(table: Table) -> None:
    """Run the simulation, then a real scheduler."""
    _simulate(table)
    _measure_lateness(table)


def _make(number: int, chance: random.Random, now: datetime) -> None:
    for at in range(number):
        when = (
            {"cron": chance.choice(CRONS), "zone": chance.choice(["UTC", "Europe/Berlin", "Australia/Lord_Howe"])}
            if at % 2
            else {"every": chance.choice([600, 900, 1800]), "anchor": NOON + timedelta(seconds=chance.randrange(1800))}
        )
        values = {"task_type": "bench_app.tasks.noop", "args": [at], "catch_up": "all", "catch_up_limit": 1000, **when}
        create_schedule(f"schedule {at}", values, now=now)


def _simulate(table: Table) -> None:
    """Let three schedulers look every second of two hours; any of them dies, freezes, or looks at the same time."""
    reset()
    Schedule.objects.all().delete()
    chance = random.Random(1)
    number, end = table.sized(SCHEDULES), NOON + timedelta(hours=HOURS)
    _make(number, chance, NOON)
    expected = Counter()
    for schedule in Schedule.objects.all():
        instants = schedule.recurrence.instants_after(NOON)
        expected.update((schedule.pk, instant) for instant in takewhile(lambda instant: instant <= end, instants))
    killed, looks = [0], [0]

    def look(now: datetime, fate: str) -> None:
        try:
            with suppress(Killed), transaction.atomic():
                while run_due(now=now):
                    looks[0] += 1
                if fate == "killed":
                    killed[0] += 1
                    raise Killed
        finally:
            if threading.current_thread() is not threading.main_thread():
                connection.close()

    began = time.perf_counter()
    second = NOON
    while second < end + timedelta(seconds=5):
        second += timedelta(seconds=chance.choice([1, 1, 1, 1, 20]))  # no scheduler for a while
        fate = chance.choice(["alone", "alone", "alone", "killed", "doubled"]) if second < end else "alone"
        now = second - timedelta(seconds=chance.choice([0, 0, 0, 45]))  # one that froze after it read the clock
        if fate == "doubled":
            others = [
                threading.Thread(target=look, args=(second, chance.choice(["alone", "killed"]))) for _ in range(2)
            ]
            for other in others:
                other.start()
            for other in others:
                other.join()
        else:
            look(now, fate)
    look(end + timedelta(seconds=30), "alone")
    seconds = time.perf_counter() - began
    recorded = Counter(
        ScheduleTick.objects.filter(task_id__isnull=False, instant__lte=end).values_list("schedule_id", "instant")
    )
    late = sorted(ScheduleTick.objects.filter(instant__lte=end).values_list("late_seconds", flat=True))
    tasks = Task.objects.filter(id__in=ScheduleTick.objects.filter(instant__lte=end).values("task_id")).count()
    table.add("ticks expected, in two simulated hours", "-", f"{expected.total():,} of {number:,} schedules")
    table.add("ticks recorded with a task; missing; beyond", "all; 0; 0",
              f"{recorded.total():,}; {(expected - recorded).total()}; {(recorded - expected).total()}")  # fmt: skip
    table.add("tasks of these ticks; tasks in all", "the same", f"{tasks:,}; {Task.objects.count():,}")
    table.add("schedulers killed before their commit", "-", f"{killed[0]:,}")
    table.add("simulated lateness: p50, p99, longest", "-",
              f"{late[len(late) // 2]:.0f}, {late[int(len(late) * 0.99)]:.0f}, {late[-1]:.0f} s")  # fmt: skip
    table.add("ticks stored a second, all in all", "-", f"{recorded.total() / seconds:,.0f}")


def _measure_lateness(table: Table) -> None:
    """Run a real scheduler with schedules that tick at random moments, and with some at the full minute."""
    reset()
    ScheduleTick.objects.all().delete()
    Schedule.objects.all().delete()
    chance, number = random.Random(2), table.sized(SCHEDULES)
    for at in range(number):
        anchor = NOON + timedelta(seconds=chance.random() * 600)
        values = {"task_type": "bench_app.tasks.noop", "args": [at], "every": 600, "anchor": anchor}
        create_schedule(f"schedule {at}", values)
    with process("runscheduler"):
        time.sleep(15)
        since = datetime.now(UTC)
        time.sleep(REAL_SECONDS)
    late = sorted(ScheduleTick.objects.filter(at__gte=since).values_list("late_seconds", flat=True))
    table.add(f"real scheduler, {number:,} schedules, ticks in {REAL_SECONDS} s", "-", f"{len(late):,}")
    table.add("lateness: p50, p99, longest", "p99 ≤ 0.2 s",
              f"{late[len(late) // 2]:.3f}, {late[int(len(late) * 0.99)]:.3f}, {late[-1]:.3f} s")  # fmt: skip
