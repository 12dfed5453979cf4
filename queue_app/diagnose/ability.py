"""Which live workers could run a task, what the others lack, and whether the able ones have a free slot."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from django.db.models import Sum

from queue_app import registry
from queue_app.core.explanation import Reason, all_of
from queue_app.core.sentence import joined, listed, sentence, sentence_n
from queue_app.core.states import Status
from queue_app.models import Task, Worker
from queue_app.models.worker import WorkerStatus
from queue_app.sql.database import alias

#: Maximum number of workers that a sentence names.
NAMED: Final = 3
#: Maximum number of live workers that are compared with a task.
MAX_WORKERS: Final = 500


class Requirements(Protocol):
    """What a task asks of a worker: a row of a task, or a lane of the index."""

    @property
    def queue(self) -> str: ...
    @property
    def task_type(self) -> str: ...
    @property
    def capabilities(self) -> Sequence[str]: ...
    @property
    def weight(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Lack:
    """What a live worker lacks for a task; an able worker lacks nothing."""

    worker: Worker
    queue: bool
    task_type: bool
    capabilities: tuple[str, ...]
    slots: bool

    @classmethod
    def of(cls, worker: Worker, task: Requirements) -> Self:
        return cls(
            worker,
            queue=not worker.serves(task.queue),
            task_type=task.task_type not in worker.task_types,
            capabilities=tuple(name for name in task.capabilities if name not in worker.capabilities),
            slots=worker.concurrency < task.weight,
        )

    @property
    def count(self) -> int:
        return self.queue + self.task_type + len(self.capabilities) + self.slots

    def words(self) -> str:
        parts: list[str] = [sentence("does not serve the queue")] if self.queue else []
        parts += [sentence("does not know the task type")] if self.task_type else []
        parts += [sentence("lacks %(names)s", names=", ".join(self.capabilities))] if self.capabilities else []
        slots = sentence_n("has only %(n)s slot", "has only %(n)s slots", self.worker.concurrency)
        return all_of([*parts, slots] if self.slots else parts)


class Workforce:
    """The live workers that take new tasks, read once for the questions of many tasks."""

    def __init__(self) -> None:
        live = Worker.objects.using(alias()).filter(status=WorkerStatus.ACTIVE)
        self._workers = list(live[:MAX_WORKERS])
        self._taken: Mapping[Any, int] | None = None

    def why_not(self, task: Requirements, *, named: bool) -> Iterator[Reason]:
        """Yield why no live worker runs the task: none is able, or the able ones have no free slot.

        With ``named``, a sentence names the workers that come closest.
        """
        lacks = sorted((_Lack.of(worker, task) for worker in self._workers), key=lambda lack: lack.count)
        able = [lack.worker for lack in lacks if not lack.count]
        if not able:
            yield _none_able(task, lacks, named=named)
        elif (free := max(0, self._most_free(able))) < task.weight:
            text = sentence_n(
                "All slots of the only worker that could run it are taken.",
                "All slots of the %(n)s workers that could run it are taken.",
                len(able),
            )
            if task.weight > 1:
                text = sentence(
                    "It takes %(slots)s slots of one worker; none that could run it has more than %(free)s free.",
                    slots=task.weight, free=free,
                )  # fmt: skip
            details: dict[str, Any] = {"weight": task.weight, "free": free, "workers": len(able)}
            yield Reason("no_free_slot", text, details=details)

    def _most_free(self, workers: Sequence[Worker]) -> int:
        """Return the largest number of free slots in one of the workers, according to the rows."""
        if self._taken is None:
            executing = Task.objects.using(alias()).filter(status=Status.EXECUTING)
            executing = executing.filter(worker_id__in=[worker.id for worker in self._workers])
            self._taken = dict(executing.values_list("worker_id").annotate(total=Sum("weight")))
        return max(int(worker.concurrency) - self._taken.get(worker.id, 0) for worker in workers)


def _none_able(task: Requirements, lacks: Sequence[_Lack], *, named: bool) -> Reason:
    """Return the first requirement that no worker meets, and the workers that come closest."""
    if not lacks:
        return Reason("no_worker", sentence("No live worker takes new tasks. Start one: `manage.py runworker`."))
    requirements: tuple[tuple[str, str, Callable[[_Lack], bool]], ...] = (
        (
            "no_worker_for_queue",
            sentence("No live worker serves the queue %(queue)s.", queue=task.queue),
            lambda lack: not lack.queue,
        ),
        (
            "no_worker_with_capabilities",
            sentence("No live worker of this queue offers %(names)s.", names=", ".join(task.capabilities)),
            lambda lack: not lack.capabilities,
        ),
        (
            "no_worker_knows_type",
            sentence("No live worker that could run it knows the task type %(type)s.", type=task.task_type),
            lambda lack: not lack.task_type,
        ),
        (
            "too_heavy",
            sentence("It takes %(slots)s slots, and no worker that could run it has that many.", slots=task.weight),
            lambda lack: not lack.slots,
        ),
    )
    left, nearest = list(lacks), list(lacks)
    code, text = requirements[-1][:2]
    for code, text, is_met in requirements:  # noqa: B007 - used after the loop
        nearest, left = left, [lack for lack in left if is_met(lack)]
        if not left:
            break
    closest = sorted(lacks, key=lambda lack: (lack.count, lack not in nearest))[:NAMED] if named else []
    if closest:
        nearby = [listed([lack.worker.name, lack.words()], " ") for lack in closest]
        text = joined(text, sentence("Closest: %(workers)s.", workers=listed(nearby, "; ")))
        if code == "no_worker_knows_type":
            text = joined(text, registry.why_unknown(task.task_type))
    details = {"closest": [{"worker": lack.worker.name, "lacks": lack.words()} for lack in closest]}
    return Reason(code, text, details=details)
