"""Upkeep as Celery tasks, for beat; each calls the service of the same name."""

from __future__ import annotations

from celery import shared_task

from queue_app.services import maintenance


@shared_task(name="queue_app.promote", ignore_result=True)  # type: ignore[untyped-decorator]
def promote() -> None:
    """Let aged tasks rise to higher bands."""
    maintenance.promote()


@shared_task(name="queue_app.expire", ignore_result=True)  # type: ignore[untyped-decorator]
def expire() -> None:
    """Give up stale tasks of the queues that expire eagerly."""
    maintenance.expire()


@shared_task(name="queue_app.snapshot", ignore_result=True)  # type: ignore[untyped-decorator]
def snapshot() -> None:
    """Write the statistics of this minute."""
    maintenance.snapshot()


@shared_task(name="queue_app.purge", ignore_result=True)  # type: ignore[untyped-decorator]
def purge() -> None:
    """Delete ended tasks past their retention."""
    maintenance.purge()
