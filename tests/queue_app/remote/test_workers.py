"""Remote workers: scopes of tokens, answers, and refused requests."""

import re
import time
import uuid

import pytest
from django.test import Client

from queue_app import Workflow
from queue_app.api.waiting import waiters
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.models import (
    AuditEntry,
    Queue,
    Task,
    TaskAttempt,
    TaskLog,
    TaskProgress,
    TaskResult,
    Worker,
    WorkerToken,
)
from queue_app.registry import type_of
from queue_app.remote import tokens, workers as service
from queue_app.services import cancel, enqueue
from queue_app.services.worker import registration as service_of_workers
from tests.support.crashes import forget_claims
from tests.support.engine import Side, assert_index_agrees
from tests.support.factories import StaffFactory
from tests.support.index_state import client_of
from tests.support.waiting import until
from tests.workers.flow_tasks import large, lengths

TYPE = "shop.tasks.render"


class Remote:
    """A worker that speaks HTTP."""

    def __init__(self, secret, **registration):
        self.client = Client(HTTP_AUTHORIZATION=f"Bearer {secret}")
        wanted = {"name": "far", "task_types": [TYPE], "concurrency": 4} | registration
        self.answer = self.post("/internal/workers/register", wanted)
        self.id = self.answer.json().get("worker_id")

    def post(self, path, body):
        return self.client.post(path, body, content_type="application/json")

    def call(self, what, **body):
        return self.post(f"/internal/workers/{self.id}/{what}", body)

    def take(self, **body):
        return self.call("poll", **({"want": 10} | body)).json()["tasks"]

    def report(self, task, **body):
        named = {"task_id": task["task_id"], "attempt": task["attempt"]}
        return self.call("result", **named, **({"status": "completed"} | body))


@pytest.fixture
def token(engine):
    return tokens.create("far")


@pytest.fixture
def remote(token):
    return Remote(token[1])


def put(**parameters):
    return enqueue(NewTask(task_type=TYPE, parameters=parameters, max_retries=0)).id


def code(response):
    return response.status_code, response.json()["code"]


def test_a_task_goes_out_and_its_result_comes_back(remote):
    task_id = put(page=3)
    [task] = remote.take()
    assert (task["task_id"], task["attempt"], task["parameters"]) == (str(task_id), 1, {"page": 3})
    assert remote.take() == [], "a task is given once"
    assert remote.report(task, result={"pages": 3}).json() == {"accepted": True}
    assert (Task.objects.get(pk=task_id).status, TaskResult.objects.get(pk=task_id).value) == (
        Status.COMPLETED,
        {"pages": 3},
    )
    again = remote.report(task, result={"pages": 4})
    assert code(again) == (409, "stale_lease")
    assert again.json()["task_status"] == Status.COMPLETED
    assert TaskResult.objects.get(pk=task_id).value == {"pages": 3}
    assert_index_agrees()


def test_results_that_flow_into_a_task_are_in_the_answer_of_the_poll(token, settings):
    far = Remote(token[1], task_types=[type_of(large), type_of(lengths)])
    flow = Workflow("join")
    parts = flow.add_many(large, [((1000,), {}) for _ in range(400)])
    joins = [flow.add(lengths, parts.result, after=[parts]) for _ in range(3)]
    flow.enqueue()
    while (tasks := far.take(want=100))[0]["task_type"] == type_of(large):
        named = [{"task_id": task["task_id"], "attempt": 1, "status": "completed"} for task in tasks]
        far.call("result", results=[each | {"result": each["task_id"] + "x" * 964} for each in named])
    [task] = tasks[:1]
    assert [len(part) for part in task["args"][0]] == [1000] * 400, "more than the limit of one payload"
    assert Task.objects.get(pk=task["task_id"]).payload.args[0].keys() == {"$results"}, "it is stored once"
    held = {each["task_id"] for each in tasks}
    settings.TASKQUEUE = {**settings.TASKQUEUE, "WORKFLOWS": {"MAX_INPUT_BYTES": 450_000}}
    for each in tasks:
        far.report(each, status="released")
    first = far.take(want=3, holding=[])
    assert len(first) == 2, "the third would make the answer too long"
    [second] = far.take(want=3, holding=[each["task_id"] for each in first])
    assert {each["task_id"] for each in [*first, second]} == held == {str(node.id) for node in joins}
    settings.TASKQUEUE = {**settings.TASKQUEUE, "WORKFLOWS": {"MAX_INPUT_BYTES": 1000}}
    far.report(second, status="released")
    assert far.take(want=1) == []
    assert TaskAttempt.objects.get(task_id=second["task_id"]).exception_class == "queue_app.exceptions.InputTooLarge"
    assert_index_agrees()


