"""``manage.py taskqueue VERB``: effects, output and exit codes."""

import io
import json
import os
import pty
import select
import subprocess
import sys
import uuid
from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import BaseCommand, CommandError, call_command
from django.db import OperationalError
from django.tasks import task
from django.utils import timezone

from queue_app import Workflow
from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.index import redis_is_away
from queue_app.management import verbs
from queue_app.management.commands.taskqueue import Command
from queue_app.management.verbs import top
from queue_app.management.verbs.top import page
from queue_app.models import ApiKey, AuditEntry, DeadLetter, Limit, Operation, Queue, RuntimeSettings, Task, TaskPayload
from queue_app.registry import type_of
from queue_app.services.control.api_keys import find_key, forget_keys
from queue_app.services.lifecycle.actions import discard
from queue_app.services.lifecycle.finish import finish
from queue_app.services.upkeep.jobs import take_lead
from queue_app.services.upkeep.maintenance import purge
from tests.support.engine import (
    assert_index_agrees,
    failed,
    flush,
    index_away,
    leave_redis,
    put,
    put_many,
    row,
    status,
    take,
)
from tests.support.factories import let_wait
from tests.support.faults import failing
from tests.support.sessions import transaction_of_another
from tests.workers import chores

ROOT = Path(__file__).resolve().parent.parent.parent.parent


@task
def count_anything(**parameters: object) -> int:
    """Return the number of the parameters."""
    return len(parameters)


COUNT = type_of(count_anything)


def call(*words: object) -> tuple[int, str]:
    """Run a verb; return its exit code and output."""
    out = io.StringIO()
    command = Command()
    command._called_from_command_line = True  # so that an invalid option exits as in a shell
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
def test_no_argument_of_a_verb_has_the_name_of_an_option_of_django(name):
    """Django takes ``options.settings`` and such for its own when a command is called from a shell."""
    verbs.load(name).add_arguments(parser := ArgumentParser())
    of_django = {action.dest: action.option_strings for action in BaseCommand().create_parser("", "")._actions}
    assert all(of_django.get(action.dest, action.option_strings) == action.option_strings for action in parser._actions)


@pytest.mark.parametrize("name", verbs.names())
def test_every_verb_has_help_with_an_example(name, capsys):
    verb = verbs.load(name)
    assert call(name, "--help")[0] == 0
    text = capsys.readouterr().out
    assert verbs.summary(verb) in " ".join(text.split())
    assert f"manage.py {verb.EXAMPLE}" in text
    assert verbs.EXIT_CODES in text


def test_a_mistyped_verb_is_usage():
    assert call("cancle")[0] == 2


def test_django_options_may_follow_the_verb(engine):
    assert call("stats", "--no-color", "-v", "0", "--settings", "taskqueue_project.settings.test")[0] == 0


# -- submit -----------------------------------------------------------------------------------


def test_submit_stores_a_task_and_prints_its_id(engine):
    words = [
        "submit", COUNT, "--param", "a=1", "--param", "b=x=y", "--json-params", '{"a": 0, "c": [2]}', "--queue",
        "default", "--priority", "high", "--as", "cron", "--idempotency-key", "k",
        "--concurrency-key", "customer:7", "--weight", "3",
    ]  # fmt: skip
    code, text = call(*words)
    assert code == 0, text
    task = row(uuid.UUID(text.strip()))
    assert (task.user, task.band, task.status) == ("cron", Band.HIGH, Status.QUEUED)
    assert (task.concurrency_key, task.weight) == ("customer:7", 3)
    assert TaskPayload.objects.get(pk=task.id).parameters == {"a": "1", "b": "x=y", "c": [2]}
    output = read(*words)
    assert (output["task_id"], output["replayed"]) == (str(task.id), True)


def test_submit_with_a_delay(engine):
    output = read("submit", COUNT, "--run-after", "2h")
    assert output["status"] == "scheduled"
    assert call("submit", COUNT, "--run-after", "2030-01-01T00:00:00")[0] == 2  # no zone
    assert call("submit", COUNT, "--run-after", "soon")[0] == 2


