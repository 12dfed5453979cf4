"""Keys of the index are damaged while tasks run under limits of every kind; another project comes to the same Redis."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

from django.db import connection

from queue_app.core.states import TERMINAL, Status
from queue_app.diagnose.explain import explain
from queue_app.index import get_index
from queue_app.index.keys import KINDS
from queue_app.models import IndexGeneration, Limit, Queue, Task
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.repair.rebuild import rebuild
from tests.integration.app import tasks
from tests.integration.faults.arena import patient
from tests.integration.faults.run import CAPS, HEARTBEAT, PATIENCE, Run
from tests.integration.faults.starts import start
from tests.integration.processes import ROOT
from tests.support.damage import MANNERS, by_kind, change_type, dump, inflict
from tests.support.engine import redis_client
from tests.support.waiting import let_pass

#: Whoever damages these takes a limit away, until the next step of the reconciler copies it or gives leases back.
LIMITING = {"settings", "limited", "limits", "queue:", "limit:", "leases", "leases:", "held:"}
#: Seconds until everything that waited has ended, and until limits hold again (a step of the reconciler, and a task).
HEALED_SECONDS, LIMITED_SECONDS = 15.0, 6.5
#: How many cases a run draws by its seed.
DRAWN = 60
WAITING = 120


def damage_keys(run: Run) -> None:
    """Damage keys of every kind in every manner (drawn by the seed); caps hold."""
    _damage(run, set(KINDS) - LIMITING)


def damage_limits_and_leases(run: Run) -> None:
    """Damage leases and copies of limits: caps may break for one step of the reconciler."""
    run.judges_caps = False
    over = _damage(run, LIMITING)
    run.measured["longest time over a cap (s)"] = over
    if over > LIMITED_SECONDS:
        run.broken.append(f"a cap was exceeded for {over:.1f} s")


def lose_to_an_old_copy(run: Run) -> None:
    """Replace the whole index by an older copy of itself, in the same run of the server."""
    run.judges_caps = False
    _limit()
    start(run)
    index = get_index()
    for _ in range(3):
        _load(run, WAITING)
        old = dump(index, [key for keys in by_kind(index).values() for key in keys])
        _until_done(run, time.monotonic(), WAITING // 2)
        _load(run, WAITING)
        run.arena.flush()
        inflict(index, "an old copy", old, old)
        _until_done(run, time.monotonic())


def another_project(run: Run) -> None:
    """Start another project, with a database of its own, on the same Redis and prefix: it is refused."""
    run.load()
    start(run)
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE another")
    url = run.arena.postgres.url().rpartition("/")[0] + "/another"
    env = run.arena.env | {"DATABASE_URL": url}
    migrate = [sys.executable, ROOT / "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(migrate, env=env, check=True, timeout=120)
    for _ in run.moments(2):
        for process in (run.fleet.worker(heartbeat=HEARTBEAT, DATABASE_URL=url), run.fleet.scheduler(DATABASE_URL=url)):
            if process.exit_code() != 2 or "KEY_PREFIX" not in process.log:
                run.broken.append(f"another project was not refused: {process.log[-300:]}")
    run.reach(1)
    with connection.cursor() as cursor:
        cursor.execute("DROP DATABASE another")


def damage_again_and_again(run: Run, times: int = 10) -> None:
    """Damage what every claim reads each 6 s for a minute: the wait before a rebuild does not grow"""
    run.judges_caps = False  # the limits themselves are damaged
    run.load(WAITING)
    start(run)
    index = get_index()
    run.load_long()
    for _ in range(times):
        began = time.monotonic()
        change_type(redis_client(), f"{index.keys.prefix}:settings".encode())
        _load(run, WAITING)
        run.flowing_again("flowing after repeated damage (s)", began)
        let_pass(max(0.0, began + 6 - time.monotonic()))


# -- load ------------------------------------------------------------------------------


def _limit() -> None:
    """Set limits of every kind."""
    Queue.objects.filter(pk="default").update(rate_count=400, rate_seconds=1, rate_burst=400)
    Queue.objects.filter(pk="other").update(
        order="fair", fair_by="user", fair_weights={"ada": 2}, max_concurrent_per_user=2
    )
    Limit.objects.create(scope="type", name=type_of(tasks.job), max_concurrent=6)
    Limit.objects.create(scope="key", name="account", max_concurrent=2)
    assert rebuild() is not None


def _load(run: Run, count: int) -> None:
    """Enqueue tasks of several users, keys and weights."""
    new = [
        run.new_task(
            user=run.chance.choice(("", "ada", "bob", "cid")),
            concurrency_key=run.chance.choice((None, None, "account:1")),
            weight=run.chance.choice((1, 1, 1, 2)),
        )
        for _ in range(count)
    ]
    run.note(new, [stored.id for stored in enqueue_many(new)])


def _damage(run: Run, kinds: set[str]) -> float:
    """Damage keys again and again; return the longest time for which a cap was exceeded (s)."""
    _limit()
    start(run)
    index, over = get_index(), 0.0
    cases = [(kind, manner) for kind in sorted(kinds) for manner in (*MANNERS, "an old copy")]
    for kind, manner in run.chance.sample(cases, min(DRAWN, len(cases))):
        _load(run, WAITING)
        old = dump(index, patient(lambda: by_kind(index)).get(kind, []))
        _until_done(run, time.monotonic(), WAITING // 2)
        IndexGeneration.objects.update(condemned=0, condemned_at=None)  # as if the last ten minutes had been quiet
        _load(run, WAITING)
        inflict(index, manner, by_kind(index).get(kind, []), old)
        seconds, above = _until_done(run, time.monotonic(), case=f"{kind} {manner}")
        over = max(over, above)
        if seconds > HEALED_SECONDS:
            run.broken.append(f"{kind} {manner}: everything was done only after {seconds:.1f} s")
        name = "everything done after (s)"
        run.measured[name] = max(run.measured.get(name, 0.0), seconds)
    return over


def _until_done(run: Run, since: float, left: int = 0, case: str = "the start") -> tuple[float, float]:
    """Wait until no more tasks are left; return how long that took, and for how long a cap was exceeded on end."""
    names = {key: queue for key, queue, _ in run.order}
    above: dict[str, float] = {}
    longest = 0.0
    while len(run.order) - run.ended() > left and time.monotonic() - since < PATIENCE:
        executing = patient(lambda: list(Task.objects.filter(status=Status.EXECUTING).values_list("id", flat=True)))
        now, running = time.monotonic(), Counter(names[key] for key in executing)
        running[""] = running.total()
        for name, cap in CAPS.items():
            if running[name] > cap:
                longest = max(longest, now - above.setdefault(name, now))
            else:
                above.pop(name, None)
        let_pass(0.02)
    waiting = Task.objects.exclude(status__in=TERMINAL).first()
    if len(run.order) - run.ended() > left:
        raise AssertionError(f"after {case}, {waiting} does not end: {explain(waiting.id)}")
    return time.monotonic() - since, longest


FAULTS = [damage_again_and_again, damage_keys, damage_limits_and_leases, lose_to_an_old_copy, another_project]
