"""The Celery app of the reference project."""

from taskqueue_project.celery import app


def test_the_beat_runs_every_maintenance_task_and_nothing_else():
    app.loader.import_default_modules()
    ours = {name for name in app.tasks if name.startswith("queue_app.")} - {"queue_app.submit"}  # that is for projects
    assert ours
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} == ours


def test_a_run_that_no_worker_starts_expires_when_the_next_is_due():
    for entry in app.conf.beat_schedule.values():
        assert entry["options"]["expires"] <= entry["schedule"]


def test_messages_are_json_only():
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_serializer == "json"
