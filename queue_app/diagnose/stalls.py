"""Find work that stands still although nothing prevents it, and keep what was found in the row of the job ``watchdog``.

The detector reads the rows and the turns of the scheduler's jobs. Each check finds the work that could continue at that
moment; work that every check of ``STALL_SECONDS`` finds unchanged is a stall. Other processes and the next leader read
the stalls in the row.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

from django.utils import timezone

from queue_app import conf
from queue_app.core.reasons import moment, say
from queue_app.core.sentence import as_json, from_json, joined, sentence, sentence_n
from queue_app.exceptions import IndexUnavailable, in_one_line
from queue_app.index import get_index, is_refusal
from queue_app.index.server import refused_writes
from queue_app.models import MaintenanceJob
from queue_app.services.upkeep.jobs import Answers
from queue_app.services.upkeep.maintenance import JOBS
from queue_app.sql import doctor, snapshot, workers
from queue_app.sql.database import alias
from queue_app.sql.doctor import CHECK_IS_OLD, STALL_SECONDS, WATCHDOG, Startable

#: A worker must have asked for work this long after the task was first seen: a wake-up call takes time.
WAKE_SECONDS: Final = 5.0
#: A job that has failed only once may succeed in its next turn.
FEWEST_FAILURES: Final = 2
#: Time without a turn after which a job is stuck, unless three of its intervals are longer.
NO_TURN_SECONDS: Final = 30.0

#: The statement that finds startable tasks reads all waiting ones. It pauses for 20 times as long as it took.
PAUSE_FACTOR: Final = 20.0
LONGEST_PAUSE: Final = 300.0

type Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Stall:
    """One stall. ``kind`` is a code of the registry, ``subject`` the queue or the job, ``text`` the evidence."""

    kind: str
    subject: str
    text: str
    since: str = ""  # time at which it was reported (ISO 8601)
    steps: str = ""  # what the scheduler has done about it


@dataclass(frozen=True, slots=True)
class Watched:
    """The last record of the watchdog: the stalls, and the seconds since then (``None``: never)."""

    stalls: tuple[Stall, ...] = ()
    age: float | None = None

    @property
    def is_running(self) -> bool:
        return self.age is not None and self.age <= CHECK_IS_OLD


def read() -> Watched:
    """Return what the watchdog wrote last."""
    row = MaintenanceJob.objects.using(alias()).filter(name=WATCHDOG).first()
    if row is None or row.succeeded_at is None:
        return Watched()
    age = max(0.0, (timezone.now() - row.succeeded_at).total_seconds())
    return Watched(stored(row), age)


def stored(row: MaintenanceJob) -> tuple[Stall, ...]:
    """Return the stalls in the row of a job; only that of the watchdog has some."""
    return tuple(map(_stall, row.progress.get("stalls", ())))


def _stall(known: Mapping[str, Any]) -> Stall:
    text, steps = from_json(known["text"]), from_json(known["steps"])
    return Stall(known["kind"], known["subject"], text, known["since"], steps)


def write(stalls: Sequence[Stall]) -> None:
    """Record a check, and the stalls that it found."""
    now = timezone.now()
    found = [asdict(stall) | {"text": as_json(stall.text), "steps": as_json(stall.steps)} for stall in stalls]
    progress = {"stalls": found}
    fields = {"started_at": now, "succeeded_at": now, "done": len(stalls), "progress": progress}
    MaintenanceJob.record(alias(), WATCHDOG, **fields, error="\n".join(stall.text for stall in stalls))


class Turns(Protocol):
    """The state of a job of the scheduler; all times are monotonic."""

    name: str
    interval: float
    due_at: float
    has_more: bool  # it has work left for its next turn
    turned_at: float  # when it last had a turn
    failing_since: float | None
    failures: int  # in a row
    error: Exception | None  # the last one


@dataclass(slots=True)
class Observation:
    """A value that every check has found unchanged since ``since`` (monotonic)."""

    value: object
    since: float
    at: datetime | None = None  # the database's time of the first of these checks
    gates: set[str] = field(default_factory=set)  # gates that may have been closed between two checks


class StallDetector:
    """Finds work that could continue, and remembers since when it could."""

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at  # monotonic
        self._observations: dict[Key, Observation] = {}
        self._observed: set[Key] = set()  # keys that this check has observed
        self._next_statement_at = began_at
        self._last_found: list[Stall] = []
        self._was_away = False  # whether the last check found that the index was away

    def check(self, now: float, answers: Answers, jobs: Iterable[Turns]) -> list[Stall]:
        """Return the work that stands still at ``now`` (monotonic)."""
        jobs, startable = list(jobs), answers["startable"]
        self._observed = set()
        found = [
            *self._all_not_started(now, startable=startable),
            *self._late(now, answers, {job.name for job in jobs if job.has_more}),
            *(stall for job in jobs for stall in self._of_job(now, job)),
        ]
        if now - self.began_at > 2 * conf.get().scheduler.maintenance_seconds + NO_TURN_SECONDS:
            found += _of_upkeep(answers["upkeep"])
        self._observations = {key: one for key, one in self._observations.items() if key in self._observed}
        return found

    def _observe(self, key: Key, value: object, now: float) -> Observation:
        self._observed.add(key)
        found = self._observations.get(key)
        if found is None or found.value != value:
            found = self._observations[key] = Observation(value, now)
        return found

    def _all_not_started(self, now: float, *, startable: bool | None) -> list[Stall]:
        """Return the queues in which work stands still.

        Returns what the last statement found, if that took long and is recent, or if the query pauses.
        """
        if startable is False:
            self._last_found = []
        elif startable is None or now < self._next_statement_at:
            self._observed.update(key for key in self._observations if key[0] == "not_started")
        else:
            began = time.monotonic()
            self._last_found = list(self._not_started(now))
            self._next_statement_at = now + min(LONGEST_PAUSE, PAUSE_FACTOR * (time.monotonic() - began))
        return self._last_found

    def _not_started(self, now: float) -> Iterator[Stall]:
        """Yield the queues with a task that could have run at every check, while a worker asked for one."""
        named: set[str] = set()
        is_away = self._was_away and _index_is_away()
        for task in doctor.startable():
            stands = self._stands(task, now) and task.queue not in named
            if stands and not is_away and doctor.waits_unlocked(task.id):
                is_away = _index_is_away()
                if not is_away:
                    named.add(task.queue)
                    yield Stall("not_started", task.queue, _evidence(task))
            if is_away:  # so the wait until now had a reason, and the wait that counts begins when it is back
                self._excuse(task, now)
        self._was_away = is_away

    def _stands(self, task: Startable, now: float) -> bool:
        """Whether the oldest task of a kind could have run for so long that no limit and no wake-up call excuses it."""
        observed = self._observe(("not_started", *task.kind), task.id, now)
        if observed.at is None or not task.edited_at < observed.at <= task.at:
            # Seen for the first time; or its limits were edited meanwhile, or the database's clock went back.
            observed.since, observed.at = now, task.at
        observed.gates.update(task.limited)
        if now - observed.since < STALL_SECONDS + task.pace or now - task.heard < observed.since + WAKE_SECONDS:
            return False
        if doctor.started_since(observed.at, task, observed.gates):
            self._excuse(task, now)
            return False
        return True

    def _excuse(self, task: Startable, now: float) -> None:
        observed = self._observations["not_started", *task.kind]
        observed.since, observed.at = now, task.at

    def _late(self, now: float, answers: Answers, busy: set[str]) -> Iterator[Stall]:
        """Yield tasks that stay scheduled past their time, unless many are due, or executing past every deadline."""
        due, overrun = answers["late"], answers["overrun"]
        if due is not None and "due" not in busy and self._lasts("not_due", due, now):
            yield Stall("not_due", "", say("not_due", time=moment(due)))
        if overrun is not None and self._lasts("overrun", overrun, now) and _is_overrun():
            yield Stall("overrun", "", say("overrun", time=moment(overrun)))

    def _lasts(self, kind: str, value: object, now: float) -> bool:
        return now - self._observe((kind,), value, now).since >= STALL_SECONDS

    def _of_job(self, now: float, job: Turns) -> Iterator[Stall]:
        """Yield a job that fails again and again, or gets no turn."""
        idle = now - max(job.turned_at, self.began_at)
        if self._fails(job, now):
            error = f"{type(job.error).__name__}: {in_one_line(job.error)}"
            yield Stall("job", job.name, say("job", job=job.name, n=job.failures, error=error[:300]))
        elif idle > max(NO_TURN_SECONDS, 3 * job.interval):
            text = sentence(
                "The scheduler's job %(job)s is due every %(every)s s, and has had no turn for %(idle)s s.",
                job=job.name, every=float(job.interval), idle=round(idle),
            )  # fmt: skip
            yield Stall("job", job.name, text)

    def _fails(self, job: Turns, now: float) -> bool:
        """Whether a job has failed for long, for another reason than a server that is away.

        While PostgreSQL is away there are no checks, so failures from before the watch began do not count.
        """
        if job.failing_since is None or job.failures < FEWEST_FAILURES or job.turned_at < self.began_at:
            return False
        if now - max(job.failing_since, self.began_at) < STALL_SECONDS:
            return False
        return not isinstance(job.error, IndexUnavailable) or is_refusal(job.error)


def _of_upkeep(names: Iterable[str]) -> Iterator[Stall]:
    """Yield the upkeep jobs that neither Celery nor the scheduler has run."""
    for job in MaintenanceJob.objects.using(alias()).filter(name__in=[name for name in names if name in JOBS]):
        text = sentence("The upkeep job %(job)s has never succeeded.", job=job.name)
        if job.succeeded_at:
            at = moment(job.succeeded_at)
            text = sentence("The upkeep job %(job)s last succeeded at %(time)s.", job=job.name, time=at)
        error = sentence("Its last error: %(error)s", error=job.error[:300]) if job.error else ""
        yield Stall("job", job.name, joined(text, error))


def _index_is_away() -> bool:
    """Whether tasks wait for a known reason: Redis is away or refuses all writes, or the index is being rebuilt."""
    try:
        if refused_writes(get_index()):
            return True
        found = get_index().generation()
    except IndexUnavailable as error:
        return not is_refusal(error)
    return found.state != "ready" or found.number != snapshot.generation()


def _is_overrun() -> bool:
    """Whether the index's clock agrees that a task is past its deadline: PostgreSQL's may have stepped ahead."""
    try:
        return bool(workers.overdue(conf.get().scheduler.overdue_seconds + STALL_SECONDS, get_index().now(), 1))
    except IndexUnavailable:
        return False


def _evidence(task: Startable) -> str:
    """Return in plain words why the task could run."""
    what = say("not_started", queue=task.queue, id=str(task.id), type=task.task_type, time=moment(task.oldest))
    able = sentence_n(
        "Worker %(worker)s can run it and asks for tasks (%(n)s free slot), and no pause or limit stands in the way.",
        "Worker %(worker)s can run it and asks for tasks (%(n)s free slots), and no pause or limit stands in the way.",
        task.free_slots,
        worker=task.worker,
    )
    more = sentence_n(
        "%(n)s more of its kind waits behind it.", "%(n)s more of its kind wait behind it.", max(0, task.tasks - 1)
    )
    return joined(what, able, more if task.tasks > 1 else "")