def test_failures_snoozes_and_released_tasks(remote):
    ids = [put(n=n, token="swordfish") for n in range(3)]
    failed, snoozed, back = remote.take()
    error = {"class": "Error", "message": "a\u0000b, not swordfish", "traceback": "at x"}
    remote.report(failed, status="failed", error=error)
    assert "swordfish" not in TaskAttempt.objects.get(task_id=ids[0]).message
    remote.report(snoozed, status="snoozed", snooze=60)
    remote.report(back, status="released")
    states = [Task.objects.get(pk=task_id).status for task_id in ids]
    assert states == [Status.DEAD_LETTER, Status.SCHEDULED, Status.QUEUED]
    many = remote.call("result", results=[{"task_id": back["task_id"], "attempt": 9, "status": "completed"}]).json()
    assert many["refused"] == [{"task_id": back["task_id"], "attempt": 9, "code": "stale_lease"}]
    assert_index_agrees()


def test_a_grant_whose_answer_was_lost_is_given_again(remote):
    task_id = put()
    assert len(remote.take()) == 1
    [again] = remote.take(holding=[])
    assert (again["task_id"], again["attempt"]) == (str(task_id), 2)
    assert remote.take(holding=[again["task_id"]]) == []
    assert Task.objects.get(pk=task_id).failures == 0


def test_a_heartbeat_says_how_many_slots_are_free(remote):
    assert remote.call("heartbeat", free_slots=3).status_code == 200
    assert Worker.objects.get().free_slots == 3
    assert remote.call("heartbeat").status_code == 200, "clients of an earlier version do not say it"
    assert Worker.objects.get().free_slots == 0
    assert remote.call("heartbeat", free_slots=-1).status_code == 400


def test_a_heartbeat_says_what_the_worker_uses(remote):
    assert remote.call("heartbeat", cpu_percent=250.5, memory_bytes=2**33).status_code == 200
    worker = Worker.objects.get()
    assert (worker.cpu_percent, worker.memory_bytes) == (250.5, 2**33)
    assert remote.call("heartbeat").status_code == 200, "clients that do not say it"
    assert Worker.objects.get().memory_bytes is None
    assert remote.call("heartbeat", memory_bytes=-1).status_code == 400


def test_a_heartbeat_carries_progress_lines_extensions_and_brings_cancellations(remote):
    task_id = put()
    [task] = remote.take()
    before = Task.objects.get(pk=task_id).deadline
    said = {"task_id": task["task_id"], "attempt": 1, "progress": 0.4, "message": "half", "lines": "one\ntwo"}
    foreign = {"task_id": str(uuid.uuid4()), "attempt": 1}
    answer = remote.call("heartbeat", running=[said | {"extend": 100}, foreign]).json()
    assert (answer["cancel"], answer["lost"]) == ([], [foreign["task_id"]])
    assert TaskProgress.objects.get(pk=task_id).fraction == 0.4
    assert TaskLog.objects.get(task_id=task_id).lines == "one\ntwo"
    assert (Task.objects.get(pk=task_id).deadline - before).total_seconds() == pytest.approx(100)
    assert remote.call("heartbeat", running=[said | {"extend": 7 * 86_400.0 + 1}]).status_code == 400
    cancel(task_id)
    answer = remote.call("heartbeat", running=[{"task_id": task["task_id"], "attempt": 1}]).json()
    assert (answer["cancel"], answer["cancel_requested"]) == ([str(task_id)], True)
    remote.report(task, result=1)
    assert Task.objects.get(pk=task_id).status == Status.CANCELLED


def test_a_worker_that_deregisters_gives_back_its_tasks(remote):
    task_id = put()
    remote.take()
    assert remote.call("deregister").status_code == 200
    assert remote.call("deregister").status_code == 200, "again, it changes nothing"
    assert Task.objects.get(pk=task_id).status == Status.QUEUED
    assert code(remote.call("poll")) == (409, "worker_lost")
    assert_index_agrees()


