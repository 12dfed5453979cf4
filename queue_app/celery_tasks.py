"""Celery tasks for beat: the upkeep jobs, and ``submit``, which submits tasks of this queue periodically."""

from datetime import datetime
from typing import Any

from celery import shared_task
from celery.signals import before_task_publish
from django.utils import timezone

from queue_app import registry
from queue_app.core.records import NewTask
from queue_app.periodic import tick_key
from queue_app.services.enqueue.store import submit as submit_by_name
from queue_app.services.upkeep import maintenance

SENT_AT = "taskqueue_sent_at"


def _upkeep(name: str) -> Any:
    """Return the Celery task that runs an upkeep job."""

    def run() -> None:
        maintenance.JOBS[name]()

    return shared_task(run, name=f"queue_app.{name}", ignore_result=True)


promote, expire, snapshot, purge = map(_upkeep, ("promote", "expire", "snapshot", "purge"))


@shared_task(name="queue_app.submit", bind=True, ignore_result=True)  # type: ignore[untyped-decorator]
def submit(
    self: Any, task_type: str, parameters: dict[str, Any] | None = None, *, every: float, name: str = ""
) -> None:
    """Submit a task of this queue once per tick of ``every`` seconds; for entries of beat.

    The tick is the one in which beat sent the message, so a late or repeated delivery submits no second
    task. Entries with different parameters for one task type need different names.
    """
    sent = (self.request.headers or {}).get(SENT_AT)
    at = datetime.fromisoformat(sent) if sent else timezone.now()
    submit_by_name(
        NewTask(
            task_type=task_type,
            parameters=parameters or {},
            idempotency_key=tick_key(name or registry.type_of(registry.get(task_type)), every, at),
        )
    )


@before_task_publish.connect(sender="queue_app.submit", dispatch_uid="queue_app.sent_at")  # type: ignore[untyped-decorator]
def add_time_of_sending(headers: dict[str, Any], **_: Any) -> None:
    """Add the time of sending to the message: this runs in beat, at the tick."""
    headers.setdefault(SENT_AT, timezone.now().isoformat())
