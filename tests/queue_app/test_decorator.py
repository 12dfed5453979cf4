"""Options that come with the decorator of this package, and calls that Django may get."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import pytest
from django.core.files.storage import FileSystemStorage
from django.db import transaction
from django.tasks import TaskResultStatus, default_task_backend, task
from django.tasks.exceptions import InvalidTask
from django.tasks.signals import task_enqueued
from django.template import Context, Template

from queue_app import registry, task as queue_task
from queue_app.backend import QueueTask
from queue_app.core.priorities import Band
from queue_app.models import Task
from queue_app.tasks import OwnOptions
from tests.queue_app.test_backend import add, not_decorated
from tests.support.engine import rolled_back
from tests.workers.stage import StillWorker


@queue_task(queue_name="audit", priority=50, takes_context=True, max_attempts=2, timeout=5)
def audit(context, what: str) -> str:
    return f"{what} in {context.attempt}"


def test_a_task_that_is_called_says_what_to_do():
    with pytest.raises(TypeError, match=r"audit is a task. Use audit.enqueue\(…\) .*, audit.call\(…\)"):
        audit("orders")
    assert Template("{{ task.priority }} {{ task }}").render(Context({"task": audit})).startswith("50 QueueTask")


def test_max_attempts_counts_the_first(engine):
    row = Task.objects.get(pk=add.using(max_attempts=3).enqueue(1).id)
    assert row.max_retries == 2
    assert add.using(max_attempts=3).using(user="x").max_retries == 2
    assert add.using(max_attempts=3).using(max_retries=5).max_attempts is None
    assert add.using(max_retries=5).using(max_attempts=1).max_retries == 0
    assert add.using(max_attempts=3).using(max_attempts=None).max_retries is None


@pytest.mark.parametrize("options", [{"max_attempts": 0}, {"max_attempts": "2"}, {"max_attempts": 2, "max_retries": 2}])
def test_contradictory_attempts(options):
    with pytest.raises(InvalidTask, match="max_attempts"):
        add.using(**options)


def test_a_backoff_is_a_function():
    with pytest.raises(InvalidTask, match="retry_delay"):
        queue_task(backoff=5)(not_decorated)


@pytest.mark.parametrize("option", OwnOptions.__annotations__)
def test_options_of_the_function_are_set_in_the_decorator_only(option):
    with pytest.raises(TypeError, match=f"{option} can be set in the decorator only"):
        add.using(**{option: None})


def test_enqueue_on_commit_stores_in_the_transaction(engine):
    with rolled_back():
        add.enqueue_on_commit(1)
        assert Task.objects.count() == 1
    assert Task.objects.count() == 0
    with transaction.atomic():
        add.enqueue_on_commit(2)
    assert Task.objects.get().payload.args == [2]


def test_enqueue_on_commit_waits_where_the_backend_is_another(rows, settings):
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}}
    with transaction.atomic():
        add.enqueue_on_commit(1)
        assert default_task_backend.results == []
    assert [result.args for result in default_task_backend.results] == [[1]]


# -- the decorator of this package -------------------------------------------------------------


def test_our_decorator_takes_our_options_on_every_django(engine):
    row = Task.objects.get(pk=audit.enqueue("x").id)
    assert (row.queue, row.max_retries, row.timeout, row.band) == ("audit", 1, 5, Band.HIGH)
    assert queue_task(not_decorated).func is not_decorated
    with pytest.raises(TypeError, match=r"using\(run_after"):
        queue_task(run_after=datetime.now(UTC))(not_decorated)
    with pytest.raises(TypeError, match="capability"):
        queue_task(capability="gpu")(not_decorated)


def test_our_decorator_works_on_other_backends(settings):
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend", "QUEUES": []}}
    result = audit.enqueue("x")
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, "x in 1")
    assert audit.using(timeout=7).enqueue("x").return_value == "x in 1"


def test_parameters_that_django_turns_into_json(engine):
    result = default_task_backend.enqueue(add, [(range(2), b"x")], {"b": MappingProxyType({"c": ("d",)})})
    result.refresh()
    assert (result.args, result.kwargs) == ([[[0, 1], "x"]], {"b": {"c": ["d"]}})
    [many] = default_task_backend.enqueue_many(add, [((range(2),), {})])
    assert add.get_result(many.id).args == [[0, 1]]


def test_a_replayed_key_is_not_announced_again(engine):
    heard = []
    task_enqueued.connect(listener := lambda task_result, **_: heard.append(task_result.id))
    keyed = add.using(idempotency_key="k")
    try:
        first = keyed.enqueue(1)
        keyed.enqueue(1)
        default_task_backend.enqueue_many(keyed, [((1,), {})])
    finally:
        task_enqueued.disconnect(listener)
    assert heard == [first.id]


IN_A_FRESH_PROCESS = """
import sys
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["early", "django.contrib.auth", "django.contrib.contenttypes", "rest_framework", "queue_app"],
    TASKS={"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}},
)
import django
django.setup()
import early.models
assert type(early.models.work).__name__ == "QueueTask"
"""


def test_tasks_may_be_defined_while_the_apps_are_loading(tmp_path):
    (tmp_path / "early").mkdir()
    (tmp_path / "early/__init__.py").touch()
    (tmp_path / "early/models.py").write_text(
        "from django.tasks import task\n\n\n@task(priority=5)\ndef work():\n    pass\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_PROCESS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# -- tasks of other packages -----------------------------------------------------------------------------------------


@pytest.fixture
def pictures(settings, engine, known_tasks):
    """Install the app for one test, with its defaults but for the file type."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "pictures"]
    settings.PICTURES = {"FILE_TYPES": ["WEBP"]}
    import pictures.tasks  # noqa: PLC0415 - its app must be installed

    registry.register(pictures.tasks.process_picture_with_django_tasks)  # another test may have imported it before
    return pictures