@pytest.mark.parametrize(
    "wrong",
    [
        ["no.such.task"],
        [COUNT, "--param", "x"],
        [COUNT, "--json-params", "[]"],
        [COUNT, "--priority", "urgent"],
        [COUNT, "--weight", "0"],
        [COUNT, "--weight", "heavy"],
        [COUNT, "--concurrency-key", "k" * 129],
    ],
)
def test_submit_refuses_invalid_values(engine, wrong):
    code, _ = call("submit", *wrong)
    assert code == 2
    assert Task.objects.count() == 0


def test_submit_works_while_redis_is_away(engine):
    with index_away():
        assert call("submit", COUNT)[0] == 0
    assert Task.objects.count() == 1


# -- cancel, pause, resume ------------------------------------------------------------------------


def test_cancel_continues_after_an_error(engine):
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


def test_cancel_by_filter_counts_first_and_then_cancels_in_one_operation(engine):
    """100 000 tasks were enqueued by mistake; others of the queue stay."""
    wrong, right = put_many(3, "wrong"), put("right")
    found = read("cancel", "--type", "wrong", "--since", "1h", "--status", "queued", "--dry-run")
    assert (found["count"], found["dry_run"]) == (3, True)
    assert read("cancel", "--type", "wrong", "--until", "1h", "--dry-run")["count"] == 0
    done = read("cancel", "--type", "wrong", "--since", "1h", "--wait", "--reason", "a bad import", "--as", "ops")
    assert (done["state"], done["cancelled"], done["total"]) == ("done", 3, 3)
    assert [status(task) for task in wrong] == [Status.CANCELLED] * 3
    assert status(right) is Status.QUEUED
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.by, entry.count, entry.reason) == ("cancel_all", "ops", 3, "a bad import")


def test_cancel_and_reprioritise_require_ids_or_a_filter(engine):
    put()
    for words in (["cancel"], ["reprioritise", "low"]):
        code, text = call(*words)
        assert (code, "Give ids, a filter such as --queue, or --all." in text) == (2, True)
    code, text = call("cancel", "--status", "waiting")
    assert (code, "The states are blocked, cancelled" in text) == (2, True)


def test_reprioritise_by_filter(engine):
    wrong, right = put_many(3, "wrong", priority=Band.CRITICAL), put("right")
    code, text = call("reprioritise", "low", "--type", "wrong", "--wait")
    assert (code, text.endswith("done: 3 of 3 moved\n")) == (0, True)
    assert [row(task).priority for task in wrong] == [Band.LOW] * 3
    assert row(right).priority == Band.NORMAL
    code, text = call("reprioritise", "urgent", "--all")
    assert (code, "urgent" in text) == (2, True)


def test_the_newest_tasks_first(engine):
    tasks = put_many(3)
    newest = ("--limit", "2", "--order", "newest")
    assert read("reprioritise", "high", "--all", "--dry-run", *newest)["sample"] == [str(each) for each in tasks[:0:-1]]
    assert read("reprioritise", "high", "--all", "--wait", *newest)["moved"] == 2
    assert [row(task).priority for task in tasks] == [Band.NORMAL, Band.HIGH, Band.HIGH]


def test_pause_and_resume(engine):
    put()
    code, text = call("pause", "default", "--reason", "moving", "--as", "ops")
    assert (code, text) == (0, "the queue default is paused by ops\n")
    queue = Queue.objects.get(pk="default")
    assert (queue.paused, queue.paused_by, queue.paused_reason) == (True, "ops", "moving")
    assert take(engine.worker()) == []
    assert read("resume", "default") == {"queue": "default", "paused": False}
    assert not Queue.objects.get(pk="default").paused
    assert list(AuditEntry.objects.order_by("id").values_list("action", flat=True)) == ["pause", "resume"]
    code, text = call("pause", "defalt")
    assert (code, "Did you mean 'default'?" in text) == (2, True)