def test_a_released_task_that_the_worker_has_lost_meanwhile_is_refused(remote, monkeypatch):
    """Another request of the worker completes the task after this one has read that the worker holds it."""
    put()
    put()
    first, second = remote.take()
    read = service.held

    def completed_meanwhile(*args):
        found = read(*args)
        with monkeypatch.context() as patch:
            patch.setattr(service, "held", read)
            assert remote.report(first).status_code == 200
        return found

    monkeypatch.setattr(service, "held", completed_meanwhile)
    assert code(remote.report(first, status="released")) == (409, "stale_lease")
    named = [{"task_id": task["task_id"], "attempt": 1, "status": "released"} for task in (first, second)]
    monkeypatch.setattr(service, "held", read)
    answer = remote.call("result", results=named).json()
    assert answer["accepted"] == [second["task_id"]]
    assert answer["refused"] == [{"task_id": first["task_id"], "attempt": 1, "code": "stale_lease"}]
    assert_index_agrees()


def test_a_worker_touches_only_its_own_tasks(remote, token):
    task_id = put()
    [task] = remote.take()
    for other in (Remote(token[1]), Remote(tokens.create("other")[1], name="near")):
        refused = other.report(task)
        assert code(refused) == (409, "stale_lease")
        assert "task_status" not in refused.json(), "the status of another worker's task"
    other.id = remote.id
    for what in ("poll", "result", "heartbeat", "deregister"):
        body = {"task_id": task["task_id"], "attempt": 1, "status": "completed"} if what == "result" else {}
        assert code(other.call(what, **body)) == (404, "worker_not_found")
    assert Task.objects.get(pk=task_id).status == Status.EXECUTING


def test_scopes(engine):
    secret = tokens.create("narrow", queues=["video"], capabilities=["gpu"], max_in_flight=1)[1]
    assert code(Remote(secret, queues=["mail"]).answer) == (403, "queue_not_allowed")
    assert code(Remote(secret, capabilities=["gpu", "disk"]).answer) == (403, "capability_not_allowed")
    worker = Remote(secret, capabilities=["gpu"])
    assert worker.answer.json()["queues"] == ["video"]
    put()
    for _ in range(2):
        enqueue(NewTask(task_type=TYPE, queue="video"))
    [task] = worker.take()
    assert task["queue"] == "video"
    assert worker.take() == [], "as many as the token may hold"
    worker.report(task)
    assert len(worker.take()) == 1


def test_tokens_are_rotated_without_a_gap_and_revoked_at_once(remote, token):
    task_id = put()
    remote.take()
    new = tokens.rotate("far")[1]
    assert remote.call("heartbeat").status_code == 200, "the old secret is good for a while"
    assert token[1] not in str(list(Worker.objects.values()) + [vars(t) for t in WorkerToken.objects.all()])
    assert Remote(new).answer.status_code == 201
    assert tokens.revoke("far") == 2
    for secret in (token[1], new):
        assert code(Remote(secret).answer) == (401, "invalid_token")
    assert code(remote.call("poll")) == (401, "invalid_token")
    assert Task.objects.get(pk=task_id).status == Status.QUEUED


@pytest.mark.parametrize(
    "header", [None, "Bearer", "Bearer x", "Bearer tqw_x", "Basic YTpi", "Bearer tqw_" + "x" * 500]
)
def test_every_call_needs_a_token(engine, admin_client, header):
    client = Client(**({"HTTP_AUTHORIZATION": header} if header else {}))
    for path in ("register", f"{uuid.uuid4()}/poll", f"{uuid.uuid4()}/result"):
        response = client.post(f"/internal/workers/{path}", {}, content_type="application/json")
        assert code(response) == (401, "invalid_token")
        assert response["WWW-Authenticate"] == "Bearer"
    assert admin_client.post("/internal/workers/register", {}, content_type="application/json").status_code == 401


def test_bad_requests(remote):
    for body in ({"want": 0}, {"want": -1}, {"want": 10**6}, {"want": "5"}, {"wait": 61}, {"wait": "x"}, {"much": 1}):
        assert remote.call("poll", **body).status_code == 400, body
    assert remote.call("heartbeat", running=[{"task_id": str(uuid.uuid4()), "attempt": 1}] * 1001).status_code == 400
    put()
    [task] = remote.take()
    assert remote.report(task, result="x" * 300_000).status_code == 413
    assert remote.report(task, result={"a": "\u0000"}).status_code == 400
    assert remote.report(task, status="done").status_code == 400
    assert remote.report(task, status="failed").status_code == 400
    assert remote.report(task, result=1).status_code == 200, "the lease was kept"
    for path in ("x/poll", "x/nothing"):
        assert remote.post(f"/internal/workers/{path}", {}).status_code in {400, 404}


