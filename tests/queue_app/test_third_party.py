"""Apps that know nothing of this queue run through it unchanged: django-pictures, django-crontask."""

import pytest
from django.core.files.storage import FileSystemStorage
from django.db import transaction
from django.tasks import task

from queue_app import registry
from queue_app.backend import QueueTask
from queue_app.models import Task
from tests.support.engine import rolled_back
from tests.workers.stage import StillWorker


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
