"""Check the outcome of the demo's tasks."""

from dataclasses import dataclass

from django.db.models import Q, Sum

from queue_app.models import DeadLetter, Task as TaskRow, Worker

from . import tasks
from .models import DocumentIndex, RollUp
from .workload import Workload


@dataclass(frozen=True)
class Expectation:
    """One expectation, whether it is met, and details."""

    name: str
    is_met: bool
    detail: str


def judge(workload: Workload) -> list[Expectation]:
    """Return all expectations of the demo."""
    return [
        _files(workload, "count_words", "words counted", Q(words__isnull=True)),
        _files(workload, "compute_digest", "digests computed", Q(digest="")),
        _roll_up(workload),
        _flaky(_row(workload, "flaky")),
        _broken(_row(workload, "broken")),
        _gpu(_row(workload, "needs_gpu")),
        _approval(_row(workload, "publish")),
        _workflows(workload),
    ]


def _row(workload: Workload, name: str) -> TaskRow | None:
    group = workload.group(name)
    return next(iter(group.rows()), None) if group else None


def _files(workload: Workload, kind: str, what: str, missing: Q) -> Expectation:
    groups = [group for group in workload.groups if group.name == kind]
    wanted = sum(len(group.ids) for group in groups)
    completed = sum(row.status == "completed" for group in groups for row in group.rows())
    without = DocumentIndex.objects.filter(missing, run=workload.run).count()
    detail = f"{completed} of {wanted} files" + (f"; {without} without a result" if without else "")
    return Expectation(what, completed == wanted and not without, detail)


def _roll_up(workload: Workload) -> Expectation:
    found = RollUp.objects.filter(run=workload.run).first()
    if found is None:
        return Expectation("roll-up", is_met=False, detail="missing: the tasks enqueue it when all files are done")
    documents = DocumentIndex.objects.filter(run=workload.run)
    is_met = found.words == documents.aggregate(sum=Sum("words"))["sum"] and found.documents == documents.count()
    detail = f"{found.words:,} words, {found.lines:,} lines, {found.size:,} bytes in {found.documents:,} files"
    return Expectation("roll-up", is_met, detail)


def _flaky(row: TaskRow | None) -> Expectation:
    # The row's attempt counts claims, and a worker may have returned one before it started the task.
    attempt = row.failures + 1 if row else 0
    is_met = row is not None and row.status == "completed" and attempt == tasks.SUCCEEDS_ON_ATTEMPT
    return Expectation("flaky task", is_met, f"{_status(row)} on attempt {attempt or '-'}")


def _broken(row: TaskRow | None) -> Expectation:
    letter = DeadLetter.objects.filter(task_id=row.pk).first() if row else None
    is_met = row is not None and row.status == "dead_letter" and letter is not None
    detail = f"{_status(row)} after {row.failures if row else 0} attempts"
    return Expectation("failing task", is_met, f"{detail}: {letter.message}" if letter else detail)


def _gpu(row: TaskRow | None) -> Expectation:
    alive = Worker.objects.filter(status="active")
    able = sorted(worker.name for worker in alive if "gpu" in worker.capabilities)
    if able:
        # The user has started such a worker, as the quickstart suggests.
        is_met = row is not None and row.status in {"queued", "executing", "completed"}
        return Expectation("task for a GPU", is_met, f"{_status(row)}: {', '.join(able)} offers the capability gpu")
    is_met = row is not None and row.status == "queued"
    why = f"it needs the capability gpu, and none of the {len(alive)} workers offers it"
    return Expectation("task for a GPU", is_met, f"{_status(row)}: {why}")


def _approval(row: TaskRow | None) -> Expectation:
    is_met = row is not None and row.status in {"queued", "executing", "blocked", "completed"}
    why = "it waits for the signal approved; answer it on its page in the admin"
    return Expectation("task for a person", is_met, f"{_status(row)}: {why}")


def _workflows(workload: Workload) -> Expectation:
    found = {flow.name: flow.standing for flow in workload.flows}
    is_met = all(found[flow.name] == flow.expected for flow in workload.flows)
    return Expectation("workflows", is_met, "; ".join(f"{name}: {standing}" for name, standing in found.items()))


def _status(row: TaskRow | None) -> str:
    if row is None:
        return "missing"
    return {"queued": "waits", "blocked": "waits", "dead_letter": "dead-lettered"}.get(row.status, row.status)
