"""Mistyped names of queues: a warning with a suggestion, or an error."""

import logging

import pytest
from django.tasks import task_backends
from django.tasks.exceptions import InvalidTask

from queue_app import task
from queue_app.exceptions import UnknownQueue
from queue_app.models import Queue
from queue_app.services.enqueue.store import enqueue, enqueue_many
from tests.support.engine import new
from tests.support.rows import forget_known_queues


@task
def work() -> None: ...


@pytest.fixture
def declare(settings, engine):
    """Declare the queues of the project."""

    def use(*names: str, strict: bool = False) -> None:
        settings.TASKQUEUE = {**settings.TASKQUEUE, "QUEUES": list(names), "STRICT_QUEUES": strict}
        forget_known_queues()

    return use


def test_a_mistyped_name_is_logged_once(declare, caplog):
    caplog.set_level(logging.WARNING, "taskqueue")
    declare("email", "reports")
    for queue in ("emial", "emial", "email", "default"):
        enqueue(new(queue=queue))
    texts = [record.getMessage() for record in caplog.records if record.name == "taskqueue"]
    assert texts == [
        "There is no queue 'emial'. It is not in TASKQUEUE QUEUES, and staff have not made it. Did you mean 'email'?"
    ]
    assert Queue.objects.filter(pk="emial").exists()


def test_a_strict_project_refuses_it(declare):
    declare("email", strict=True)
    for store in (lambda: enqueue(new(queue="emial")), lambda: enqueue_many([new(), new(queue="emial")])):
        with pytest.raises(UnknownQueue, match="Did you mean 'email'"):
            store()
    assert not Queue.objects.filter(pk="emial").exists()
    assert enqueue(new(queue="email")).created
    assert enqueue(new()).created  # the default queue


def test_a_queue_of_staff_is_known(declare):
    Queue.objects.create(name="adhoc")
    declare("email", strict=True)
    assert enqueue(new(queue="adhoc")).created


def test_without_a_declaration_every_name_is_allowed(declare, caplog):
    declare()
    assert enqueue(new(queue="anything")).created
    assert not caplog.records


def test_djangos_own_list_suggests_a_name_too(settings):
    settings.TASKS = {"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": ["default", "email"]}}
    assert "email" in task_backends["default"].queues
    with pytest.raises(
        InvalidTask, match=r"Queue 'emial' is not valid for backend\. .* Did you mean 'email' or 'default'\? Add it"
    ):
        work.using(queue_name="emial")
