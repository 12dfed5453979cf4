"""Each fault of a running system fires its alert and no other at a real Prometheus, and health fires none."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import DatabaseError, connection

from queue_app import Workflow
from queue_app.core.priorities import Band
from queue_app.core.reasons import Level
from queue_app.core.records import NewTask
from queue_app.diagnose.explain import explain
from queue_app.index import get_index
from queue_app.models import Queue, RuntimeSettings, Task
from queue_app.registry import type_of
from queue_app.schedules.edit import create_schedule, delete_schedule
from queue_app.services import cancel, pause, resume
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.repair.rebuild import LOCK_SECONDS
from queue_app.workflows.steer import cancel_workflow
from tests.integration.app import tasks
from tests.integration.faults import stalls
from tests.integration.faults.prometheus import HURRY, Prometheus
from tests.integration.faults.run import HEARTBEAT, Run
from tests.integration.faults.timing import ready
from tests.integration.processes import Process
from tests.support.waiting import let_pass, until

#: The longest of the rules' times is ten minutes: nothing that has not fired by then will.
HEALTH_SECONDS = 600 / HURRY + 10
#: For an alert to fire, and to end: the longest window or wait that any of them has, and room for a busy machine.
PATIENCE = 3600 / HURRY + 60
SLOTS = 6
WORKERS = ("worker 1", "worker 2")
#: The intervals of the queue that stand behind the rules, in the same hurry.
QUICK = {"TASKQUEUE__SCHEDULER__MAINTENANCE_SECONDS": str(60 / HURRY)}


@dataclass
class Plant:
    """Everything that runs, and what fired."""

    run: Run
    prometheus: Prometheus
    target: str
    web: Process
    processes: dict[str, Process] = field(default_factory=dict)
    lines: list[tuple[str, set[str], set[str], float]] = field(default_factory=list)

    # -- processes ---------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a process by its name, or again."""
        fleet = self.run.fleet
        start: dict[str, Callable[[], Process]] = {
            "scheduler": fleet.scheduler,
            "celery": fleet.celery,
            "worker 1": lambda: fleet.worker("--concurrency", str(SLOTS // 2), heartbeat=HEARTBEAT),
            "worker 2": lambda: fleet.worker("--concurrency", str(SLOTS // 2), heartbeat=HEARTBEAT),
        }
        self.processes[name] = start[name]()

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """Kill processes, and start them again at the end."""
        for name in names:
            self.processes[name].kill()
        yield
        for name in names:
            self.start(name)

    def renew_workers(self) -> None:
        """Kill the workers, and wait until others are ready."""
        with self.without(*WORKERS):
            pass
        ready(*(self.processes[name] for name in WORKERS))

    # -- expectation -------------------------------------------------------------

    def expect(self, what: str, *alerts: str, began: float) -> None:
        """Wait until exactly these alerts fire; note which did since ``began``."""
        with suppress(AssertionError):
            until(lambda: self.prometheus.firing() >= set(alerts), f"{alerts} fire", PATIENCE)
        seconds = time.time() - began
        let_pass(2)  # what else would fire now
        self.lines.append((what, set(alerts), self.prometheus.fired_since(began), seconds))

    def calm(self) -> None:
        """Wait until nothing fires any more; start what has left meanwhile, as systemd would."""

        def mended() -> bool:
            for name, process in self.processes.items():
                if not process.alive:
                    self.start(name)
            return not self.prometheus.firing()

        until(mended, "no alert fires", PATIENCE)


def load(stop: threading.Event, log: str) -> None:
    """Keep a light load up, whatever happens to the servers."""
    notes = [NewTask(task_type=type_of(tasks.note), args=[log, "x"], priority=band) for band in list(Band)[:3]]
    while not stop.wait(0.1):
        try:
            enqueue_many(notes)
        except DatabaseError:
            connection.close()
    connection.close()


# -- faults: each is a block that mends what it broke -------------------------------------


@contextmanager
def workers_killed(plant: Plant) -> Iterator[None]:
    """Kill all workers."""
    with plant.without(*WORKERS):
        yield


@contextmanager
def beat_stopped(plant: Plant) -> Iterator[None]:
    """Kill Celery: the scheduler does what it leaves undone, so nobody need be woken."""
    with plant.without("celery"):
        let_pass(HEALTH_SECONDS)
        yield


@contextmanager
def leader_killed(plant: Plant) -> Iterator[None]:
    """Kill the only scheduler; Celery goes on with the upkeep."""
    with plant.without("scheduler"):
        yield


@contextmanager
def beat_and_leader_killed(plant: Plant) -> Iterator[None]:
    """Kill both that do the upkeep."""
    with plant.without("celery", "scheduler"):
        yield


@contextmanager
def flushed(plant: Plant) -> Iterator[None]:
    """Empty Redis five times: each time the index is rebuilt at once, and nobody need be woken."""
    for _ in range(5):
        plant.run.arena.flush()
        let_pass(HEALTH_SECONDS / 5)
    yield


@contextmanager
def rebuild_hangs(plant: Plant) -> Iterator[None]:
    """Empty Redis while another process holds the lock of the rebuild, renews it and does nothing."""
    token, stop = uuid.uuid4().hex, threading.Event()

    def taken() -> bool:
        plant.run.arena.flush()
        return get_index().lock("rebuild", token, LOCK_SECONDS)

    def hold() -> None:
        while not stop.wait(0.5):
            get_index().lock("rebuild", token, LOCK_SECONDS)

    until(taken, "the lock is ours")
    thread = threading.Thread(target=hold)
    thread.start()
    yield
    stop.set()
    thread.join()
    get_index().lock("rebuild", token, 0)


@contextmanager
def redis_killed(plant: Plant) -> Iterator[None]:
    """Kill Redis."""
    plant.run.arena.kill_valkey()
    yield
    plant.run.arena.start_valkey()


@contextmanager
def redis_out_of_reach(plant: Plant) -> Iterator[None]:
    """Let the web process alone not reach Redis."""
    plant.web.kill()
    plant.web = plant.run.fleet.web(plant.target, REDIS_URL="redis://127.0.0.1:1/0")
    yield
    plant.web.kill()
    plant.web = plant.run.fleet.web(plant.target)


@contextmanager
def postgresql_stopped(plant: Plant) -> Iterator[None]:
    """Stop PostgreSQL; start the workers anew after it, as those leave that were silent for too long."""
    plant.run.arena.stop_postgres()
    yield
    plant.run.arena.start_postgres()
    connection.close()
    plant.renew_workers()


@contextmanager
def dead_letters(plant: Plant) -> Iterator[None]:
    """Let two tasks a second die, beside thirty that succeed."""
    with _adding(NewTask(task_type=type_of(tasks.fail), args=["no good"], max_retries=0)):
        yield


@contextmanager
def failures(plant: Plant) -> Iterator[None]:
    """Let most tasks fail for good."""
    with _adding(*[NewTask(task_type=type_of(tasks.discard), args=["no use"])] * 15):
        yield


@contextmanager
def _adding(*new: NewTask) -> Iterator[None]:
    stop = threading.Event()

    def add() -> None:
        while not stop.wait(0.5):
            enqueue_many(new)
        connection.close()

    thread = threading.Thread(target=add)
    thread.start()
    yield
    stop.set()
    thread.join()


@contextmanager
def many_wait(plant: Plant, count: int, band: Band) -> Iterator[None]:
    """Let so many wait in a queue that is paused."""
    new = [NewTask(task_type=type_of(tasks.add), args=[1, 1], priority=band, queue="paused") for _ in range(count)]
    enqueue_many([NewTask(task_type=type_of(tasks.add), args=[1, 1], queue="paused")])  # makes the queue
    pause("paused", reason="on purpose")
    enqueue_many(new)
    yield
    resume("paused")
    until(lambda: get_index().depth("paused").total == 0, "they have run", PATIENCE)


@contextmanager
def slots_taken(plant: Plant) -> Iterator[None]:
    """Let long tasks take every slot."""
    gate = Path(plant.run.log).with_suffix(".gate")
    held = [NewTask(task_type=type_of(tasks.hold), args=[plant.run.log, "h", str(gate)], priority=Band.CRITICAL)]
    enqueue_many(held * SLOTS)
    yield
    gate.touch()


@contextmanager
def nobody_knows(plant: Plant) -> Iterator[None]:
    """Let a task wait that no worker knows."""
    [stored] = enqueue_many([NewTask(task_type="nobody.knows", queue="orphans")])
    yield
    cancel(stored.id)


@contextmanager
def stalled(plant: Plant) -> Iterator[None]:
    """Let workers ask for tasks and get none, by a fault that no repair knows; doctor and explain say so, too."""
    for name in WORKERS:
        plant.processes[name].kill()
        plant.processes[name] = stalls.gets_nothing(plant.run)
    until(lambda: Level.FAIL in stalls.levels(), "the doctor says that work stands still", PATIENCE)
    waiting = Task.objects.filter(status="queued", queue="default").earliest("queued_at")
    assert "stalled" in {reason.code for reason in explain(waiting.id).reasons}
    yield
    plant.renew_workers()


@contextmanager
def stalls_again(plant: Plant) -> Iterator[None]:
    """Let the index, but not the rows, say three times that all is paused, while only the watchdog repairs."""
    plant.processes["scheduler"].kill()
    scheduler = plant.processes["scheduler"] = plant.run.fleet.scheduler(**QUICK, **stalls.NO_RECONCILER)
    until(lambda: "leads" in scheduler.log, "the scheduler leads", PATIENCE)
    let_pass(5)  # its first comparison
    for number in range(3):
        if number:
            until(lambda: stalls.levels() == {Level.OK}, "the watchdog has ended it", PATIENCE)
        stalls.pause_the_index_only(plant.run, plant.processes["worker 1"])
        until(lambda: Level.FAIL in stalls.levels(), "the watchdog notices", PATIENCE)
    yield
    with plant.without("scheduler"):
        pass


@contextmanager
def schedule_fails(plant: Plant) -> Iterator[None]:
    """Let a schedule's tasks fail for good."""
    with _scheduled(tasks.discard, "no use"):
        yield


@contextmanager
def schedule_overdue(plant: Plant) -> Iterator[None]:
    """Lock the row of a schedule, as a session does that was forgotten open."""
    with (
        _scheduled(tasks.add, 1, 1),
        closing(connection.get_new_connection(connection.get_connection_params())) as other,
    ):
        other.autocommit = False
        other.execute("SELECT FROM queue_app_schedule WHERE name = 'often' FOR UPDATE")
        yield


@contextmanager
def _scheduled(task: Any, *args: object) -> Iterator[None]:
    create_schedule("often", {"task_type": type_of(task), "args": list(args), "every": 2})
    yield
    delete_schedule("often")


@contextmanager
def workflow_held(plant: Plant) -> Iterator[None]:
    """Let a task of a workflow fail, for which another waits; a person cancels the workflow an hour later."""
    flow = Workflow("held")
    flow.add(tasks.add, 1, 1, after=[flow.add(tasks.discard, "no use")])
    flow.enqueue()
    yield
    cancel_workflow(flow.id)


SCENES: list[tuple[str, Callable[[Plant], AbstractContextManager[None]], tuple[str, ...]]] = [
    ("all workers killed", workers_killed, ("TaskQueueNoActiveWorker",)),
    ("Celery killed", beat_stopped, ()),
    ("the only scheduler killed", leader_killed, ("TaskQueueNoScheduler",)),
    ("both killed", beat_and_leader_killed, ("TaskQueueNoScheduler", "TaskQueueMaintenanceOverdue")),
    ("dead letters, 2 a second", dead_letters, ("TaskQueueDeadLetters",)),
    ("most tasks fail for good", failures, ("TaskQueueFailureRate",)),
    ("FLUSHALL, five times", flushed, ()),
    ("FLUSHALL, and the rebuild hangs", rebuild_hangs, ("TaskQueueIndexNotReady",)),
    ("Valkey killed", redis_killed, ("TaskQueueIndexAway",)),
    ("Valkey out of reach of the web process", redis_out_of_reach, ("TaskQueueRedisDown",)),
    ("PostgreSQL stopped", postgresql_stopped, ("TaskQueuePostgreSQLDown",)),
    ("1 100 high tasks wait", lambda plant: many_wait(plant, 1100, Band.HIGH), ("TaskQueueHighDepth",)),
    ("5 100 tasks wait", lambda plant: many_wait(plant, 5100, Band.NORMAL), ("TaskQueueDepth",)),
    ("a low task waits", lambda plant: many_wait(plant, 1, Band.LOW), ("TaskQueueLowWaiting",)),
    ("all slots taken", slots_taken, ("TaskQueueSaturated",)),
    ("a task that no worker knows", nobody_knows, ("TaskQueueNotConsumed",)),
    ("workers ask for tasks and get none", stalled, ("TaskQueueStalled",)),
    ("the index is damaged three times", stalls_again, ("TaskQueueStallsAgain",)),
    ("a schedule's tasks fail for good", schedule_fails, ("TaskQueueScheduleFails",)),
    ("a failed task holds a workflow", workflow_held, ("TaskQueueWorkflowHeld",)),
    ("a schedule's row is locked", schedule_overdue, ("TaskQueueScheduleOverdue",)),
]


@contextmanager
def running(run: Run) -> Iterator[Plant]:
    """Start the whole system and a Prometheus."""
    Queue.objects.update(max_concurrent=None)
    RuntimeSettings.objects.update(max_concurrent=None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        target = f"127.0.0.1:{free.getsockname()[1]}"
    run.fleet.env |= QUICK
    web = run.fleet.web(target)
    stop = threading.Event()
    with Prometheus(Path(run.log).parent / "prometheus", target) as prometheus:
        plant = Plant(run, prometheus, target, web)
        for name in ("scheduler", "celery", *WORKERS):
            plant.start(name)
        loading = threading.Thread(target=load, args=(stop, run.log))
        loading.start()
        try:
            yield plant
        finally:
            stop.set()
            loading.join()


def fire_all(run: Run, only: list[int]) -> bool:
    """Play every scene, or those of these numbers; return whether each fired exactly what it should."""
    with running(run) as plant:
        let_pass(HEALTH_SECONDS / 2)
        plant.calm()
        began = time.time()
        let_pass(HEALTH_SECONDS)
        plant.expect("nothing", began=began)
        for what, fault, alerts in [SCENES[number] for number in only or range(len(SCENES))]:
            began = time.time()
            with fault(plant):
                plant.expect(what, *alerts, began=began)
            print(what, sorted(plant.lines[-1][2]), flush=True)
            plant.calm()
    print("\n| fault | must fire | fired | after |\n|---|---|---|---|")
    for what, wanted, fired, seconds in plant.lines:
        names = [", ".join(sorted(f"`{each.removeprefix('TaskQueue')}`" for each in some)) for some in (wanted, fired)]
        wrong = "" if wanted == fired else "  FAILED"
        print(f"| {what} | {names[0] or 'none'} | {names[1] or 'none'}{wrong} | {seconds:.0f} s |")
    return all(wanted == fired for _, wanted, fired, _ in plant.lines)
