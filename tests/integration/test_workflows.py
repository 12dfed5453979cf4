"""Workflows while workers and schedulers are killed and Redis is flushed."""

import random
from pathlib import Path

import pytest

from queue_app import Workflow
from queue_app.models import DeadLetter, Task
from queue_app.models import Workflow as Row
from queue_app.services.lifecycle.replay import discard_open, replay_open
from tests.integration.app import tasks
from tests.integration.processes import eventually, index_comes_to_agree
from tests.integration.test_faults import own_redis  # noqa: F401 - a fixture
from tests.queue_app.services.workflows.test_graphs import by_task, judge

pytestmark = pytest.mark.integration

FLOWS = 40


def stored(draw: random.Random, log: str, number: int) -> Workflow:
    """Enqueue a random graph; some of its tasks fail, some add others, some can be undone."""
    flow = Workflow(f"random {number}", on_failure=draw.choice(["hold", "cancel", "continue"]))
    nodes = []
    for place in range(draw.randint(5, 40)):
        after = [
            draw.choice([node, node, node.even_if_failed, node.or_cancel])
            for node in draw.sample(nodes, min(len(nodes), draw.choice([0, 1, 2, 3])))
        ]
        luck = draw.random()
        name = f"{number}.{place}"
        if luck < 0.05:
            node = flow.add(tasks.fail_once, log, name, after=after)
        elif luck < 0.15:
            node = flow.add(tasks.grow, log, name, after=after)
        else:
            node = flow.add_call(tasks.step, (log, name), after=after, compensate=tasks.undo if luck < 0.4 else None)
        nodes.append(node)
    flow.enqueue()
    return flow


def test_random_graphs_while_everything_dies(fleet, own_redis, history, log):  # noqa: F811
    Path(log).touch()
    draw = random.Random(7)
    flows = [stored(draw, log, number) for number in range(FLOWS)]
    scheduler = fleet.scheduler()
    workers = [fleet.worker("--concurrency", "4", heartbeat=1) for _ in range(2)]

    def open_flows() -> int:
        return Row.objects.filter(finished_at=None).count()

    for left in (32, 24, 16, 8):
        eventually(lambda least=left: open_flows() <= least or is_held(), f"{left} workflows are left")
        workers.pop(0).kill()
        workers.append(fleet.worker("--concurrency", "4", heartbeat=1))
        scheduler.kill()
        own_redis.flushall()
        scheduler = fleet.scheduler()
        letters = list(DeadLetter.objects.open().values_list("id", flat=True))
        replay_open(letters[::2], by="ina")
        discard_open(letters[1::2], by="ina")
    eventually(lambda: act() and not open_flows(), "all workflows end")
    events = by_task(history)
    for flow in flows:
        judge(flow.id, events)
    assert Task.objects.filter(attempt__gt=1).exists(), "some ran again"
    index_comes_to_agree()


def is_held() -> bool:
    return DeadLetter.objects.open().exists()


def act() -> bool:
    """Let staff replay what is held."""
    replay_open(list(DeadLetter.objects.open().values_list("id", flat=True)), by="ina")
    return True
