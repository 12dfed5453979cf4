"""Both ways start the same tasks in the same order, whatever waits and whatever limits hold: for random states.

The index in Redis only proposes, so its claims come first, and the rows stay as they are for those of the other way. A
queue in which owners take turns has no caps of users here: with some, Redis can meet such a queue a little late, in one
of some hundred states.
"""

import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from queue_app import conf
from queue_app.core.ids import uuid7
from queue_app.core.records import Lease, TaskRef
from queue_app.index import Profile, get_index
from queue_app.models import Limit, Queue, RuntimeSettings, Task, TaskPayload
from queue_app.services.repair.rebuild import rebuild

#: What a state may have, beside bands, ages, capabilities and several profiles.
STATES = {
    "nothing else": (),
    "turns and arrival": ("turns",),
    "heavy tasks": ("weights", "turns"),
    "caps": ("caps", "turns"),
    "caps of users": ("caps", "users", "arrival", "weights"),
    "pauses": ("caps", "pauses", "users"),
    "rates": ("caps", "rates"),
}
TYPES = ("a", "b", "c")
KEYS = ("", "", "k", "k:a", "k:b", "m:x", "m:y")
#: A bucket of a rate or a minimum delay is full again at each claim.
REFILL_SECONDS = 0.02


@dataclass
class Claim:
    """One claim of a script: by which profile, for how many slots, and which part of what runs ends after it."""

    profile: Profile
    worker: uuid.UUID
    want: int
    ends: float


@dataclass
class Drawn:
    """A state that was written to the rows, and claims to make."""

    tasks: dict[uuid.UUID, Task]
    claims: list[Claim]
    has_rates: bool


def draw(seed: str, has: tuple[str, ...]) -> Drawn:
    """Write a state to the rows."""
    at_random = random.Random(seed)

    def limits(chance: float) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if "caps" in has and at_random.random() < chance:
            found["max_concurrent"] = at_random.randint(1, 4)
        if "rates" in has and at_random.random() < chance:
            found |= at_random.choice(
                [
                    {"rate_count": 1000, "rate_seconds": 1, "rate_burst": at_random.randint(1, 3)},
                    {"min_delay_seconds": 0.005},
                ]
            )
        if "pauses" in has and at_random.random() < chance / 2:
            found |= {"paused": True, "paused_at": timezone.now()}
        return found

    queues = [f"q{number}" for number in range(at_random.randint(1, 4))]
    orders = ["fifo", "fifo", "arrival"] if {"turns", "arrival"} & set(has) else ["fifo"]
    for name in queues:
        own = limits(0.4) | {"order": at_random.choice(orders + ["fair"] * ("turns" in has))}
        if own["order"] == "fair":
            own |= {"fair_by": at_random.choice(["user", "key"]), "fair_weights": {"u": 2.0, "k:a": 3.0, "v": 0.5}}
        if "users" in has and at_random.random() < 0.4:
            own["max_concurrent_per_user"] = min(at_random.randint(1, 2), own.get("max_concurrent", 2))
        Queue.objects.create(name=name, **own)
    for scope, name in [*(("type", name) for name in TYPES), *(("key", name) for name in ("k", "k:a", "m", "m:x"))]:
        if own := limits(0.3):
            Limit.objects.create(scope=scope, name=name, **own)
    overall = at_random.choice([None, at_random.randint(1, 12)]) if "caps" in has else None
    RuntimeSettings.objects.update_or_create(id=1, defaults={"max_concurrent": overall})

    # Some have been promoted. None is promoted between the claims of the two ways: the waits are multiples of 600 s.
    now, rises = timezone.now(), at_random.choice([0, 5])
    ages = [600 * at_random.randint(0, rises) + at_random.uniform(2, 400) for _ in range(60)]
    tasks = [_task(at_random, queues, now - timedelta(seconds=age), has) for age in ages]
    Task.objects.bulk_create(tasks)
    TaskPayload.objects.bulk_create(TaskPayload(task_id=task.id) for task in tasks)
    crews = [
        (
            Profile.of(
                at_random.choice([(), queues[:1]]),
                at_random.sample(TYPES, at_random.randint(1, len(TYPES))),
                at_random.choice([(), ("gpu",), ("gpu", "x")]),
                at_random.choice([None, 2, 8]),
            ),
            uuid.uuid4(),
        )
        for _ in range(2)
    ]
    claims = [Claim(*at_random.choice(crews), at_random.randint(1, 10), at_random.random()) for _ in range(8)]
    claims = [replace(each, want=min(each.want, each.profile.slots or each.want)) for each in claims]
    return Drawn({task.id: task for task in tasks}, claims, "rates" in has)


def _task(at_random: random.Random, queues: list[str], at: Any, has: tuple[str, ...]) -> Task:
    return Task(
        id=uuid7(),
        task_type=at_random.choice(TYPES),
        queue=at_random.choice(queues),
        status="queued",
        priority=at_random.randint(0, 4),
        capabilities=at_random.choice([[], [], ["gpu"], ["gpu", "x"]]),
        user=at_random.choice(["", "u", "v", "w"]),
        concurrency_key=at_random.choice(KEYS),
        weight=at_random.choice([1, 1, 1, 2, 3]) if "weights" in has else 1,
        created_at=at,
        queued_at=at,
    )


def run(drawn: Drawn) -> Iterator[list[str]]:
    """Make the claims in the way that is in force; yield what each one started."""
    rebuild()
    index, running = get_index(), list[Lease]()
    for each in drawn.claims:
        index.register(each.profile, each.worker)
    for each in drawn.claims:
        if drawn.has_rates:
            time.sleep(REFILL_SECONDS)
        proposal = index.claim(each.profile, each.worker, each.want)
        started = [drawn.tasks[task_id] for task_id, _ in proposal.tasks]
        yield [
            f"{task.queue} {task.task_type} {task.priority} {task.user} {task.concurrency_key} {task.queued_at}"
            for task in started
        ]
        running += [Lease(task.id, TaskRef.of(task).lane, proposal.leased_at) for task in started]
        running.sort(key=lambda lease: lease.id)
        ended, running = running[: int(len(running) * each.ends)], running[int(len(running) * each.ends) :]
        index.release(ended)
        if index.way == conf.ROWS:
            ids = [lease.id for lease in ended]
            Task.objects.filter(id__in=ids).update(status="completed", finished_at=timezone.now())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("state", STATES)
def test_both_ways_start_the_same_tasks_in_the_same_order(index, settings, transactional_db, state, seed):
    drawn = draw(f"{state} {seed}", STATES[state])
    by_redis = list(run(drawn))
    settings.TASKQUEUE = settings.TASKQUEUE | {"INDEX": conf.ROWS}
    assert list(run(drawn)) == by_redis
