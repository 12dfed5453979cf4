"""The project's Celery app, with a beat that does not take its time."""

from taskqueue_project.celery import app

for entry in app.conf.beat_schedule.values():
    entry.update(schedule=0.3, options={"expires": 10.0})
