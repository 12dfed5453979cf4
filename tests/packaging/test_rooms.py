"""The kernel without each of its rooms: processes in which the folder of the room cannot be imported."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
from django.conf import settings

from queue_app.core import rooms
from tests.docs.pages import ROOT
from tests.integration.test_migrations import database
from tests.stock.environments import run

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(300)]

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == ROOM or name.startswith(ROOM + "."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ROOM = "queue_app." + sys.argv.pop(1)
sys.meta_path.insert(0, Absent())
from taskqueue_project.settings import test as project
project.INSTALLED_APPS.remove("taskqueue_project.demo")  # which uses workflows
"""
MANAGE = "from django.core.management import execute_from_command_line; execute_from_command_line(sys.argv)"
TESTS = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
USE = """
import json
import django
django.setup()
from django.contrib.auth.models import User
from django.test import Client
from queue_app.core import rooms
from queue_app.core.records import NewTask
from queue_app.models import Task
from queue_app.services import enqueue
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.lifecycle.finish import finish
from queue_app.workers.scheduler import Scheduler
from tests.support.engine import done, take
from tests.support.scene import Scene
from queue_app.index import get_index

rebuild()
stored = enqueue(NewTask(task_type="a", queue="default"))
hand = Scene(get_index()).worker()
Scheduler().run_once()
finish([done(task) for task in take(hand)])
absent = ROOM.rpartition(".")[2]
client = Client()
client.force_login(User.objects.create_superuser("ina"))
pages = ["/admin/", "/admin/queue_app/", "/api/schema", f"/api/v1/{absent}/", "/api/v1/tasks"]
print(json.dumps({
    "rooms": [room.name for room in rooms.present()],
    "status": Task.objects.get(pk=stored.id).status,
    "pages": {page: client.get(page).status_code for page in pages},
}))
"""
#: Tests of the kernel that run without each room.
KERNEL = ("services/lifecycle/test_finish.py", "services/lifecycle/test_turnover.py", "services/repair/test_reap.py")


@pytest.fixture(scope="module")
def migrated():
    """Yield the name of a database with the tables of all apps, to be copied."""
    with database("rooms") as url:
        run(sys.executable, "-W", "ignore", "manage.py", "migrate", "-v0", cwd=ROOT, env=environment(url))
        yield url.rpartition("/")[2]


def environment(url: str) -> dict[str, str]:
    return os.environ | {
        "DATABASE_URL": url,
        "REDIS_URL": settings.REDIS_URL,
        "DJANGO_SETTINGS_MODULE": "taskqueue_project.settings.test",
        "TASKQUEUE_TEST_RUN": f"rooms-{os.getpid()}",
    }


@pytest.mark.parametrize("name", rooms.NAMES)
def test_the_kernel_works_without_a_room(name, migrated):
    def without(code, *words):
        return run(sys.executable, "-W", "ignore", "-c", ABSENT + code, name, *words, cwd=ROOT, env=environment(url))

    with database("without_room", migrated) as url:
        without(MANAGE, "check")
        without(MANAGE, "migrate", "--check")
        found = json.loads(without(USE).splitlines()[-1])
    assert found["rooms"] == [other for other in rooms.NAMES if other != name]
    assert found["status"] == "completed"
    assert found["pages"] == dict.fromkeys(found["pages"], 200) | {f"/api/v1/{name}/": 404}


@pytest.mark.parametrize("name", rooms.NAMES)
def test_tests_of_the_kernel_pass_without_a_room(name):
    tests = [f"tests/queue_app/{path}" for path in KERNEL]
    with database("kernel") as url:
        command = [
            sys.executable,
            "-c",
            ABSENT + TESTS,
            name,
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
            *tests,
        ]
        own = environment(url) | {"PYTEST_XDIST_WORKER": ""}
        own.pop("DJANGO_SETTINGS_MODULE")
        run(*command, cwd=ROOT, env=own)


@pytest.mark.parametrize("name", rooms.NAMES)
def test_everything_that_a_room_adds_is_there(name):
    room = import_module(f"queue_app.{name}.room").ROOM
    for point in room.__dataclass_fields__.keys() - {"name"}:
        (rooms.named if isinstance(getattr(room, point), dict) else rooms.each)(point)


def test_every_room_is_named():
    folders = {path.parent.name for path in Path(rooms.__file__).parents[1].glob("*/room.py")}
    assert folders == set(rooms.NAMES)
