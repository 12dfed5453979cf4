"""Encryption at rest: no table, index, event, log, export, metric or audit entry holds what an encrypted task does."""

import json
import logging
import uuid
from dataclasses import replace

import pytest
from django.core.management import CommandError, call_command
from django.tasks import default_task_backend
from django.urls import reverse
from django.utils import timezone

from queue_app import Workflow, chain, conf, encryption, signal, task
from queue_app.checks import check_encryption
from queue_app.core.records import NewTask, Outcome, TaskFailure
from queue_app.core.redaction import HIDDEN, SEALED
from queue_app.core.states import Status
from queue_app.diagnose.explain import explain
from queue_app.exceptions import EncryptionUnavailable, IdempotencyConflict, InvalidTaskData, TaskFailed
from queue_app.index import get_index
from queue_app.models import (
    AuditEntry,
    DeadLetter,
    Operation,
    Schedule,
    StepResult,
    Task,
    TaskAttempt,
    TaskLog,
    TaskPayload,
)
from queue_app.models.operation import OperationKind
from queue_app.registry import type_of
from queue_app.remote.workers import is_repeated
from queue_app.schedules.backfill import run_schedule
from queue_app.schedules.edit import create_schedule
from queue_app.services.control import encrypted as reencryption
from queue_app.services.enqueue.store import submit
from queue_app.services.lifecycle.actions import delete, replay, run_again, run_now
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.operations import run
from queue_app.services.operations.request import Action, start_operation
from queue_app.services.read.task_filter import TaskFilter
from queue_app.services.requests import consume
from queue_app.services.upkeep.promote import make_due
from tests.support.asking import answer as answer_of, ask
from tests.support.contents import index_text, tables
from tests.support.engine import at_once, redis_client, status
from tests.support.factories import StaffFactory
from tests.workers.secret_tasks import CANARY, echo, fail, newest, once, passes_on, plain, seen, waits

SECRET = "tests.workers.secret_tasks.[!p]*"
FIRST, SECOND = "first:" + 42 * "a" + "A", "second:" + 42 * "b" + "A"


@pytest.fixture(autouse=True)
def keys(settings, captured):
    use(settings, FIRST)
    seen.clear()


def work(worker) -> None:
    """Work until no task is left, and store what the attempts report before they end."""
    while True:
        worker.turn()
        if not worker.in_flight:
            return
        worker.pool.finish()
        worker.store_reports()


def use(settings, *entries, more=()) -> None:
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": list(entries), "TASKS": [SECRET, *more]}}


@pytest.fixture
def staff(client):
    client.force_login(StaffFactory(is_superuser=True))
    return client


# -- nothing is written ------------------------------------------------------------------------------


def test_no_place_holds_the_canary(hire, caplog, staff):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "django.tasks")  # which logs the exception of each failed task
    done, failed = echo.enqueue(text=CANARY), fail.enqueue(CANARY)
    once.enqueue(CANARY)
    newest.enqueue("before")
    newest.enqueue(text=CANARY)  # replaces the arguments
    default_task_backend.enqueue_many(echo, [((CANARY,), {}), ((), {"text": CANARY})])
    echo.using(idempotency_key="k").enqueue(text=CANARY)
    submit(NewTask(task_type=type_of(echo), parameters={"text": CANARY}))
    waiting = waits.enqueue(CANARY)
    create_schedule("hourly", {"task_type": type_of(echo), "parameters": {"text": CANARY}, "every": 3600})
    run_schedule("hourly", by="ann")
    chain((echo, CANARY), (fail, CANARY)).enqueue("secrets")
    before = tables() + index_text()
    work(hire())
    signal(waiting, "answer", {"text": CANARY}, by="ann")
    work(hire())
    pages = [
        reverse("admin:queue_app_task_changelist"),
        *(reverse("admin:queue_app_task_change", args=[result.id]) for result in (done, failed, waiting)),
        reverse("admin:queue_app_deadletter_changelist"),
        reverse("admin:queue_app_schedule_change", args=[Schedule.objects.get().pk]),
        *(f"/api/v1/tasks/{result.id}" for result in (done, failed, waiting)),
        *("/api/v1/tasks/export", "/api/v1/dlq", "/api/v1/schedules", "/metrics"),
    ]
    answers = [staff.get(page) for page in pages]

    assert [answer.status_code for answer in answers] == [200] * len(pages)
    shown = "".join(b"".join(a).decode() if a.streaming else a.content.decode() for a in answers)
    logged = "".join(record.getMessage() + str(record.exc_info) for record in caplog.records if record.name != "shop")
    for place in (before, tables(), index_text(), shown, logged):
        assert len(place) > 500
        assert CANARY not in place
    assert TaskLog.objects.exists()
    assert len(seen) == 9
    assert status(done.id) == status(waiting.id) == Status.COMPLETED
    assert status(failed.id) == Status.DEAD_LETTER


