"""The Celery app for the queue's maintenance tasks: `celery -A taskqueue_project worker --beat`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "taskqueue_project.settings.dev")

from django.conf import settings  # after the settings are named

app = Celery("taskqueue_project")
app.conf.update(
    broker_url=settings.REDIS_URL,
    broker_connection_retry_on_startup=True,
    # Results are not needed: the tasks are idempotent and record their runs in the rows.
    task_ignore_result=True,
    # JSON only: a message must not be able to run code.
    task_serializer="json",
    accept_content=["json"],
    # The broker shares a Redis with the index and the cache, so its keys have a prefix.
    broker_transport_options={"global_keyprefix": "taskqueue-celery:"},
    worker_send_task_events=False,
    worker_prefetch_multiplier=1,
    timezone="UTC",
)
app.autodiscover_tasks(["queue_app"], related_name="celery_tasks")


def every(task: str, seconds: float) -> dict[str, object]:
    """Return a beat entry; a run that no worker has started expires when the next one is due."""
    return {"task": task, "schedule": seconds, "options": {"expires": seconds}}


app.conf.beat_schedule = {
    "promote": every("queue_app.promote", 60.0),
    "expire": every("queue_app.expire", 60.0),
    "snapshot": every("queue_app.snapshot", 60.0),
    "purge": every("queue_app.purge", 60.0),
}
