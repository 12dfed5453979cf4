"""One fault under load: what it works with, and the figures that its history gives."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queue_app.core.priorities import Band
from queue_app.core.reasons import Level
from queue_app.core.records import NewTask
from queue_app.core.states import TERMINAL, Status
from queue_app.diagnose.doctor import examine
from queue_app.diagnose.explain import explain
from queue_app.index import get_index
from queue_app.models import Queue, RuntimeSettings, Task, TaskResult, Worker
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue, enqueue_many
from queue_app.services.notify import index
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.way import follow
from tests.integration.app import tasks
from tests.integration.checkers import out_of_order, over_cap
from tests.integration.faults.arena import Arena, patient
from tests.integration.faults.watch import Watch
from tests.integration.processes import Fleet, Process, fleet_on
from tests.support.engine import assert_index_agrees
from tests.support.history import Event, History, installed
from tests.support.rows import reset_rows
from tests.support.waiting import until

#: How many tasks of a queue may run at once; "" stands for all queues together.
CAPS = {"default": 5, "other": 3, "long": 3, "": 7}
#: Seconds that tasks of the queue ``long`` take: the least, most, and the longest.
LONG_SECONDS = (15.0, 20.0, 60.0)
#: Long enough for the slowest repair: the lease of a claim that died is given back after 15 s.
PATIENCE = 90.0
HEARTBEAT = 1.0
LONG = type_of(tasks.long_job)


@dataclass(frozen=True, slots=True)
class Metrics:
    """What the history of one run says; each list names what is wrong."""

    lost: list[str]
    doubled: list[str]
    stale: list[str]
    over_cap: list[str]
    broken: list[str]  # other promises: rates, tasks that no longer exist
    leases: int
    apart: str = ""  # how the index differs from the rows

    @property
    def faults(self) -> list[str]:
        """Everything that is wrong."""
        leases = [f"{self.leases} leases left"] if self.leases else []
        return [
            *self.lost,
            *self.doubled,
            *self.stale,
            *self.over_cap,
            *self.broken,
            *leases,
            *filter(None, [self.apart]),
        ]


@dataclass
class Run:
    """A fleet under load, for one fault to disturb."""

    arena: Arena
    fleet: Fleet
    history: History
    chance: random.Random
    count: int
    log: str
    order: list[tuple[uuid.UUID, str, int]] = field(default_factory=list)  # id, queue, band; as acknowledged
    texts: dict[uuid.UUID, str] = field(default_factory=dict)  # what each task writes
    measured: dict[str, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)  # what the fault itself found
    judges_caps: bool = True  # unless the fault takes limits away, and judges them itself
    long_count: int = 0  # tasks that take longer than every timeout, beside ``count`` short ones
    not_capped: set[uuid.UUID] = field(default_factory=set)  # tasks that caps do not count
    stack: ExitStack = field(default_factory=ExitStack)
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        """Prepare to watch."""
        self.watch = Watch(self.short_count)

    def on_exit[T](self, context: AbstractContextManager[T]) -> T:
        """Enter a context for the rest of the run."""
        return self.stack.enter_context(context)

    # -- load --------------------------------------------------------------------

    def new_task(self, **other: Any) -> NewTask:
        """Return a task of 5 to 50 ms in any band, in one of two queues, unless ``other`` values are given."""
        queue = self.chance.choice(["default", "default", "other"])
        args = [self.log, uuid.uuid4().hex, round(self.chance.uniform(0.005, 0.05), 4)]
        band = self.chance.choice(list(Band))
        return NewTask(**{"task_type": type_of(tasks.job), "args": args, "priority": band, "queue": queue} | other)

    def load(self, count: int | None = None) -> None:
        """Enqueue many, and note which were acknowledged; first some that take long, unless a ``count`` is given."""
        if count is None:
            self.load_long()
        wanted = [self.new_task() for _ in range(self.count if count is None else count)]
        for start in range(0, len(wanted), 200):
            part = wanted[start : start + 200]
            self.note(part, [stored.id for stored in enqueue_many(part)])

    def load_long(self) -> None:
        """Enqueue the tasks that take long, one of them up to a minute."""
        least, most, longest = LONG_SECONDS
        for number in range(self.long_count):
            seconds = self.chance.uniform(least, most if number else longest)
            args = [self.log, uuid.uuid4().hex, round(seconds, 2)]
            new = NewTask(task_type=LONG, args=args, priority=Band.CRITICAL, queue="long")
            self.note([new], [enqueue(new).id])

    @property
    def folder(self) -> Path:
        """The folder of this run."""
        return Path(self.log).parent

    @property
    def gate(self) -> Path:
        """The file for which held tasks wait."""
        return Path(self.log).with_suffix(".gate")

    def held_by(self, process: Process, count: int) -> None:
        """Give the only worker so many urgent tasks that end once the gate is there; wait until it runs them."""
        new = [self.new_task(priority=Band.CRITICAL, queue="default") for _ in range(count)]
        for each in new:
            each.args = [*each.args, str(self.gate)]
        ids = [stored.id for stored in enqueue_many(new)]
        self.note(new, ids)
        worker = Worker.objects.filter(pid=process.pid).values("id")
        held = Task.objects.filter(pk__in=ids, status=Status.EXECUTING, worker_id__in=worker)
        until(lambda: patient(held.count) == count, "it holds tasks", PATIENCE)

    def one(self) -> None:
        """Enqueue one."""
        new = self.new_task()
        self.note([new], [enqueue(new).id])

    def note(self, wanted: list[NewTask], ids: list[uuid.UUID]) -> None:
        """Remember what was acknowledged."""
        self.order += [(task_id, new.queue, new.priority) for new, task_id in zip(wanted, ids, strict=True)]
        self.texts |= {task_id: new.args[1] for new, task_id in zip(wanted, ids, strict=True)}

    # -- progress ----------------------------------------------------------------

    def short_count(self) -> int:
        """How many tasks were acknowledged that do not take long."""
        return sum(queue != "long" for _, queue, _ in self.order)

    def ended(self) -> int:
        """How many tasks have ended."""
        return patient(lambda: Task.objects.filter(status__in=TERMINAL).count())

    def reach(self, share: float) -> None:
        """Wait until this share of the tasks has ended."""
        least = int(share * self.count)
        until(lambda: self.ended() >= least, f"{least} tasks have ended", PATIENCE)

    def moments(self, number: int) -> Iterator[float]:
        """Wait for so many random moments, one after the other; yield the share that has ended at each."""
        for share in sorted(self.chance.uniform(0.05, 0.85) for _ in range(number)):
            self.reach(share)
            yield share

    def flowing_again(self, name: str, since: float) -> None:
        """Measure the seconds from an instant until ten more tasks (or all) have ended."""
        least = min(self.ended() + 10, self.short_count())
        until(lambda: self.ended() >= least, "tasks end again", PATIENCE)
        self.measured[name] = max(self.measured.get(name, 0.0), time.monotonic() - since)

    def finish(self) -> Metrics:
        """Wait for the end of all tasks, and judge."""
        self.await_all()
        return self.judge(wait=True)

    def await_all(self) -> None:
        """Wait for the end of all tasks; say why the first of those that do not end waits."""
        try:
            patience = PATIENCE + 3 * LONG_SECONDS[-1] * bool(self.long_count)
            until(lambda: self.ended() >= len(self.order), "all tasks end", patience)
        except AssertionError:
            left = Task.objects.exclude(status__in=TERMINAL)
            said = [finding for finding in examine() if finding.level is not Level.OK]
            text = f"{left.count()} tasks do not end: {explain(left[0].id)}; doctor: {said}"
            raise AssertionError(text) from None

    # -- figures -----------------------------------------------------------------

    def judge(self, *, wait: bool = False) -> Metrics:
        """Return the figures of what has happened so far."""
        if wait:
            with_room(lambda: self.leases() == 0)
        states = dict(Task.objects.values_list("id", "status"))
        lost = [f"{key} is {states.get(key)}" for key, *_ in self.order if states.get(key) != Status.COMPLETED]
        apart = ""
        if wait:
            with_room(lambda: not disagreement())
            apart = disagreement()
        return Metrics(lost, self.doubled(), self.stale(), self.beyond_caps(), self.broken, self.leases(), apart)

    def doubled(self) -> list[str]:
        """Return the tasks with two recorded successes."""
        events = self.history.events()
        successes = Counter(event.task_id for event in events if event.after == Status.COMPLETED)
        return [f"{key} succeeded {number} times" for key, number in successes.items() if number > 1]

    def stale(self) -> list[str]:
        """Return the tasks whose stored result came from another process than the one that held the last lease."""
        pids = dict(Worker.objects.values_list("id", "pid"))
        results = dict(TaskResult.objects.values_list("task_id", "value"))
        own = [type_of(tasks.job), LONG]  # they return the process
        held = Task.objects.filter(status=Status.COMPLETED, task_type__in=own).values_list("id", "worker_id")
        return [
            f"{task_id}: the result of {results[task_id]} was accepted, but {pids.get(worker_id)} had the lease"
            for task_id, worker_id in held
            if task_id in results and results[task_id] != pids.get(worker_id)
        ]

    def beyond_caps(self) -> list[str]:
        """Return the instants at which more ran than may, as the rows tell."""
        if not self.judges_caps:
            return []
        wrong = []
        for queue, cap in CAPS.items():
            counted = {key for key, name, _ in self.order if queue in ("", name)} - self.not_capped
            wrong += over_cap(self.history, cap, of=counted)
        return wrong

    def inversions(self) -> list[str]:
        """Return the starts out of order, for a run without faults."""
        wrong: list[str] = []
        for queue in ("default", "other"):
            numbered = [(band, place, key) for place, (key, name, band) in enumerate(self.order) if name == queue]
            ids = [key for *_, key in sorted(numbered)]
            wrong += out_of_order(Part(self.history, set(ids)), ids, CAPS[queue])
        return wrong

    @staticmethod
    def leases() -> int:
        """How many slots the index holds."""
        return sum(get_index().depth(queue).active for queue in ("default", "other", "long"))


class Part(History):
    """The transitions of some tasks only."""

    def __init__(self, whole: History, ids: set[uuid.UUID]) -> None:
        self._found = [event for event in whole.events() if event.task_id in ids]

    def events(self, task_id: uuid.UUID | None = None) -> list[Event]:
        """Return the transitions of one task, or of all of them."""
        return [event for event in self._found if task_id in (None, event.task_id)]


def with_room(condition: Callable[[], bool]) -> None:
    """Wait for a condition that is judged afterwards."""
    try:
        until(condition, "it holds", 30)
    except AssertionError:
        return


def disagreement() -> str:
    """Say what the index has that the rows have not, or the other way round; nothing when they agree."""
    try:
        assert_index_agrees()
    except AssertionError as error:
        return str(error) or repr(error)
    except UnicodeDecodeError:  # a hash keeps junk in a field that no script reads
        return ""
    return ""


@contextmanager
def run_on(arena: Arena, folder: Path, *, seed: int, count: int, long_count: int = 0) -> Iterator[Run]:
    """Yield an empty queue with caps, its history recorded, and no process yet."""
    folder.mkdir(parents=True, exist_ok=True)
    reset_rows()
    follow()  # the last run may have left Redis
    arena.flush()
    for name in ("default", "other", "long"):
        Queue.objects.update_or_create(pk=name, defaults={"max_concurrent": CAPS[name]})
    settings = RuntimeSettings.objects.get()
    settings.max_concurrent = CAPS[""]
    settings.save()
    assert rebuild() is not None
    index.breaker.reset()  # the first call may have met a connection to a server that the last run restarted
    # A task of a minute may be killed more often than a worker's task usually is.
    env = arena.env | ({"TASKQUEUE__RETRY__MAX_CRASHES": "10"} if long_count else {})
    with installed() as history, fleet_on(env, folder) as fleet:
        run = Run(arena, fleet, history, random.Random(seed), count, str(folder / "log"), long_count=long_count)
        with run.stack:
            run.watch.start()
            try:
                yield run
            finally:
                run.watch.stop()
                fleet.stop()
