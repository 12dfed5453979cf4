"""New task types are found while the worker runs."""

import sys

import pytest
from django.core.management import CommandError, call_command

from queue_app import registry
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Queue, TaskResult, Worker as WorkerRow
from queue_app.workers.options import WorkerOptions
from tests.support.engine import assert_index_agrees, index_away, put, status
from tests.workers.stage import QUICK, statuses

CANNOT_BE_IMPORTED = "the module of {}.greet cannot be imported; its tasks wait for another worker"


def new_module(monkeypatch, name: str, source: str) -> None:
    """Let ``import name`` run this source, once."""

    class Finder:
        @staticmethod
        def find_spec(wanted, path=None, target=None):
            if wanted != name:
                return None
            from importlib.machinery import ModuleSpec  # noqa: PLC0415

            return ModuleSpec(name, Finder)

        @staticmethod
        def create_module(spec):
            return None

        @staticmethod
        def exec_module(module):
            exec(source, module.__dict__)  # noqa: S102

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])


def test_it_discovers_a_type_of_an_installed_app(hire, monkeypatch, known_tasks):
    name = "taskqueue_project.demo.brand_new"
    kind = f"{name}.greet"
    new_module(monkeypatch, name, "from django.tasks import task\n@task\ndef greet():\n    return 'hi'\n")
    task_id = put(kind)
    worker = hire()
    before = worker.profile
    worker.run_once()
    assert status(task_id) == Status.QUEUED
    assert worker.beat()
    worker.run_once()
    assert status(task_id) == Status.EXECUTING
    assert WorkerRow.objects.get(pk=worker.id).profile == worker.profile.id != before.id
    worker.end()
    assert TaskResult.objects.get(task_id=task_id).value == "hi"
    assert_index_agrees()


def test_a_module_that_breaks_is_tried_once(hire, monkeypatch, warnings_logged):
    name = "taskqueue_project.demo.broken"
    new_module(monkeypatch, name, "1 / 0")
    put(f"{name}.greet")
    other = put(QUICK)
    worker = hire()
    for _ in range(3):
        assert worker.beat()
        worker.run_once()
    assert warnings_logged().count(CANNOT_BE_IMPORTED.format(name)) == 1
    assert status(other) == Status.EXECUTING


def test_a_missing_package_is_reported_and_a_missing_module_explained(hire, monkeypatch, warnings_logged, caplog):
    name = "taskqueue_project.demo.needs_more"
    new_module(monkeypatch, name, "import a_package_that_is_missing")
    for kind in (f"{name}.greet", "taskqueue_project.demo.gone.greet", "elsewhere.greet"):
        put(kind)
    worker = hire()
    with caplog.at_level("INFO", "taskqueue"):
        for _ in range(2):
            assert worker.beat()
            worker.run_once()
    assert warnings_logged().count(CANNOT_BE_IMPORTED.format(name)) == 1
    assert "No module named 'a_package_that_is_missing'" in caplog.text
    (gone,) = [each for each in caplog.messages if "leaves tasks of taskqueue_project.demo.gone.greet" in each]
    assert "the function was renamed or removed" in gone
    (elsewhere,) = [each for each in caplog.messages if "leaves tasks of elsewhere.greet" in each]
    assert "No app in INSTALLED_APPS contains the module elsewhere" in elsewhere


def test_a_burst_discovers_before_it_ends(hire, monkeypatch, known_tasks):
    name = "taskqueue_project.demo.brand_newer"
    new_module(monkeypatch, name, "from django.tasks import task\n@task\ndef greet():\n    return 'hi'\n")
    task_id = put(f"{name}.greet")
    worker = hire(burst=True)
    worker.run_once()
    assert status(task_id) == Status.EXECUTING


@pytest.mark.parametrize("kind", ["os.system", "tests.other.thing", "nothing"])
def test_it_imports_nothing_else(hire, kind, monkeypatch):
    looked = []
    worker = hire()  # it imports the task of the queue itself that ``Workflow.map`` needs
    monkeypatch.setattr(registry, "import_module", looked.append)
    put(kind)
    worker.beat()
    worker.run_once()
    assert looked == []


def test_the_index_is_away_during_discovery(hire):
    put("tests.other.thing")
    worker = hire()
    worker.beat()
    with index_away("unserved_types"):
        worker.run_once()
    worker.later(1)
    task_id = put(QUICK)
    worker.run_once()
    assert status(task_id) == Status.EXECUTING


# -- excluded queues -------------------------------------------------------------------------------------------------


def test_it_leaves_excluded_queues_alone(hire):
    mine, other = put(QUICK, queue="mail"), put(QUICK, queue="video")
    hire(excluded=("video",)).until_empty()
    assert statuses(mine, other) == ["completed", "queued"]


def test_it_serves_a_new_queue_from_the_next_heartbeat_on(hire):
    worker = hire(excluded=("video",))
    late, other = put(QUICK, queue="late"), put(QUICK, queue="video")
    worker.run_once()
    assert statuses(late, other) == ["queued", "queued"]
    worker.discovery.requested = True  # as a heartbeat does
    worker.until_empty()
    assert statuses(late, other) == ["completed", "queued"]
    assert WorkerRow.objects.get(pk=worker.id).queues == ["default", "late"]


def test_it_serves_nothing_if_all_queues_are_excluded(hire):
    task_id = put(QUICK)
    hire(excluded=tuple(Queue.objects.values_list("name", flat=True))).run_once()
    assert statuses(task_id) == ["queued"]


def test_bad_options(engine):
    with pytest.raises(InvalidTaskData, match="leave --queues out"):
        WorkerOptions(queues=("a",), excluded=("b",))
    with pytest.raises(InvalidTaskData, match="is not a name"):
        WorkerOptions(excluded=("a b",))
    with pytest.raises(CommandError, match="--exclude-queues: 'a b' is not a name"):
        call_command("runworker", exclude_queues="a b")
    with pytest.raises(CommandError, match="with --server use --queues"):
        call_command("runworker", server="http://localhost:1", token="t", exclude_queues="video")