def test_without_encryption_the_tables_hold_the_canary(hire, settings, staff):
    """The search of the test above finds what is there: in tables, pages, and every kind of key of the index."""
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": [FIRST], "TASKS": []}}
    result, failed = plain.enqueue(CANARY), plain.enqueue(CANARY + " again")
    work(hire())
    assert tables().count(CANARY) >= 4
    assert CANARY in staff.get(f"/api/v1/tasks/{result.id}").content.decode()
    assert CANARY in staff.get(reverse("admin:queue_app_task_change", args=[failed.id])).content.decode()
    client, key = redis_client(), f"{get_index().keys.generation}:canary"
    long = CANARY + "x" * 1000
    for write in (
        lambda: client.set(key, long),
        lambda: client.hset(key, "field", long),
        lambda: client.sadd(key, long),
        lambda: client.zadd(key, {long: 1}),
        lambda: client.rpush(key, long),
        lambda: client.xadd(key, {"field": long}),
    ):
        write()
        assert CANARY in index_text()
        client.delete(key)
        assert CANARY not in index_text()


def test_code_reads_what_it_wrote(hire):
    result, failed, waiting = echo.enqueue("a", text=CANARY), fail.enqueue(CANARY), waits.enqueue(CANARY)
    work(hire())
    signal(waiting, "answer", [CANARY])
    work(hire())

    assert result.wait(1) == {"got": CANARY}
    again = default_task_backend.get_result(result.id)
    assert (again.args, again.kwargs) == (["a"], {"text": CANARY})
    assert waiting.wait(1) == [CANARY]
    with pytest.raises(TaskFailed, match=CANARY):
        failed.wait(1)
    assert TaskAttempt.objects.get().message == DeadLetter.objects.get().message == HIDDEN


def test_a_result_by_reference_is_decrypted_for_the_next_task(hire):
    flow = Workflow("pass on")
    first = flow.add(echo, text=CANARY)
    second = flow.add(echo, text=first.result["got"], after=[first])
    flow.enqueue()
    work(hire())
    assert seen[-1] == ((), {"text": CANARY})
    assert status(second.id) == Status.COMPLETED


def test_the_result_of_an_encrypted_task_that_another_runs_is_stored_by_itself_only(hire):
    """The task that ran it needs it no more: it may be purged while the other sleeps."""
    result = passes_on.enqueue()
    for _ in range(2):
        work(hire())
        Task.objects.filter(status="scheduled").update(run_after=timezone.now())
        make_due()
    work(hire())
    assert CANARY not in tables()
    delete(Task.objects.get(task_type=type_of(echo)).id)
    Task.objects.filter(status="scheduled").update(run_after=timezone.now())
    StepResult.objects.filter(kind="sleep").update(until=timezone.now())
    make_due()
    work(hire())
    result.refresh()
    assert result.return_value == len(CANARY)
    assert CANARY not in tables()


# -- keys --------------------------------------------------------------------------------------------


def test_a_worker_without_the_key_leaves_the_task_to_another_and_says_so(hire, settings, warnings_logged):
    result = echo.enqueue(text="a")
    use(settings, SECOND)
    work(hire())
    assert status(result.id) == Status.SCHEDULED
    wanted = "wait for another worker: The key 'first' is not in TASKQUEUE ENCRYPTION.KEYS: add it below the newest."
    assert f"tasks of {type_of(echo)} {wanted}" in warnings_logged()
    (reason,) = (each for each in explain(uuid.UUID(result.id)).reasons if each.code == "waits_until")
    assert "Attempt 1 put it off" in reason.text
    assert not seen
    use(settings, SECOND, FIRST)
    run_now(result.id)
    work(hire())
    assert seen == [((), {"text": "a"})]