def test_a_throttle_closes_a_gate_for_all_workers(remote):
    ids = [put(n=n) for n in range(2)]
    [first] = remote.take(want=1)
    asked = {"scope": "type", "seconds": 60}
    assert remote.report(first, status="throttled").status_code == 400
    assert code(remote.report(first, status="throttled", throttle=asked | {"seconds": 3601}))[0] == 400
    refused = remote.report(first, status="throttled", throttle=asked | {"scope": "key"})
    assert refused.status_code == 400
    assert "has no concurrency_key" in refused.json()["detail"]
    assert remote.report(first, status="throttled", throttle=asked).status_code == 200
    assert [Task.objects.get(pk=task_id).status for task_id in ids] == [Status.QUEUED] * 2
    assert remote.take() == [], "nothing of the type starts"
    assert Task.objects.get(pk=ids[0]).failures == 0
    assert_index_agrees()


def pace(seconds):
    queue, _ = Queue.objects.get_or_create(name="default")
    queue.rate_count, queue.rate_seconds, queue.rate_burst = 1, seconds, 1
    queue.save()


def test_a_poll_says_when_a_limit_allows_the_next_start(remote):
    assert remote.call("poll", want=1).json()["next_start_ms"] is None
    pace(60)
    put()
    found = remote.call("poll", want=1).json()
    assert (found["tasks"], 0 < found["next_start_ms"] <= 60_000) == ([], True)


def test_a_poll_says_that_a_rebuild_still_loads_tasks(remote):
    index = get_index()
    index.lock("rebuild", "another process", 60)
    for state, news in (("loading", (True, 100)), ("ready", (False, None))):
        client_of(index).hset(index.keys.generation, "state", state)
        found = remote.call("poll", want=1).json()
        assert (found["loading"], found["next_start_ms"]) == news


def test_a_poll_that_waits_claims_again_when_a_limit_allows_a_start(remote, override):
    """It does not wait for the next check of its token."""
    override(service, TOKEN_CHECK_SECONDS=1000.0)
    pace(0.2)
    put()
    began = time.monotonic()
    assert len(remote.take(want=1, wait=60)) == 1
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("request_drain", [True, False])
def test_a_poll_that_waits_is_ended_by_news(remote, request_drain):
    """Before, a worker heard of a cancellation, or that it should drain, with its next heartbeat."""
    task_id = put()
    remote.take()
    side = Side(lambda: remote.call("poll", want=1, wait=60).json())
    began = time.monotonic()
    until(lambda: waiters.taken == 1, "it waits")
    if request_drain:
        service_of_workers.request_drain(uuid.UUID(remote.id), by="root")
    else:
        cancel(task_id)
    found = side.result()
    assert (found["tasks"], found["drain"], found["notified"]) == ([], request_drain, True)
    assert time.monotonic() - began < 30
    answer = remote.call("heartbeat").json()
    assert (answer["drain"], answer["cancel"]) == (request_drain, [] if request_drain else [str(task_id)])


@pytest.mark.parametrize("asked", ["by staff", "by itself"])
def test_a_worker_that_drains_gets_no_task(remote, asked):
    put()
    if asked == "by staff":
        service_of_workers.request_drain(uuid.UUID(remote.id), by="root")
    else:
        remote.call("heartbeat", status="draining")
    found = remote.call("poll", want=1).json()
    assert (found["tasks"], found["drain"]) == ([], True)
    began = time.monotonic()
    remote.call("poll", want=1, wait=60)
    assert time.monotonic() - began < 30, "a second, and what a busy machine adds"
    if asked == "by itself":
        remote.call("heartbeat", status="active")
        assert len(remote.take()) == 1, "it may change its mind"


def test_a_wait_says_what_ended_it(remote):
    assert remote.call("wait", wait=0).json() == {"called": False, "notified": False}
    service_of_workers.request_drain(uuid.UUID(remote.id), by="root")
    get_index().flush()
    assert remote.call("wait", wait=20).json() == {"called": True, "notified": True}