def test_django_pictures(pictures, tmp_path):
    from pictures.models import PillowPicture  # noqa: PLC0415 - its app must be installed
    from PIL import Image  # noqa: PLC0415 - slow to import

    storage = FileSystemStorage(location=str(tmp_path))
    Image.new("RGB", (800, 600), "orange").save(tmp_path / "cat.png")
    small, large = (PillowPicture("cat.png", "WEBP", None, storage, width) for width in (100, 400))

    def process(**pictures_to_process):
        pictures.tasks.process_picture(
            storage=storage.deconstruct(), file_name="cat.png", sender=("shop", "cat", "photo"), **pictures_to_process
        )

    with rolled_back():
        process(new=[small.deconstruct()])
    with transaction.atomic():
        process(new=[small.deconstruct(), large.deconstruct()])
    row = Task.objects.get()
    assert isinstance(pictures.tasks.process_picture_with_django_tasks, QueueTask)
    assert (row.task_type, row.queue) == ("pictures.tasks.process_picture_with_django_tasks", "pictures")

    worker = StillWorker(concurrency=1)
    worker.until_empty()
    assert Task.objects.get().status == "completed"
    with Image.open(large.path) as resized:
        assert (resized.format, resized.width) == ("WEBP", 400)

    process(old=[small.deconstruct()])
    worker.until_empty()
    assert [row.status for row in Task.objects.all()] == ["completed"] * 2
    assert (small.path.exists(), large.path.exists()) == (False, True)


def good_morning():
    return "good morning"


@pytest.mark.usefixtures("engine")
def test_django_crontask(known_tasks):
    from crontask import cron, scheduler  # noqa: PLC0415 - looks for its settings

    cron("0 3 * * Mon")(task(good_morning))
    [job] = scheduler.get_jobs()
    result = job.func()  # as its process does on Monday at three
    StillWorker(concurrency=1).until_empty()
    result.refresh()
    assert result.return_value == "good morning"
