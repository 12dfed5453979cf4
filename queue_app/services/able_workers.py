"""Which live workers could run a task, and what those lack that come closest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Sum

from queue_app.core.explanation import Reason
from queue_app.core.states import Status
from queue_app.models import Task, Worker
from queue_app.models.worker import WorkerStatus
from queue_app.rows.database import alias

MAX_WORKERS: Final = 500
NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Lack:
    """What a live worker lacks for a task; nothing, when it is able."""

    worker: Worker
    queue: bool
    task_type: bool
    capabilities: tuple[str, ...]
    slots: bool

    @property
    def count(self) -> int:
        """How many things are missing."""
        return self.queue + self.task_type + len(self.capabilities) + self.slots

    def words(self) -> str:
        """Say what is missing."""
        parts = ["does not serve the queue"] if self.queue else []
        parts += ["does not know the task type"] if self.task_type else []
        parts += [f"lacks {', '.join(self.capabilities)}"] if self.capabilities else []
        parts += [f"has {self.worker.concurrency} slots only"] if self.slots else []
        return " and ".join(parts)


def worker_reasons(task: Task, *, names: bool) -> Iterator[Reason]:
    """Yield why no live worker runs the task: none is able, or those that are have no slot for it.

    With ``names`` it tells which workers those are.
    """
    live = list(Worker.objects.using(alias()).filter(status=WorkerStatus.ACTIVE)[:MAX_WORKERS])
    lacks = sorted((_lack(worker, task) for worker in live), key=lambda lack: lack.count)
    able = [lack.worker for lack in lacks if not lack.count]
    if not able:
        yield _none_able(task, lacks, names=names)
    elif (free := max(0, _most_free(able))) < task.weight:
        text = f"All slots of the {len(able)} workers that could run it are taken."
        if task.weight > 1:
            text = f"It takes {task.weight} slots of one worker at once; at most {free} are free in one."
        details: dict[str, Any] = {"weight": task.weight, "free": free, "workers": len(able)}
        yield Reason("no_free_slot", text, details=details)


def _lack(worker: Worker, task: Task) -> Lack:
    return Lack(
        worker,
        queue=bool(worker.queues) and task.queue not in worker.queues,
        task_type=task.task_type not in worker.task_types,
        capabilities=tuple(name for name in task.capabilities if name not in worker.capabilities),
        slots=worker.concurrency < task.weight,
    )


def _none_able(task: Task, lacks: Sequence[Lack], *, names: bool) -> Reason:
    """Name the first thing that no worker has, and what comes closest."""
    if not lacks:
        return Reason("no_worker", "No live worker takes new tasks.")
    steps: tuple[tuple[str, str, Callable[[Lack], bool]], ...] = (
        ("no_worker_for_queue", f"No live worker serves the queue {task.queue}.", lambda lack: not lack.queue),
        (
            "no_worker_with_capabilities",
            f"No live worker of this queue offers {', '.join(task.capabilities)}.",
            lambda lack: not lack.capabilities,
        ),
        (
            "no_worker_knows_type",
            f"No live worker that could run it knows the task type {task.task_type}.",
            lambda lack: not lack.task_type,
        ),
        ("too_heavy", f"It takes {task.weight} slots, and no such worker has so many.", lambda lack: not lack.slots),
    )
    left, nearest = list(lacks), list(lacks)
    code, text = steps[-1][:2]
    for code, text, keeps in steps:  # noqa: B007 - the first that leaves nobody is the one
        nearest, left = left, [lack for lack in left if keeps(lack)]
        if not left:
            break
    near = sorted(lacks, key=lambda lack: (lack.count, lack not in nearest))[:NAMED] if names else []
    if near:
        text += " Closest: " + "; ".join(f"{lack.worker.name} {lack.words()}" for lack in near) + "."
    return Reason(code, text, details={"closest": [{"worker": x.worker.name, "lacks": x.words()} for x in near]})


def _most_free(workers: Sequence[Worker]) -> int:
    """Return the most slots that are free in one of the workers, by the rows."""
    taken: dict[Any, int] = dict(
        Task.objects.using(alias())
        .filter(status=Status.EXECUTING, worker_id__in=[worker.id for worker in workers])
        .values_list("worker_id")
        .annotate(total=Sum("weight"))
    )
    return max(int(worker.concurrency) - taken.get(worker.id, 0) for worker in workers)