def test_a_worker_is_told_of_waiting_types_and_serves_them(remote):
    other = enqueue(NewTask(task_type="shop.tasks.new")).id
    assert remote.take() == []
    assert remote.call("heartbeat").json()["unserved"] == ["shop.tasks.new"]
    assert remote.call("heartbeat", task_types="shop.tasks.new").status_code == 400
    assert remote.call("heartbeat", task_types=[TYPE, "shop.tasks.new"]).json()["unserved"] == []
    [task] = remote.take()
    assert task["task_id"] == str(other)
    assert Worker.objects.get(pk=remote.id).task_types == ["shop.tasks.new", TYPE]


def test_workers_are_listed_newest_first_also_those_that_the_server_names(remote, admin_client):
    made = [remote.post("/internal/workers/register", {}).json()["id"] for _ in range(4)]
    assert [found["id"] for found in admin_client.get("/api/v1/workers").json()["results"]] == [*made[::-1], remote.id]
    assert Worker.objects.values("name").distinct().count() == 5


def test_a_worker_needs_a_name(token):
    for name in ("", " ", "\u2003\t", "x" * 201, "a\nb", 5, None, ["far"]):
        assert Remote(token[1], name=name).answer.status_code == 400, name


def test_a_living_worker_of_another_token_keeps_its_name(remote, token):
    assert Remote(token[1]).answer.status_code == 201, "a worker that begins again"
    other = tokens.create("other")[1]
    assert code(Remote(other).answer) == (409, "worker_name_taken")
    Worker.objects.update(status="stopped")
    assert Remote(other).answer.status_code == 201


@pytest.mark.parametrize("outcome", [
    {"result": {"pages": [3, None]}}, {"result": None}, {},
    {"status": "failed", "error": {"class": "Error", "message": "not swordfish", "traceback": "at x"}},
])  # fmt: skip
def test_an_outcome_may_be_reported_again(remote, outcome):
    """The first answer may have been lost. Another outcome of the same attempt is refused."""
    put(token="swordfish")
    [task] = remote.take()
    assert remote.report(task, **outcome).json() == {"accepted": True}
    assert remote.report(task, **outcome).json() == {"accepted": True, "replayed": True}
    many = remote.call("result", results=[{"task_id": task["task_id"], "attempt": 1, "status": "completed"} | outcome])
    assert (many.json()["replayed"], many.json()["refused"]) == ([task["task_id"]], [])
    for other in ({"result": {"pages": 4}}, {"status": "failed", "error": {"class": "Other"}}, {"status": "released"}):
        assert code(remote.report(task, **other)) == (409, "stale_lease")


@pytest.mark.parametrize("names", [("task_id", "attempt", "leased_at"), ("task_id", "attempt")])
def test_a_heartbeat_brings_back_a_task_that_postgresql_has_forgotten(remote, names):
    enqueue(NewTask(task_type=TYPE))
    get_index().flush()
    [task] = remote.take()
    forget_claims()
    running = [{name: task[name] for name in names}]
    answers = [remote.call("heartbeat", running=running).json() for _ in range(2)]
    assert [answer["again"] for answer in answers] == [True, False]
    assert [answer["lost"] for answer in answers] == [[], []]
    assert Task.objects.get().status == Status.EXECUTING
    assert_index_agrees()
    assert remote.report(task).json()["accepted"]
    assert Task.objects.get().status == Status.COMPLETED


def test_a_report_names_its_grant(remote):
    enqueue(NewTask(task_type=TYPE))
    get_index().flush()
    [task] = remote.take()
    another = {**task, "leased_at": task["leased_at"] + 1}
    assert remote.report(another, leased_at=another["leased_at"]).status_code == 409
    assert remote.call("heartbeat", running=[_named(another)]).json()["lost"] == [task["task_id"]]
    assert remote.report(task, leased_at=task["leased_at"]).json()["accepted"]


def _named(task):
    return {name: task[name] for name in ("task_id", "attempt", "leased_at")}


def test_a_heartbeat_names_an_attempt_once(remote):
    put()
    [task] = remote.take()
    named = {"task_id": task["task_id"], "attempt": 1, "progress": 0.5, "lines": "one"}
    assert code(remote.call("heartbeat", running=[named, named])) == (400, "duplicate_in_batch")
    assert remote.call("heartbeat", running=[named, named | {"attempt": 2}]).status_code == 200


