"""Random workflows while everything that runs them dies, and PostgreSQL and Valkey lose what they hold."""

from __future__ import annotations

import random
import time
from pathlib import Path

from queue_app.index import get_index
from queue_app.models import DeadLetter
from queue_app.models import Workflow as Row
from queue_app.services.lifecycle.replay import discard_open, replay_open
from queue_app.services.workflows.upkeep import MENDED
from tests.integration.faults.arena import patient
from tests.integration.faults.run import PATIENCE, Run
from tests.integration.faults.starts import alone, kill, start
from tests.integration.processes import eventually
from tests.integration.test_workflows import stored
from tests.queue_app.services.workflows.test_graphs import judge


def workflows(run: Run) -> None:
    """Run random graphs: kill workers and the scheduler, flush Valkey, restart PostgreSQL, and let staff decide."""
    Path(run.log).touch()
    draw = random.Random(run.chance.random())
    flows = [stored(draw, run.log, number) for number in range(max(10, min(200, run.count // 10)))]
    above, one = start(run)
    scheduler = run.fleet.processes[0]
    for share in (0.8, 0.6, 0.4, 0.2):
        eventually(lambda least=share: open_flows() <= least * len(flows) or decide(draw), "workflows end", PATIENCE)
        one.kill()
        kill(run.chance.choice(eventually(above.children, "there are workers", PATIENCE)))
        scheduler.kill()
        run.arena.flush()
        run.arena.restart_postgres_at_once()
        began = time.monotonic()
        scheduler, one = run.fleet.scheduler(), alone(run)
        left = open_flows()
        eventually(lambda left=left: open_flows() < left or decide(draw), "workflows end again", PATIENCE)
        run.measured["a workflow ended after a restart (s)"] = time.monotonic() - began
    eventually(lambda: not open_flows() or (decide(draw), False)[1], "all workflows end", 3 * PATIENCE)
    for flow in flows:
        try:
            judge(flow.id, run.history)
        except AssertionError as error:
            run.broken.append(f"{flow.name}: {error}")
    if mended := get_index().stats().counts.get(MENDED):  # since the last flush
        run.broken.append(f"the sweep found {mended} forgotten tasks")


def open_flows() -> int:
    """How many workflows have not ended."""
    return patient(lambda: Row.objects.filter(finished_at=None).count())


def decide(draw: random.Random) -> bool:
    """Let staff replay, or discard, what is held; return whether there was something."""
    letters = patient(lambda: list(DeadLetter.objects.open().values_list("id", flat=True)))
    for letter in letters:
        if draw.random() < 0.5:
            patient(lambda one=letter: replay_open([one], by="ina"))
        else:
            patient(lambda one=letter: discard_open([one], by="ina"))
    return bool(letters)