def test_pause_for_a_time(engine):
    put()
    output = read("pause", "default", "--for", "2h")
    assert (output["queue"], output["resume_at"] is not None) == ("default", True)
    left = Queue.objects.get(pk="default").resume_at - timezone.now()
    assert timedelta(hours=1) < left <= timedelta(hours=2)
    assert call("pause", "default", "--for", "2 hours")[0] == 2


@pytest.mark.parametrize(
    "command",
    [
        ["key", "create", "ann", "--for"],
        ["pause", "default", "--for"],
        ["token", "create", "renderer", "--expires-in"],
        ["schedule", "pause", "nightly", "--for"],
        ["submit", COUNT, "--run-after"],
    ],
    ids=" ".join,
)
def test_a_time_needs_a_unit(command, capsys):
    assert call(*command, "90")[0] == 2
    assert "unit" in capsys.readouterr().err


@pytest.mark.parametrize("what", [["--type", "a"], ["--key", "customer:7"], ["--all"]])
def test_pause_a_type_a_key_or_everything(engine, what):
    assert call("pause", *what, "--as", "ops")[0] == 0
    kind = what[0].strip("-")
    found = Limit.objects.get(scope=kind) if kind != "all" else RuntimeSettings.objects.get(pk=1)
    assert (found.paused, found.paused_by) == (True, "ops")
    assert AuditEntry.objects.values_list("action", "target").get() == ("pause", kind)
    assert call("resume", *what)[0] == 0
    found.refresh_from_db()
    assert not found.paused


@pytest.mark.parametrize("words", [["pause"], ["cancel", "--dry-run"], ["replay", "--dry-run"]])
def test_a_mistyped_task_type_is_noted_with_a_suggestion(engine, words):
    code, text = call(*words, "--type", COUNT.replace("count_", "cuont_"))
    assert code == 0
    note, _, _ = text.partition("\n")
    assert f"Did you mean {COUNT!r}" in note
    assert "No task is registered" not in call(*words, "--type", COUNT)[1]


def test_pause_requires_exactly_one_target():
    assert call("pause")[0] == 2
    assert call("pause", "default", "--all")[0] == 2


@pytest.mark.parametrize("verb", ["stats", "top", "explain"])
def test_a_verb_names_the_session_that_locks_a_table_instead_of_waiting_for_it(engine, override, verb):
    override("queue_app.diagnose.servers", REPORTED_SECONDS=0.0)
    words = [verb, put("a")] if verb == "explain" else [verb]
    assert call(*words)[0] == 0
    with transaction_of_another("LOCK TABLE queue_app_task IN ACCESS EXCLUSIVE MODE") as pid:
        code, text = call(*words)
    assert (code, text.startswith("queue_app_task is locked for ")) == (verbs.UNREACHABLE, True)
    assert f"pg_terminate_backend({pid})" in text


def test_explain_names_the_pause(engine):
    task_id = put()
    call("pause", "default", "--reason", "moving")
    code, text = call("explain", task_id)
    assert (code, "moving" in text) == (0, True), text
    output = read("explain", task_id)
    assert (output["task_id"], output["status"]) == (str(task_id), "queued")
    assert output["reasons"]
    code, text = call("explain", uuid.uuid4())
    assert (code, "There is no task" in text) == (1, True)


# -- replay ---------------------------------------------------------------------------------------


@pytest.fixture
def dead(engine):
    """Two dead letters of one queue, one of another."""
    put_many(2, queue="mail", max_retries=0)
    put_many(1, queue="other", max_retries=0)
    finish([failed(task) for task in take(engine.worker(), 3)])


def test_a_dry_run_of_replay(dead):
    output = read("replay", "--queue", "mail", "--died-of", "retries_exhausted", "--dry-run")
    assert (output["count"], len(output["sample"])) == (2, 2)
    assert Operation.objects.count() == 0