@pytest.mark.parametrize("change", ["swap", "cut", "key"])
def test_a_changed_value_is_refused_and_not_retried(hire, change):
    result, other = echo.enqueue(text="a"), once.enqueue("b")
    payload = TaskPayload.objects.get(pk=result.id)
    text = payload.args[SEALED]
    forged = {
        "swap": TaskPayload.objects.get(pk=other.id).args,
        "cut": {SEALED: text[:-8]},
        "key": {SEALED: text[:20] + ("A" if text[20] != "A" else "B") + text[21:]},
    }
    TaskPayload.objects.filter(pk=result.id).update(args=forged[change])
    work(hire())
    assert status(result.id) == Status.FAILED
    assert ((), {"text": "a"}) not in seen


def test_another_key_of_the_same_id_is_named_in_the_log_and_on_the_row(hire, settings, warnings_logged):
    result = echo.enqueue(text="a")
    use(settings, "first:" + 42 * "c" + "A")
    work(hire())
    said = "The key 'first' of this process does not decrypt the stored value. Another key had this id"
    assert any(said in line for line in warnings_logged())
    assert said in TaskAttempt.objects.get(task_id=result.id).message


def test_a_value_that_no_key_decrypts_does_not_stop_the_change_of_keys(hire, settings, warnings_logged):
    changed, good = once.enqueue("b"), echo.enqueue(text="a")
    TaskPayload.objects.filter(pk=changed.id).update(args={SEALED: "first:AAAA"})
    use(settings, SECOND, FIRST)
    call_command("taskqueue", "encrypt")
    assert Operation.objects.get().state == "done"
    assert "second:" in str(TaskPayload.objects.get(pk=good.id).args)
    assert any(line.startswith(f"a value of task {changed.id} stays as it is") for line in warnings_logged())


def test_without_a_key_an_encrypted_task_is_refused(engine, settings):
    use(settings)
    with pytest.raises(EncryptionUnavailable, match="taskqueue encrypt --new-key"):
        echo.enqueue(text="a")
    assert plain.enqueue("a")
    assert "no key" in check_encryption()[0].msg


def test_a_key_is_made_while_the_checks_miss_it(settings, capsys):
    use(settings, more=["*"])
    assert check_encryption()
    call_command("taskqueue", "encrypt", "--new-key", "2026")
    use(settings, capsys.readouterr().out.strip(), more=["*"])
    assert not check_encryption()
    with pytest.raises(CommandError, match="'' is no key id"):
        call_command("taskqueue", "encrypt", "--new-key", "")


def test_a_task_asks_for_it_itself(engine, settings, known_tasks):
    use(settings, FIRST)
    own = task(encrypted=True)(asking)
    assert SEALED in TaskPayload.objects.get(pk=own.enqueue("a").id).args
    with pytest.raises(TypeError, match="only"):
        own.using(encrypted=False)


def asking(text):
    """Become a task in one test."""


def test_a_pattern_of_the_setting_encrypts_more_tasks(engine, settings):
    use(settings, FIRST, more=["tests.*.plain"])
    assert SEALED in TaskPayload.objects.get(pk=plain.enqueue("a").id).args


# -- rotation ----------------------------------------------------------------------------------------


def test_encrypt_brings_everything_under_the_newest_key(hire, settings, capsys):
    old = plain.enqueue(CANARY)  # before its type was encrypted
    results = [echo.enqueue(text=CANARY), fail.enqueue(CANARY), waits.enqueue(CANARY)]
    create_schedule("hourly", {"task_type": type_of(echo), "parameters": {"text": CANARY}, "every": 3600})
    work(hire())
    signal(results[2], "answer", CANARY)
    use(settings, SECOND, FIRST, more=["tests.*.plain"])
    call_command("taskqueue", "encrypt", "--reason", "yearly", "--as", "ann")

    assert "first:" not in tables()
    assert CANARY not in tables()
    assert AuditEntry.objects.get(action="reencrypt").by == "ann"
    assert Operation.objects.get().changed == 4
    use(settings, SECOND, more=["tests.*.plain"])
    work(hire())
    assert results[0].wait(1) == {"got": CANARY}
    assert results[2].wait(1) == CANARY
    assert old.wait(1) == CANARY
    assert Schedule.objects.get().parameters == {"text": CANARY}
    call_command("taskqueue", "encrypt")
    assert Operation.objects.order_by("id").last().changed == 0


