"""Compares what became of the demo's tasks with what shall become of them."""

from dataclasses import dataclass

from django.db.models import Q, Sum

from queue_app.models import DeadLetter, Worker
from queue_app.models import Task as TaskRow

from . import tasks
from .models import DocumentIndex, RollUp
from .workload import Group, Workload, outcomes


@dataclass(frozen=True)
class Finding:
    """One expectation, whether it came true, and what was found."""

    name: str
    came_true: bool
    detail: str


def judge(workload: Workload) -> list[Finding]:
    """Return a finding for each expectation of the demo."""
    return [
        _files(workload, "count_words", "words counted", Q(words__isnull=True)),
        _files(workload, "compute_digest", "digests computed", Q(digest="")),
        _roll_up(workload),
        _flaky(_row(workload, "flaky")),
        _broken(_row(workload, "broken")),
        _gpu(_row(workload, "needs_gpu")),
    ]


def _row(workload: Workload, name: str) -> TaskRow | None:
    group = workload.group(name)
    return TaskRow.objects.filter(pk=group.ids[0]).first() if group else None


def _files(workload: Workload, kind: str, what: str, missing: Q) -> Finding:
    groups = [group for group in workload.groups if group.name == kind]
    counts = sum((outcomes(group) for group in groups), start=outcomes(Group(kind, [])))
    wanted = sum(len(group.ids) for group in groups)
    without = DocumentIndex.objects.filter(missing, run=workload.run).count()
    detail = f"{counts['completed']} of {wanted} files"
    if without:
        detail += f"; {without} without a result"
    return Finding(what, counts["completed"] == wanted and not without, detail)


def _roll_up(workload: Workload) -> Finding:
    found = RollUp.objects.filter(run=workload.run).first()
    if found is None:
        return Finding("roll-up", came_true=False, detail="missing: it is enqueued when every file is done")
    documents = DocumentIndex.objects.filter(run=workload.run)
    true = found.words == documents.aggregate(sum=Sum("words"))["sum"] and found.documents == documents.count()
    detail = f"{found.words:,} words, {found.lines:,} lines, {found.size:,} bytes in {found.documents:,} files"
    return Finding("roll-up", true, detail)


def _flaky(row: TaskRow | None) -> Finding:
    # Not by the number of the row's attempt, which counts claims: a worker may have given one back unbegun.
    attempt = row.failures + 1 if row else 0
    true = row is not None and row.status == "completed" and attempt == tasks.SUCCEEDS_ON_ATTEMPT
    return Finding("flaky task", true, f"{_status(row)} on attempt {attempt or '-'}")


def _broken(row: TaskRow | None) -> Finding:
    letter = DeadLetter.objects.filter(task_id=row.pk).first() if row else None
    true = row is not None and row.status == "dead_letter" and letter is not None
    detail = f"{_status(row)} after {row.failures if row else 0} attempts"
    return Finding("failing task", true, f"{detail}: {letter.message}" if letter else detail)


def _gpu(row: TaskRow | None) -> Finding:
    alive = Worker.objects.filter(status="active")
    able = sorted(worker.name for worker in alive if "gpu" in worker.capabilities)
    if able:
        # Somebody added such a worker meanwhile, as the last line of the summary proposes.
        true = row is not None and row.status in {"queued", "executing", "completed"}
        return Finding("task for a GPU", true, f"{_status(row)}: {', '.join(able)} offers the capability gpu")
    true = row is not None and row.status == "queued"
    why = f"it needs the capability gpu, and none of the {len(alive)} workers offers it"
    return Finding("task for a GPU", true, f"{_status(row)}: {why}")


def _status(row: TaskRow | None) -> str:
    if row is None:
        return "missing"
    return {"queued": "waits", "dead_letter": "dead-lettered"}.get(row.status, row.status)