def test_replay_by_filter_waits_for_the_end(dead):
    output = read("replay", "--queue", "mail", "--wait", "--stop-after", "0", "--reason", "fixed", "--as", "ops")
    assert (output["state"], output["replayed"]) == ("done", 2)
    assert Operation.objects.values_list("by", "reason").get() == ("ops", "fixed")
    assert Task.objects.filter(status="queued").count() == 2


def test_replay_continues_without_the_caller(dead):
    take_lead("me", 60)
    code, text = call("replay", "--all", "--rate", "5", "--limit", "1")
    assert (code, "the scheduler continues it" in text) == (0, True)
    assert Operation.objects.values_list("rate", "total").get() == (5, 1)


def test_replay_says_that_it_waits_for_a_scheduler(dead):
    code, text = call("replay", "--all")
    assert (code, "start `manage.py runscheduler`" in text) == (0, True)


def test_a_duration_as_since_means_ago(dead):
    assert read("replay", "--since", "1h", "--dry-run")["count"] == 3


def test_replay_takes_ids_of_tasks_as_explain_advises(dead):
    task = Task.objects.filter(status="dead_letter").first()
    assert f"run `manage.py taskqueue replay {task.pk}`" in call("explain", str(task.pk))[1]
    assert read("replay", str(task.pk), "--wait", "--stop-after", "0")["replayed"] == 1
    task.refresh_from_db()
    assert task.status == "queued"
    code, text = call("replay", str(task.pk))
    assert (code, "without an open dead letter" in text) == (1, True)


def test_replay_says_why_it_has_left_a_dead_letter(dead):
    letter = DeadLetter.objects.first()
    discard(letter.pk, by="ops")
    text = call("replay", str(letter.pk), "--wait")[1]
    assert "0 of 0 replayed" in text
    assert f"{letter.pk}: The dead letter cannot be replayed: it was discarded by ops at" in text
    assert "was discarded or has expired" in call("explain", str(letter.task_id))[1]


def test_replay_requires_a_filter(dead):
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
    output = read("rebuild")
    assert (output["rows"], output["tasks"], output["leases"]) == (3, 2, 1)
    assert output["seconds"] >= 0
    assert_index_agrees()
    assert call("rebuild", "--if-needed") == (0, "The index is ready or being rebuilt; nothing to do.\n")


def test_rebuild_refuses_while_another_process_rebuilds(engine):
    engine.index.lock("rebuild", "another", 60)
    code, text = call("rebuild")
    assert (code, "Another process" in text) == (1, True)


def test_stats_as_text_and_as_json(engine):
    put_many(2, queue="mail")
    put()
    text = call("stats")[1]
    assert [line.split()[:6] for line in text.splitlines()[5:]] == [
        ["default", "0", "-", "0", "0", "1"],
        ["mail", "0", "-", "0", "0", "2"],
    ]
    assert read("stats", "--queue", "mail")["by_queue"][0]["depth"] == 2


def test_stats_of_a_queue_that_does_not_exist(engine):
    put(queue="mail")
    code, text = call("stats", "--queue", "mial")
    assert (code, "There is no queue 'mial'. Did you mean 'mail'?" in text) == (2, True)


def test_stats_without_redis_are_those_of_the_rows(engine):
    put()
    with index_away():
        code, text = call("stats")
    assert (code, "PostgreSQL's numbers" in text, "default" in text) == (4, True, True)


def test_rebuild_without_redis(engine):
    with index_away():
        code, text = call("rebuild")
    assert code == 4, text


def test_while_claims_read_the_rows_verbs_need_no_redis(engine, settings):
    put_many(2)
    leave_redis()
    nowhere = settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "nowhere": nowhere}
    settings.TASKQUEUE = {**settings.TASKQUEUE, "REDIS_ALIAS": "nowhere"}
    for verb in ("stats", "top"):
        redis_is_away.clear()  # the verb is a process of its own
        code, text = call(verb)
        assert (code, "Redis has been away for" in text, "tasks run, only slower" in text) == (0, True, True), text
    redis_is_away.clear()
    assert call("rebuild")[0] == 0
    assert len(take(engine.worker(), 2)) == 2