def test_errors_are_checked(remote):
    put()
    [task] = remote.take()
    for change in (
        {"reason": ["error"]}, {"reason": {}}, {"class": ["x"]}, {"class": None}, {"retriable": None},
        {"retriable": "yes"}, {"message": 5}, {"retry_after": -1}, {"colour": 1},
    ):  # fmt: skip
        assert remote.report(task, status="failed", error={"class": "Error"} | change).status_code == 400, change
    assert Task.objects.get().status == Status.EXECUTING


def test_a_step_waits_for_ten_years_at_most(remote):
    put()
    [task] = remote.take()
    step = {"position": 1, "name": "sleep", "kind": "sleep", "until": "9999-12-31T00:00:00Z"}
    answer = remote.call("steps", task_id=task["task_id"], attempt=1, action="store", step=step)
    assert code(answer) == (400, "date_out_of_range")


@pytest.mark.parametrize("text", ["\u0000" * 255, "\ud800" * 255, "x" * 10_000])
def test_texts_that_a_row_cannot_hold_are_escaped_and_cut(remote, text):
    put()
    [task] = remote.take()
    said = {"task_id": task["task_id"], "attempt": 1, "message": text, "lines": text, "progress": 0.5}
    assert remote.call("heartbeat", running=[said]).status_code == 200
    error = {"class": text, "message": text, "traceback": text}
    assert remote.report(task, status="failed", error=error).status_code == 200
    assert 0 < len(TaskAttempt.objects.get().exception_class) <= 255


def test_calls_of_workers_are_not_in_the_audit_log(remote):
    """They come every few seconds and hold payloads."""
    put(password="swordfish")
    [task] = remote.take()
    for what, body in (
        ("wait", {"wait": 0}), ("heartbeat", {"running": [{"task_id": task["task_id"], "attempt": 1, "lines": "one"}]}),
        ("result", {"task_id": task["task_id"], "attempt": 1, "status": "completed", "result": "done"}),
        ("deregister", {}),
    ):  # fmt: skip
        assert remote.call(what, **body).status_code == 200, what
    assert not AuditEntry.objects.exists()


def test_only_a_token_that_says_so_gets_encrypted_tasks(engine, settings, client):
    """The server decrypts tasks for workers; who may not decrypt makes no token that has it done."""
    keys = {"KEYS": ["first:" + 42 * "a" + "A"], "TASKS": [TYPE]}
    settings.TASKQUEUE = settings.TASKQUEUE | {"ENCRYPTION": keys}
    put(card="canary-5d21")
    plain, other = Remote(tokens.create("plain")[1], name="plain"), "shop.tasks.other"
    assert plain.take() == []
    plain.call("heartbeat", running=[], task_types=[TYPE, other])
    assert plain.take() == [], "a heartbeat names more types, and gets no more"
    may = ["view_workertoken", "add_workertoken", "change_workertoken"]
    for permissions, gets in ((may, False), ([*may, "view_encrypted"], True)):
        client.force_login(StaffFactory(permissions=permissions))
        form = {"name": f"gets-{gets}", "max_in_flight": "5", "lifetime": "0", "reads_encrypted": "on"}
        page = client.post("/admin/queue_app/workertoken/add/", form).content.decode()
        secret = re.search(r"tqw_[\w-]{20,}", page)[0]
        assert [task["parameters"] for task in Remote(secret, name=f"far-{gets}").take()] == gets * [
            {"card": "canary-5d21"}
        ]
    assert WorkerToken.objects.get(name="gets-True").reads_encrypted
    assert AuditEntry.objects.filter(after__reads_encrypted=True).count() == 1
    client.force_login(StaffFactory(permissions=may))
    token = WorkerToken.objects.get(name="gets-True")
    assert client.post(f"/admin/queue_app/workertoken/{token.pk}/rotate/").status_code == 403, "it shows the secret"


def test_a_setting_that_encrypts_more_types_takes_them_from_a_worker(remote, settings):
    settings.TASKQUEUE = settings.TASKQUEUE | {"ENCRYPTION": {"KEYS": ["first:" + 42 * "a" + "A"], "TASKS": [TYPE]}}
    put(card="canary-5d21")
    assert remote.take() == []
