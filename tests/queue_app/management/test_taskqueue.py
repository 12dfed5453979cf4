"""``manage.py taskqueue VERB``: what each does, says and returns."""

import io
import json
import uuid
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.management import verbs
from queue_app.management.commands.taskqueue import Command
from queue_app.models import AuditEntry, Queue, ReplayOperation, Task, TaskPayload
from queue_app.services.finish import finish
from queue_app.services.maintenance import purge
from tests.support.engine import assert_index_agrees, failed, flush, index_away, put, put_many, row, status, take

COUNT = "taskqueue_project.demo.tasks.count_words"


def call(*words: object) -> tuple[int, str]:
    """Run a verb; return its exit code and what it printed."""
    out = io.StringIO()
    command = Command()
    command._called_from_command_line = True  # so that a wrong option ends it as in a shell
    try:
        call_command(command, *map(str, words), stdout=out, stderr=out)
    except CommandError as error:
        return error.returncode, out.getvalue() + str(error)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def read(*words: object) -> object:
    """Run a verb that prints JSON; return it."""
    code, text = call(*words, "--json")
    assert code == 0, text
    return json.loads(text)


@pytest.mark.parametrize("name", verbs.names())
def test_every_verb_explains_itself_with_an_example_that_it_takes(name):
    verb = verbs.load(name)
    parser = Command().create_parser("manage.py", "taskqueue")
    sub = parser._subparsers._group_actions[0].choices[name]
    text = sub.format_help()
    assert verbs.summary(verb) in " ".join(text.split())
    assert f"manage.py {verb.EXAMPLE}" in text
    assert verbs.EXIT_CODES in text


def test_a_mistyped_verb_is_usage():
    assert call("cancle")[0] == 2


def test_django_options_may_follow_the_verb(engine):
    assert call("stats", "--no-color", "-v", "0", "--settings", "taskqueue_project.settings.test")[0] == 0


# -- submit -----------------------------------------------------------------------------------


def test_submit_stores_a_task_and_prints_its_id(engine):
    code, text = call(
        "submit", COUNT, "--param", "a=1", "--param", "b=x=y", "--json-params", '{"a": 0, "c": [2]}', "--queue",
        "default", "--priority", "high", "--as", "cron", "--idempotency-key", "k",
    )  # fmt: skip
    assert code == 0, text
    task = row(uuid.UUID(text.strip()))
    assert (task.user, task.band, task.status) == ("cron", Band.HIGH, Status.QUEUED)
    assert TaskPayload.objects.get(pk=task.id).parameters == {"a": "1", "b": "x=y", "c": [2]}
    told = read(
        "submit", COUNT, "--param", "a=1", "--param", "b=x=y", "--json-params", '{"a": 0, "c": [2]}', "--queue",
        "default", "--priority", "high", "--as", "cron", "--idempotency-key", "k",
    )  # fmt: skip
    assert (told["task_id"], told["replayed"]) == (str(task.id), True)


def test_submit_for_later(engine):
    told = read("submit", COUNT, "--run-after", "2h")
    assert told["status"] == "scheduled"
    assert call("submit", COUNT, "--run-after", "2030-01-01T00:00:00")[0] == 2  # no zone
    assert call("submit", COUNT, "--run-after", "soon")[0] == 2


@pytest.mark.parametrize(
    "wrong",
    [["no.such.task"], [COUNT, "--param", "x"], [COUNT, "--json-params", "[]"], [COUNT, "--priority", "urgent"]],
)
def test_submit_refuses_what_it_cannot_use(engine, wrong):
    code, _ = call("submit", *wrong)
    assert code == 2
    assert Task.objects.count() == 0


def test_submit_works_while_redis_is_away(engine):
    with index_away():
        assert call("submit", COUNT)[0] == 0
    assert Task.objects.count() == 1


# -- cancel, pause, resume ------------------------------------------------------------------------


def test_cancel_goes_on_after_one_that_it_cannot(engine):
    waiting, missing = put(), uuid.uuid4()
    running = put(priority=Band.HIGH)
    take(engine.worker())
    code, text = call("cancel", waiting, missing, running, "--as", "ops")
    assert code == 1
    assert f"{waiting}: cancelled" in text
    assert f"{running}: asked to stop" in text
    assert f"There is no task {missing}" in text
    assert status(waiting) is Status.CANCELLED
    assert sorted(AuditEntry.objects.values_list("by", "via", "target_id")) == sorted(
        [("ops", "command", str(waiting)), ("ops", "command", str(running))]
    )
    assert call("cancel", "x")[0] == 2


