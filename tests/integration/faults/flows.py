"""Random workflows while everything that runs them dies, and PostgreSQL and Valkey lose what they hold."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from django.db.models import Count

from queue_app.index import get_index
from queue_app.models import DeadLetter, StepResult, Task, Workflow as Row, WorkflowNode
from queue_app.workflows.read import MENDED
from tests.integration.faults.arena import patient
from tests.integration.faults.run import PATIENCE, Run
from tests.integration.faults.starts import alone, kill, start
from tests.integration.faults.timing import uncapped
from tests.queue_app.workflows.test_graphs import by_task, judge
from tests.support import graphs
from tests.support.waiting import until

LARGE = 400  # tasks of a run whose graphs are as large as they may be
#: Share of the workflows with which staff do something that need not be.
MEDDLED = 0.3


def workflows(run: Run) -> None:
    """Run random graphs: kill workers and the scheduler, flush Valkey, restart PostgreSQL, and let staff decide."""
    Path(run.log).touch()
    uncapped()
    run.judges_caps = False
    number, most = min(200, max(10, run.count // 10)), 500 if run.count >= LARGE else 40
    plans = graphs.drawn(number, 5, most, chance=run.chance.randrange(10**6))
    flows = [graphs.store(plan, run.log, f"{place}") for place, plan in enumerate(plans)]
    staff = Staff(random.Random(run.chance.random()), [flow.id for flow in flows])
    above, one = start(run)
    scheduler = run.fleet.processes[0]
    for share in (0.8, 0.6, 0.4, 0.2):
        _wait(lambda least=share: staff.left() <= least * number, "workflows end")
        one.kill()
        kill(run.chance.choice(until(above.children, "there are workers", PATIENCE)))
        scheduler.kill()
        run.arena.flush()
        run.arena.restart_postgres_at_once()
        began, ended = time.monotonic(), run.ended()
        scheduler, one = run.fleet.scheduler(), alone(run)
        _wait(lambda before=ended: run.ended() > before or not staff.left(), "tasks end again")
        name = "random workflows: a task ended after a restart (s)"
        run.measured[name] = max(run.measured.get(name, 0.0), time.monotonic() - began)
    staff.meddles = False
    _wait(lambda: not staff.left(), "all workflows end")
    _judge(run, flows)
    run.measured |= {f"random workflows: {name}": float(count) for name, count in staff.done.items()}
    run.measured |= {f"random workflows: {name}": float(count) for name, count in _counts(plans).items()}


def _wait(condition: Callable[[], bool], what: str) -> None:
    """Wait, and say what is left if that is in vain."""
    try:
        until(condition, what, 3 * PATIENCE)
    except AssertionError as error:
        left = Row.objects.filter(finished_at=None)
        told = [
            f"{flow.name} {flow.state}, paused {flow.paused}, held {flow.held_at}, "
            f"{dict(Task.objects.filter(workflow_id=flow.id).values_list('status').annotate(n=Count('*')).order_by())}"
            for flow in left
        ]
        raise AssertionError("\n".join([str(error), *told])) from None


class Staff:
    """Persons who replay and discard, signal, and sometimes pause, retry or cancel."""

    def __init__(self, draw: random.Random, ids: list[uuid.UUID]) -> None:
        self.meddles = True
        self.done: Counter[str] = Counter()
        self._draw = draw
        self._victims = [one for one in ids if draw.random() < MEDDLED]
        self._paused: list[uuid.UUID] = []

    def left(self) -> int:
        """Do what there is to do; return how many workflows have not ended."""
        for flow_id in self._paused:
            self._act(flow_id, "resume")
        self._paused.clear()
        if self.meddles and self._victims and self._draw.random() < 0.3:
            command = self._draw.choice(["pause", "cancel task", "retry", "cancel"])
            flow_id = self._victims.pop()
            self._paused += [flow_id] if self._act(flow_id, command) and command == "pause" else []
        waiting = Task.objects.filter(status="blocked", attempt__gt=0, workflow_id__isnull=False)
        for flow_id in patient(lambda: list(waiting.values_list("workflow_id", flat=True)))[:50]:
            self._act(flow_id, "signal")
        letters = DeadLetter.objects.open().values_list("task_id", flat=True)
        holders = Task.objects.filter(id__in=letters, workflow_id__in=Row.objects.filter(finished_at=None).values("id"))
        held = patient(lambda: set(holders.values_list("workflow_id", flat=True)))
        for flow_id in held:
            self._act(flow_id, self._draw.choice(["replay", "replay", "discard"]))
        stuck = Row.objects.filter(finished_at=None, held_at__isnull=False).values_list("id", flat=True)
        for flow_id in patient(lambda: set(stuck)) - held:
            self._act(flow_id, "cancel")  # a task holds it that has no dead letter
        return patient(lambda: Row.objects.filter(finished_at=None).count())

    def _act(self, flow_id: uuid.UUID, command: str) -> bool:
        has_acted = patient(lambda: graphs.act(flow_id, command, self._draw))
        self.done[f"{command} by staff"] += has_acted
        return has_acted


def _judge(run: Run, flows: list[graphs.Workflow]) -> None:
    events = by_task(run.history)
    for flow in flows:
        try:
            judge(flow.id, events)
        except AssertionError as error:
            run.broken.append(f"{flow.name}: {error}")
    try:
        graphs.judge_log(run.log)
    except AssertionError as error:
        run.broken.append(str(error))
    if not Task.objects.filter(attempt__gt=1).exists():
        run.broken.append("no task ran again, so the faults hit nothing")
    if mended := get_index().stats().counts.get(MENDED):  # since the last flush
        run.broken.append(f"the sweep found {mended} forgotten tasks")


def _counts(plans: list[graphs.Plan]) -> dict[str, int]:
    """Return what the run consisted of."""
    states = Row.objects.values_list("state").annotate(number=Count("*")).order_by()
    sizes = [plan.size for plan in plans]
    return {
        "graphs": len(plans), "tasks of the largest": max(sizes), "tasks": Task.objects.count(),
        "tasks that ran again": Task.objects.filter(attempt__gt=1).count(),
        "tasks that tasks added": WorkflowNode.objects.filter(added_by__isnull=False).count(),
        "compensations": WorkflowNode.objects.filter(compensates__isnull=False).count(),
        "steps, sleeps and signals": StepResult.objects.count(),
    } | {f"ended as {state}": number for state, number in states}  # fmt: skip