def test_encrypt_goes_on_where_a_crash_stopped_it(engine, settings, monkeypatch):
    results = [echo.enqueue(text=str(number)) for number in range(5)]
    use(settings, SECOND, FIRST)
    monkeypatch.setattr(run, "STEP", 2)
    operation = start_operation(Action(kind=OperationKind.REENCRYPT), TaskFilter(), by="ann")
    run.advance(operation.id)
    with monkeypatch.context() as patch:
        patch.setattr(reencryption, "_reencrypt_shared", boom)
        with pytest.raises(RuntimeError):
            run.advance(operation.id)
    assert sum("second:" in str(each) for each in TaskPayload.objects.values_list("args", flat=True)) == 2
    while run.advance(operation.id):
        pass
    assert {default_task_backend.get_result(each.id).kwargs["text"] for each in results} == set("01234")
    assert "first:" not in tables()


def boom(*_args):
    raise RuntimeError("the process died")


def test_a_span_names_the_class_of_an_error_only(hire, exporter):
    fail.enqueue(CANARY)
    work(hire())
    spans = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert "ValueError" in spans
    assert CANARY not in spans


@pytest.mark.parametrize("flow", ["result", "compensate", "encrypted reader"])
def test_a_caller_cannot_pass_data_of_an_encrypted_task_to_a_plain_one(hire, staff, flow):
    """The plain task would store the result as it is, and show it to whoever may view its payload."""
    first = {"name": "a", "task_type": type_of(echo), "parameters": {"text": CANARY}}
    if flow == "compensate":
        tasks = [first | {"compensate": type_of(plain)}]
    else:
        reader = echo if "reader" in flow else plain
        given = {"text": {"$result": "a"}}
        tasks = [first, {"name": "b", "task_type": type_of(reader), "parameters": given, "after": ["a"]}]
    answer = staff.post("/api/v1/workflows", {"name": "f", "tasks": tasks}, content_type="application/json")
    assert answer.status_code == (201 if "reader" in flow else 400), answer.content
    assert ("is encrypted and" in answer.content.decode()) is (flow != "encrypted reader")
    work(hire())
    assert CANARY not in tables()


# -- people ------------------------------------------------------------------------------------------


def test_only_the_permission_decrypts_and_the_audit_log_says_so(hire, client):
    failed = fail.enqueue(CANARY)
    work(hire())
    assert TaskLog.objects.count() == 1
    assert CANARY not in tables()
    page = reverse("admin:queue_app_task_decrypt", args=[failed.id])
    reader = StaffFactory(permissions=["view_task", "view_payload", "cancel_task"])
    client.force_login(reader)
    assert client.post(page).status_code == 403
    assert client.post(f"/api/v1/tasks/{failed.id}/decrypt", {}, "application/json").status_code == 403
    client.force_login(StaffFactory(permissions=["view_task", "view_encrypted"]))
    assert client.get(page).status_code == 405
    shown = client.post(page, {"reason": "ticket 7"})
    answer = client.post(f"/api/v1/tasks/{failed.id}/decrypt", {"reason": "ticket 8"}, "application/json").json()

    assert CANARY in shown.content.decode()
    assert "no-store" in shown["Cache-Control"]
    assert answer["args"] == [CANARY]
    assert CANARY in answer["attempts"][0]["message"]
    assert f"about to fail with {CANARY}" in answer["logs"][0]["lines"][0]
    assert list(AuditEntry.objects.filter(action="task.decrypt").order_by("id").values_list("via", "reason")) == [
        ("admin", "ticket 7"),
        ("api", "ticket 8"),
    ]


def test_only_the_page_of_an_encrypted_task_offers_to_decrypt(engine, staff):
    def offers(result):
        return "/decrypt/" in staff.get(reverse("admin:queue_app_task_change", args=[result.id])).content.decode()

    was_encrypted = plain.enqueue("a")
    assert not offers(was_encrypted)
    sealed = TaskPayload.objects.get(pk=echo.enqueue(text="b").id)
    assert offers(sealed.task)
    TaskPayload.objects.filter(pk=was_encrypted.id).update(args=sealed.args)
    assert offers(was_encrypted), "its type was encrypted once"


