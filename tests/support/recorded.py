"""Two hours of recorded work, as the engine of simulations would have done it."""

import random
import time
import uuid
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from queue_app.core.limits import Limits
from queue_app.core.priorities import Band
from queue_app.models import PriorityPolicy, Queue, Task, Worker
from queue_app.what_if.engine import Engine
from queue_app.what_if.index import simulated_index
from queue_app.what_if.plan import NEVER, SECOND, Crew, Load, Plan, TaskKind
from tests.support.factories import WorkerFactory

HOUR = timedelta(hours=1)


def last_window():
    """Return two hours that ended a while ago."""
    until = timezone.now().replace(microsecond=0) - timedelta(minutes=5)
    return until - 2 * HOUR, until


def history(window, *, workers: bool = True, tasks: int = 400, slots: int = 4) -> None:
    """Store two hours of work, as an unlimited queue `mail` and a queue `imports` with a cap would have done it."""
    chance, since = random.Random(5), round(window[0].timestamp() * SECOND)
    load, kinds = Load(), []
    for band, queue in ((Band.HIGH, "mail"), (Band.NORMAL, "imports"), (Band.LOW, "imports")):
        kinds.append(TaskKind(queue, f"shop.{queue}", band.value, user=f"user-{queue}"))
    for _ in range(tasks):
        load.add(chance.choice(kinds), since + chance.randrange(5400 * SECOND), chance.randrange(30, 90) * SECOND)
    Queue.objects.get_or_create(name="mail")
    Queue.objects.update_or_create(name="imports", defaults={"max_concurrent": 2})
    crew = Crew((), ("shop.imports", "shop.mail"), (), ((since, slots),))
    limits = {"q:imports": Limits(max_concurrent=2), "q:mail": Limits()}
    plan = Plan(
        load=load, crews=(crew,), limits=limits, thresholds=PriorityPolicy.thresholds(), begin=since,
        end=round(window[1].timestamp() * SECOND),
    )  # fmt: skip
    with simulated_index() as index:
        found = Engine(index, plan, real_now=round(time.time() * SECOND)).run()
    worker = WorkerFactory(
        name="one",
        task_types=list(crew.task_types),
        concurrency=slots,
        started_at=window[0],
        last_heartbeat_at=window[1],
    )
    rows = []
    for place, at in enumerate(found.started):
        kind, ended = load.kinds[load.kind[place]], at + load.runs[place]
        if at == NEVER:
            continue
        rows.append(
            Task(
                id=uuid.uuid4(), task_type=kind.task_type, queue=kind.queue, status="completed", priority=kind.band,
                user=kind.user, created_at=when(load.queued_at[place]), queued_at=when(load.queued_at[place]),
                started_at=when(at), finished_at=when(ended), worker_id=worker.id, attempt=1,
            )
        )  # fmt: skip
    Task.objects.bulk_create(rows)
    if not workers:
        Worker.objects.all().delete()


def when(at: int) -> datetime:
    return datetime.fromtimestamp(at / SECOND, UTC)