def test_pause_and_resume(engine):
    put()
    assert call("pause", "default", "--reason", "moving", "--as", "ops") == (0, "queue default is paused by ops\n")
    queue = Queue.objects.get(pk="default")
    assert (queue.paused, queue.paused_by, queue.paused_reason) == (True, "ops", "moving")
    assert take(engine.worker()) == []
    assert read("resume", "default") == {"queue": "default", "paused": False}
    assert not Queue.objects.get(pk="default").paused
    assert list(AuditEntry.objects.order_by("id").values_list("action", flat=True)) == ["pause", "resume"]
    code, text = call("pause", "defalt")
    assert (code, "Did you mean 'default'?" in text) == (2, True)


# -- replay ---------------------------------------------------------------------------------------


@pytest.fixture
def dead(engine):
    """Two dead letters of one queue, one of another."""
    put_many(2, queue="mail", max_retries=0)
    put_many(1, queue="other", max_retries=0)
    finish([failed(task) for task in take(engine.worker(), 3)])


def test_replay_tells_first_what_it_would_do(dead):
    told = read("replay", "--queue", "mail", "--reason", "retries_exhausted", "--dry-run")
    assert (told["count"], len(told["sample"])) == (2, 2)
    assert ReplayOperation.objects.count() == 0


def test_replay_by_filter_waits_for_the_end(dead):
    told = read("replay", "--queue", "mail", "--wait", "--stop-after", "0", "--why", "fixed", "--as", "ops")
    assert (told["state"], told["replayed"]) == ("done", 2)
    assert ReplayOperation.objects.values_list("by", "reason").get() == ("ops", "fixed")
    assert Task.objects.filter(status="queued").count() == 2


def test_replay_goes_on_without_the_caller(dead):
    code, text = call("replay", "--all", "--rate", "5", "--limit", "1")
    assert (code, "the scheduler goes on" in text) == (0, True)
    assert ReplayOperation.objects.values_list("pace", "total").get() == (5, 1)


def test_replay_wants_to_know_which(dead):
    code, text = call("replay")
    assert (code, "--all" in text) == (2, True)
    assert call("replay", "--all", "--rate", "0")[0] == 2


# -- purge, rebuild, stats ------------------------------------------------------------------------


def test_purge_counts_what_it_would_delete_and_deletes_it(rows, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "RETENTION": {"SUCCESS_SECONDS": 100, "FAILURE_SECONDS": 100}}
    put_many(3)
    kept = put()
    old = timezone.now() - timedelta(days=1)
    Task.objects.exclude(pk=kept).update(status="completed", attempt=1, finished_at=old)
    assert read("purge", "--dry-run") == {"tasks": 3, "dry_run": True}
    assert Task.objects.count() == 4
    assert read("purge", "--as", "cron") == {"tasks": 3, "dry_run": False}
    assert list(Task.objects.values_list("pk", flat=True)) == [kept]
    assert AuditEntry.objects.values_list("action", "by", "count").get() == ("purge", "cron", 3)
    assert purge() == 0


def test_rebuild_reports_what_it_wrote(engine):
    put_many(3)
    take(engine.worker())
    flush(engine)
    told = read("rebuild")
    assert (told["rows"], told["tasks"], told["leases"]) == (3, 2, 1)
    assert told["seconds"] >= 0
    assert_index_agrees()
    assert call("rebuild", "--if-needed") == (0, "The index is ready, or is being rebuilt; nothing was done.\n")


def test_rebuild_leaves_it_to_another_who_is_at_it(engine):
    engine.index.hold("rebuild", "another", 60)
    code, text = call("rebuild")
    assert (code, "Somebody else" in text) == (1, True)


def test_stats_as_text_and_as_json(engine):
    put_many(2, queue="mail")
    put()
    text = call("stats")[1]
    assert [line.split()[:6] for line in text.splitlines()[5:]] == [
        ["default", "0", "-", "0", "0", "1"],
        ["mail", "0", "-", "0", "0", "2"],
    ]
    assert read("stats", "--queue", "mail")["queues"][0]["depth"] == 2


def test_stats_say_what_the_rows_know_when_redis_is_away(engine):
    put()
    with index_away():
        code, text = call("stats")
    assert (code, "cannot be reached" in text) == (4, True)


def test_what_needs_redis_says_that_it_is_away(engine):
    with index_away():
        code, text = call("rebuild")
    assert code == 4, text
