"""The options of a worker."""

import os
import uuid

import pytest

from queue_app.core.process import process_identity
from queue_app.exceptions import InvalidTaskData
from queue_app.workers.options import MAX_NAME, WorkerOptions, check_processes, default_name, identify, numbered_name


def test_defaults():
    options = WorkerOptions()
    assert (options.queues, options.capabilities, options.concurrency) == ((), (), 5)
    assert options.name == default_name()


def test_names_are_sorted_without_repeats():
    options = WorkerOptions(queues=("b", "a", "b"), capabilities=("gpu", "big", "gpu"))
    assert (options.queues, options.capabilities) == (("a", "b"), ("big", "gpu"))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": -1}, "concurrency"),
        ({"concurrency": 1001}, "concurrency"),
        ({"max_tasks": 0}, "max-tasks"),
        ({"max_tasks": -5}, "max-tasks"),
        ({"grace_seconds": -0.1}, "grace"),
        ({"grace_seconds": float("nan")}, "grace"),
        ({"grace_seconds": float("inf")}, "grace"),
        ({"queues": ("a b",)}, "queue"),
        ({"queues": ("",)}, "queue"),
        ({"capabilities": ("{x}",)}, "capabilities"),
        ({"name": ""}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"name": "x" * (MAX_NAME + 1)}, "name"),
        ({"name": "\udcff"}, "name"),
    ],
)
def test_refused(options, field):
    with pytest.raises(InvalidTaskData) as caught:
        WorkerOptions(**options)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 257])
def test_processes_refused(value):
    with pytest.raises(InvalidTaskData, match="between 1 and 256"):
        check_processes(value)


def test_processes():
    assert check_processes(3) == 3


@pytest.mark.parametrize("length", [1, MAX_NAME - 2, MAX_NAME])
def test_the_name_of_one_of_several_processes_is_a_name_too(length):
    name = numbered_name("x" * length, 256)
    assert name.endswith("/256")
    WorkerOptions(name=name)


def test_identify():
    worker_id = uuid.uuid4()
    found = identify(worker_id, "me")
    assert (found.id, found.name, found.pid) == (worker_id, "me", os.getpid())
    assert found.process_identity == process_identity(os.getpid())
    assert len(found.process_identity) <= 255
    assert found.host
    assert found.version