def test_a_search_in_encrypted_values_says_so(engine, staff, settings):
    echo.enqueue(text=CANARY)
    kind = type_of(echo)
    answer = staff.get(f"/api/v1/tasks?task_type={kind}&parameters__text={CANARY}")
    assert answer.status_code == 400
    assert f"{kind} is encrypted, so its values cannot be searched." in answer.content.decode()
    use(settings, FIRST, more=["*"])
    page = staff.get(reverse("admin:queue_app_task_changelist") + "?q=error:boom", follow=True)
    assert "is encrypted, so its values cannot be searched" in page.content.decode()


def test_replay_and_run_again_keep_or_replace_the_call(hire):
    failed = fail.enqueue(CANARY)
    done = echo.enqueue(text="a", more=1)
    work(hire())
    shown = {"encrypted": "********"}  # as the form shows it
    copy = run_again(done.id, parameters=shown)
    other = run_again(done.id, parameters={"text": "b"})
    with pytest.raises(InvalidTaskData, match="mask"):
        run_again(done.id, parameters={"text": "********"})
    replay(DeadLetter.objects.get().id, by="ann", parameters=shown)
    work(hire())
    assert default_task_backend.get_result(str(copy.id)).kwargs == {"text": "a", "more": 1}
    assert default_task_backend.get_result(str(other.id)).kwargs == {"text": "b"}
    replay(DeadLetter.objects.filter(replayed_at=None).get().id, by="ann", parameters={"text": CANARY})
    assert TaskPayload.objects.get(pk=failed.id).parameters == {}
    assert default_task_backend.get_result(failed.id).kwargs == {"text": CANARY}


def test_the_request_stream_refuses_an_encrypted_task(engine, settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "REQUESTS": {"ENABLED": True}}
    ask(task_type=type_of(echo), parameters=json.dumps({"text": "a"}))
    consume()
    assert not Task.objects.exists()
    assert "encrypted" in str(answer_of())


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["nonsense", "id:short", FIRST.replace("first", "two words"), f"{FIRST}x"])
def test_a_bad_key_is_reported_without_being_repeated(settings, entry):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": [entry]}}
    (problem,) = check_encryption()
    assert "entry 1" in problem.msg
    assert entry not in problem.msg


def test_a_setting_of_another_shape_does_not_repeat_its_value(settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": FIRST}}
    (problem,) = conf.load()[1]
    assert FIRST not in f"{problem}{problem.hint}"


def test_a_process_without_keys_hides_the_texts(settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": [], "TASKS": [type_of(echo)]}}
    assert encryption.hides(type_of(echo))
    assert not encryption.hides(type_of(plain))


# -- calls that are the same -----------------------------------------------------------------------------------------


def test_an_encrypted_call_is_recognised_as_the_same(engine):
    first = echo.using(idempotency_key="k").enqueue(text="a")
    assert echo.using(idempotency_key="k").enqueue(text="a").id == first.id
    with pytest.raises(IdempotencyConflict):
        echo.using(idempotency_key="k").enqueue(text="b")
    assert once.enqueue("a").id == once.enqueue("a").id != once.enqueue("b").id


def test_a_unique_key_needs_the_secret_key_and_survives_a_rotation(engine, settings):
    first = once.enqueue("a")
    key = Task.objects.get(pk=first.id).unique_key
    use(settings, SECOND, FIRST)
    assert once.enqueue("a").id == first.id
    settings.SECRET_KEY = "another"
    assert Task.objects.get(pk=once.enqueue("a").id).unique_key != key


def test_forty_callers_at_once_store_one_encrypted_task(engine):
    ids = at_once([lambda: once.enqueue("a").id] * 40)
    assert len(set(ids)) == Task.objects.count() == 1


@pytest.mark.parametrize("message", [None, "canary"])
def test_a_repeated_report_of_an_http_worker_is_recognised(engine, message):
    result = fail.enqueue(CANARY)
    hand = engine.worker(type_of(fail))
    (claimed,) = claim(hand.profile, hand.id, 1)
    failure = None if message is None else TaskFailure("ValueError", message, "Traceback", retriable=False)
    finish([Outcome(claimed, claimed.started_at, claimed.started_at, '{"a": 1}', failure=failure)])
    attempt = claimed.key
    assert is_repeated(hand.id, attempt, '{"a":1}', failure)
    other = None if failure is None else replace(failure, message="another")
    assert not is_repeated(hand.id, attempt, '{"a":2}', other)
    assert result.id == str(claimed.id)