# -- top ------------------------------------------------------------------------------------------


def test_top_prints_once_without_a_terminal(engine):
    put_many(2)
    take(engine.worker())
    text = call("top")[1]
    assert "task queue" in text
    assert text.splitlines()[-1].split()[:2] == ["a", "default"]


def test_top_runs_on_a_terminal_until_q_is_pressed(process_env):
    """A process on a pseudo-terminal takes the screen, draws, and restores the screen."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, ROOT / "manage.py", "taskqueue", "top", "--interval", "60"],
        env=process_env | {"TERM": "xterm", "COLUMNS": "60", "LINES": "20"},
        stdin=child, stdout=child, stderr=child, start_new_session=True,
    )  # fmt: skip
    os.close(child)
    seen = b""
    try:
        while b"last minute" not in seen:
            assert select.select([parent], [], [], 60)[0], seen
            seen += os.read(parent, 4096)
        os.write(parent, b"q")
        assert process.wait(timeout=60) == 0
        while b"\x1b[?1049l" not in seen:
            assert select.select([parent], [], [], 10)[0], seen
            seen += os.read(parent, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    assert seen.startswith(b"\x1b[?1049h")


def test_top_hides_control_characters_in_names(engine, monkeypatch):
    monkeypatch.setattr(top, "lines", lambda _: ["bad\x1b[2Jname"])
    assert "\x1b" not in "\n".join(page(height=50, width=200))


def test_top_survives_a_database_that_is_away(engine):
    with failing(top, "queue_stats", OperationalError("gone")):
        assert page(height=10, width=200)[0] == "PostgreSQL does not answer: gone"


def test_signal(engine):
    task_id = put(COUNT)
    let_wait(row(task_id), schema={"ok": {"type": "boolean"}})
    assert call("signal", task_id, "approved", "--payload", "{")[0] == 2
    code, text = call("signal", task_id, "approved", "--payload", '{"ok": 1}')
    assert (code, "ok must be of the type boolean" in text) == (2, True)
    code, text = call("signal", task_id, "approved", "--payload", '{"ok": true}', "--as", "ina", "--reason", "checked")
    assert (code, text) == (0, f"{task_id}: the task continues\n")
    entry = AuditEntry.objects.get(action="task.signal")
    assert (entry.by, entry.reason, entry.after) == ("ina", "checked", {"signal": "approved", "payload": "********"})
    assert read("signal", task_id, "later")["awaited"] is False


# -- key -------------------------------------------------------------------------------------------------------------


def test_a_key_from_its_making_to_its_end(db, capsys):
    forget_keys()
    User.objects.create_user("ann")
    call_command("taskqueue", "key", "create", "ann", "--scope", "view_task", "--for", "90d", "--json")
    made = json.loads(capsys.readouterr().out)
    assert find_key(made["key"]).scopes == ["view_task"]
    call_command("taskqueue", "key", "list")
    output = capsys.readouterr().out
    assert made["prefix"] in output
    assert made["key"] not in output
    call_command("taskqueue", "key", "revoke", made["prefix"])
    assert find_key(made["key"]) is None
    assert ApiKey.objects.get().expires_at is not None
    assert AuditEntry.objects.filter(via="command").count() == 2
    with pytest.raises((CommandError, SystemExit)):
        call_command("taskqueue", "key", "create", "nobody")


# -- workflow --------------------------------------------------------------------------------------------------------


def say(*words) -> str:
    out = io.StringIO()
    call_command("taskqueue", "workflow", *map(str, words), stdout=out, stderr=out)
    return out.getvalue()


@pytest.fixture
def flow(transactional_db):
    made = Workflow("ship order 7")
    pay = made.add(chores.echo, 1)
    made.add(chores.slow, after=[pay])
    made.enqueue()
    return made


def test_without_workflows(transactional_db):
    assert say("list") == "no workflows\n"


def test_list_and_show(flow):
    assert "ship order 7" in say("list")
    assert say("list", "--state", "completed") == say("list", "--state", "held") == "no workflows\n"
    assert "ship order 7" in say("list", "--state", "open")
    lines = say("show", flow.id).splitlines()
    assert lines[0] == "ship order 7: running, 2 tasks"
    assert [line.split()[0] for line in lines[2:]] == ["echo", "slow"]
    assert lines[3].split()[-1] == "echo"


def test_explain_sends_the_id_of_a_workflow_here(flow):
    with pytest.raises(CommandError, match=f"is a workflow: run `taskqueue workflow show {flow.id}`"):
        call_command("taskqueue", "explain", str(flow.id))


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["pause"], {"blocked"}),
        (["cancel"], {"cancelled"}),
        (["reprioritise", "--priority", "high"], {"queued", "blocked"}),
    ],
)
def test_steer(flow, words, after):
    action, *options = words
    assert f"{action} ship order 7" in say(action, flow.id, *options, "--reason", "because")
    assert set(Task.objects.values_list("status", flat=True)) == after
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.target) == (f"workflow.{action}", "because", "workflow")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show"], "needs the id of a workflow"),
        (["list", "--state", "hold"], "must be one of open, held, paused, running"),
        (["show", "019a2b00-0000-7000-8000-000000000000"], "There is no workflow"),
        (["cancel", "nonsense"], "nonsense"),
    ],
)
def test_wrong_words(transactional_db, words, said):
    with pytest.raises(CommandError, match=said):
        say(*words)


# -- limit -----------------------------------------------------------------------------------------------------------


def test_limit_sets_what_the_admin_can_set(engine):
    text = ["everything.max_concurrent=40", "everything.adaptive=vegas", "queue:mail.max_concurrent=5"]
    text += ["type:shop.tasks.export.rate_count=10", "type:shop.tasks.export.rate_seconds=60"]
    text += ["band:low.promote_after_seconds=90"]
    code, said = call("limit", *text, "--reason", "more memory", "--as", "ops")
    assert (code, said.strip()) == (0, "set: low, runtime settings, mail, type shop.tasks.export"), said
    assert RuntimeSettings.objects.values_list("max_concurrent", "adaptive").get() == (40, "gradient2")
    assert Queue.objects.get(pk="mail").max_concurrent == 5
    assert Limit.objects.get().rate_count == 10
    entries = AuditEntry.objects.values_list("target", "by", "via", "reason")
    assert set(entries) == {
        (target, "ops", "command", "more memory") for target in ("prioritypolicy", "runtimesettings", "queue", "limit")
    }
    assert call("limit", "queue:mail.max_concurrent=none", "everything.adaptive=none")[0] == 0
    assert RuntimeSettings.objects.get().adaptive == "", "fixed again"
    assert Queue.objects.get(pk="mail").max_concurrent is None


@pytest.mark.parametrize(
    "wrong",
    [
        ["max_concurrent=5"],
        ["planet:mail.max_concurrent=5"],
        ["queue:.max_concurrent=5"],
        ["queue:mail.max_concurrent=many"],
        ["queue:mail.max_concurrent=0"],
        ["queue:mail.name=post"],
        ["queue:mail.paused=true"],
        ["type:shop.tasks.export.created_at=now"],
        ["everything.adaptive=gradient2"],
        ["band:urgent.promote_after_seconds=5"],
        ["queue:mail.max_concurrent=5", "everything.max_concurrent=-1"],
        [],
    ],
)
def test_limit_refuses_invalid_settings(engine, wrong):
    before = (Queue.objects.count(), Limit.objects.count())
    code, said = call("limit", *wrong)
    assert code == 2, said
    assert (Queue.objects.count(), Limit.objects.count()) == before
    assert not AuditEntry.objects.exists()
