"""A worker that serves all queues but some, also queues that come later."""

import pytest
from django.core.management import CommandError, call_command

from queue_app.exceptions import InvalidTaskData
from queue_app.models import Queue
from queue_app.models import Worker as WorkerRow
from queue_app.workers.options import WorkerOptions
from tests.support.engine import put
from tests.workers.stage import QUICK, statuses


def test_it_leaves_excluded_queues_alone(hire):
    mine, other = put(QUICK, queue="mail"), put(QUICK, queue="video")
    hire(excluded=("video",)).until_empty()
    assert statuses(mine, other) == ["completed", "queued"]


def test_it_serves_a_new_queue_from_the_next_heartbeat_on(hire):
    worker = hire(excluded=("video",))
    late, other = put(QUICK, queue="late"), put(QUICK, queue="video")
    worker.run_once()
    assert statuses(late, other) == ["queued", "queued"]
    worker._discovery.requested = True  # as a heartbeat does
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
