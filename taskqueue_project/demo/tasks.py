"""The demo's tasks: ordinary functions with `@task`.

A task may run more than once (its worker may die after the work and before the report), so a repeated run writes the
same rows again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from django.db.models import Q, Sum
from django.tasks import TaskContext

from queue_app import task

from . import orders  # noqa: F401 - workers find its tasks through this module
from .models import DocumentIndex, RollUp

DOCUMENTS = "documents"
REPORTS = "reports"

CRITICAL, HIGH, NORMAL, LOW, BACKGROUND = 90, 50, 0, -50, -90
SUCCEEDS_ON_ATTEMPT = 3


@task(queue_name=DOCUMENTS, timeout=60, max_retries=2, retry_delay=0.5)
def count_words(document_id: int) -> dict[str, int]:
    """Count the words and lines of a file."""
    document = DocumentIndex.objects.select_related("run").get(pk=document_id)
    words = lines = 0
    with _path_of(document).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            lines += 1
            words += len(line.split())
    DocumentIndex.objects.filter(pk=document_id).update(words=words, lines=lines)
    _roll_up_when_complete(document.run_id)
    return {"words": words, "lines": lines}


@task(queue_name=DOCUMENTS, priority=LOW, timeout=60, max_retries=2, retry_delay=0.5)
def compute_digest(document_id: int) -> str:
    """Compute the SHA-256 of a file."""
    document = DocumentIndex.objects.select_related("run").get(pk=document_id)
    with _path_of(document).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    DocumentIndex.objects.filter(pk=document_id).update(digest=digest)
    _roll_up_when_complete(document.run_id)
    return digest


@task(queue_name=REPORTS, priority=HIGH, timeout=60, max_retries=2, retry_delay=0.5)
def roll_up(run_id: int) -> dict[str, int]:
    """Compute the totals of a run."""
    documents = DocumentIndex.objects.filter(run=run_id)
    sums = documents.aggregate(
        words=Sum("words", default=0), lines=Sum("lines", default=0), size=Sum("size", default=0)
    )
    combined = hashlib.sha256()
    for digest in documents.order_by("path").values_list("digest", flat=True).iterator():
        combined.update(digest.encode())
    count = documents.count()
    RollUp.objects.update_or_create(
        run_id=run_id, defaults={**sums, "documents": count, "digest": combined.hexdigest()}
    )
    return {"documents": count, "words": sums["words"]}


@task(queue_name=REPORTS, takes_context=True, max_retries=5, retry_delay=0.5)
def flaky(context: TaskContext[Any, Any]) -> str:
    """Fail twice, then succeed, like a service that restarts."""
    if context.attempt < SUCCEEDS_ON_ATTEMPT:
        raise ConnectionError(f"The demo's unreliable service refused attempt {context.attempt}.")
    return f"succeeded on attempt {context.attempt}"


@task(queue_name=REPORTS, max_retries=1, retry_delay=0.5)
def broken() -> None:
    """Always fail, and become a dead letter."""
    raise ValueError("This task of the demo always fails.")


@task(queue_name=REPORTS, takes_context=True)
def publish(context: Any, run_id: int) -> str:
    """Wait for a person to allow the publication of a run's totals."""
    files = context.step("count files", _count_files, run_id)
    answer = context.wait_for(
        "approved",
        schema={
            "publish": {"type": "boolean", "title": f"Publish the totals of {files} files?"},
            "note": {"required": False, "description": "Anything that readers should know."},
        },
    )
    return f"published: {answer.get('note', 'no note')}" if answer["publish"] else "not published"


def _count_files(run_id: int) -> int:
    return DocumentIndex.objects.filter(run=run_id).count()


@task(queue_name=REPORTS, capabilities=("gpu",))
def needs_gpu(run_id: int) -> str:
    """Wait for a worker that offers the capability `gpu`."""
    return f"run {run_id} reached a worker with a GPU"


def roll_up_key(run_id: int) -> str:
    """Return the idempotency key of a run's roll-up."""
    return f"demo-roll-up-{run_id}"


def _roll_up_when_complete(run_id: int) -> None:
    """Enqueue the roll-up when all files of the run are done.

    The last two tasks may both do so; with the idempotency key, their two calls enqueue one task.
    """
    if not DocumentIndex.objects.filter(Q(words__isnull=True) | Q(digest=""), run=run_id).exists():
        roll_up.using(idempotency_key=roll_up_key(run_id)).enqueue(run_id)


def _path_of(document: DocumentIndex) -> Path:
    return Path(document.run.folder) / document.path
