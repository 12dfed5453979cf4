"""The index built anew from a million queued rows, by a process of its own: first claim, time, memory.

With ``TEN=1`` also from ten million, which takes some minutes.
"""

import os
import subprocess
import sys
import time
import uuid
from contextlib import suppress

import psutil
from bench import ROOT, Table, analyze, fill, reset
from django.db import connection
from django_redis import get_redis_connection
from growth import MB, processor_seconds

from queue_app.exceptions import IndexNotReady, UnknownProfile
from queue_app.index import Profile, get_index
from queue_app.models import IndexGeneration, Task
from queue_app.services.lifecycle.claim import claim, give_back
from queue_app.sql import stats
from tests.support.waiting import let_pass

LANES = (10, 5_000)


def run(table: Table) -> None:
    """Empty Redis and rebuild: with few lanes, and with many."""
    n = table.sized(1_000_000)
    cases = [(LANES[0], 1), (table.sized(LANES[1]), 1)]
    if "TEN" in os.environ:
        cases.append((LANES[0], 10))
    for lanes, times in cases:
        reset()
        fill(n, types=lanes)
        _multiply(times)
        analyze()
        redis = get_redis_connection("default")
        redis.execute_command("FLUSHDB", "SYNC")  # else its memory is given back later, and counts as used before
        before = redis.info("memory")["used_memory"]
        peak, spent, first = _rebuild()
        used = redis.info("memory")["used_memory"] - before
        seconds = stats.read().rebuild_seconds
        waiting = sum(redis.zcard(key) for key in redis.scan_iter(match="*:lane:*", count=1000))
        assert waiting == n * times, f"{waiting} of {n * times} are in the index"
        what = f"rebuild of the index from {n * times:,} queued rows in {lanes:,} lanes"
        table.add(what, "< 60 s", f"{seconds:.1f} s")
        table.add("the same: until the first claim", "≤ 2 s", f"{first:.2f} s")
        table.add("the same: processor time of the process and both servers", "-", f"{spent:.1f} s")
        table.add(
            "the same: most memory of the process, and what Redis holds after",
            "-",
            f"{peak:.0f} MB, {used / MB:.0f} MB",
        )


def _multiply(times: int) -> None:
    """Store each task several times, under other ids."""
    with connection.cursor() as cursor:
        names = ", ".join(f'"{field.column}"' for field in Task._meta.concrete_fields if not field.primary_key)
        cursor.execute(
            f"INSERT INTO queue_app_task (id, {names}) SELECT gen_random_uuid(), {names}"  # noqa: S608 - its columns
            " FROM queue_app_task, generate_series(2, %s)",
            [times],
        )


def _rebuild() -> tuple[float, float, float]:
    """Run the command; return the most memory that it held (MB), seconds of processors, and seconds until a claim."""
    servers, peak, own, first = processor_seconds(), 0.0, 0.0, 0.0
    profile, worker = Profile.of([], ["bench.type0"], []), uuid.uuid4()
    command = [sys.executable, "manage.py", "taskqueue", "rebuild"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as child:
        watched = psutil.Process(child.pid)
        while child.poll() is None:
            with suppress(psutil.Error):  # it may end in this moment
                times = watched.cpu_times()
                peak, own = max(peak, watched.memory_info().rss / MB), times.user + times.system
            first = first or _claim(profile, worker)
            let_pass(0.02)
    assert child.returncode == 0
    return peak, own + processor_seconds() - servers, first


def _claim(profile: Profile, worker: uuid.UUID) -> float:
    """Return how long ago the rebuild began, if a claim is granted a task now, else 0."""
    try:
        granted = claim(profile, worker, 1)
    except UnknownProfile:
        get_index().register(profile, worker)
        return _claim(profile, worker)
    except IndexNotReady:
        return 0.0
    if not granted:
        return 0.0
    seconds = time.time() - IndexGeneration.objects.get().started_at.timestamp()
    give_back(granted)
    return seconds
