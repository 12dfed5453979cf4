"""The search finds what the list shows; filters and orders of the list."""

from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from queue_app import registry
from queue_app.core.priorities import Band
from queue_app.core.redaction import MASK
from queue_app.core.states import Status
from queue_app.models import Operation, Queue, Task
from queue_app.schedules.edit import create_schedule
from queue_app.sql import search as rows
from tests.support.factories import (
    AttemptFactory,
    DeadLetterFactory,
    StaffFactory,
    TaskFactory,
    WorkerFactory,
    let_wait,
    move,
)
from tests.support.pages import CONFIRMED
from tests.workers import chores

NOBODY = "00000000-0000-7000-8000-000000000000"
LIST = "/admin/queue_app/task/"
LETTERS = "/admin/queue_app/deadletter/"
#: Parameter of the list -> (a value, the index that finds the ended tasks with it).
INDEXED = {
    "concurrency_key": ("customer:7", "taskqueue_by_key"),
    "task_type": ("shop.gone", "taskqueue_by_type"),
    "queue": ("nowhere", "taskqueue_ended_pages"),
    "worker_id": ("00000000-0000-7000-8000-000000000077", "taskqueue_ended_pages"),
    "q": ("key:customer:7", "taskqueue_by_key"),
}


@pytest.fixture
def shop(end_task):
    """One task of each kind that the search tells apart, and one that nothing finds."""
    types = ["shop.tasks.send_receipt", "shop.tasks.charge"]
    worker = WorkerFactory(name="gpu-7.fra", host="gpu-7", task_types=types)
    Queue.objects.create(name="payments")
    failed = TaskFactory(task_type="shop.tasks.charge", queue="payments", user="omar")
    move(failed, Status.DEAD_LETTER, worker_id=worker.id)
    AttemptFactory(task=failed, exception_class="shop.gateway.CardDeclined", message="no funds on account 4711")
    DeadLetterFactory(task=failed, exception_class="shop.gateway.CardDeclined", message="no funds on account 4711")
    return {
        "failed": failed,
        "receipt": TaskFactory(task_type="shop.tasks.send_receipt", user="ina", queue="mail"),
        "other": TaskFactory(task_type="shop.tasks.other", user="zoe", queue="default"),
    }


def found_by(staff, query, address=LIST):
    response = staff.get(address, query)
    assert response.status_code == 200, response.headers
    return {getattr(row, "task_id", row.pk) for row in response.context["cl"].result_list}


@pytest.mark.parametrize(
    "term",
    [
        "charge", "CHARGE", "shop.tasks.charge", "payments", "omar", "user:omar", "queue:pay", "type:charge", "gpu-7",
        "worker:gpu-7", "CardDeclined", "carddecl", "no funds", "funds 4711", "error:no funds",
        "shop.gateway.CardDeclined",
    ],
)  # fmt: skip
def test_the_search_finds_what_is_shown(staff, shop, term):
    assert shop["failed"].pk in found_by(staff, {"q": term})
    assert shop["other"].pk not in found_by(staff, {"q": term})


def test_the_short_id_is_found(staff, shop):
    for digits in (str(shop["failed"].pk)[-8:], str(shop["failed"].pk)[-8:].upper(), str(shop["failed"].pk)[-17:]):
        assert found_by(staff, {"q": digits}) == {shop["failed"].pk}
    assert "among the newest 1,000,000 tasks" in staff.get(LIST, {"q": digits}).content.decode()


def test_nothing_is_found_by_what_no_task_has(staff, shop):
    for term in ("nonsense", "deadbeef", "user:nobody", "worker:none", "schedule:none", "%", "'", "&", "!:*", "\\"):
        assert found_by(staff, {"q": term}) == set(), term


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_have_is_only_a_text(staff, make_task, value):
    task = make_task(parameters={"note": value})
    assert str(task.pk) in staff.get(LIST, {"q": f"parameters.note:{value}"}).content.decode()
    assert staff.get(LIST, {"q": value}).status_code == 200


def test_the_value_of_a_parameter_is_found(staff, make_task, known_tasks):
    kind = registry.type_of(chores.echo)
    for other in {*known_tasks} - {kind}:  # other tests have tasks with more names than are read
        del known_tasks[other]
    [name] = chores.echo.func.__code__.co_varnames[: chores.echo.func.__code__.co_argcount]
    seven, text = make_task(kind, parameters={name: 7}), make_task(kind, parameters={name: "order 1017"})
    assert found_by(staff, {"q": "7"}) == {seven.pk}
    assert found_by(staff, {"q": "order 1017"}) == {text.pk}


@pytest.fixture
def one_parameter(known_tasks):
    """The only function whose parameters are searched, and the name of its parameter."""
    kind = registry.type_of(chores.echo)
    for other in {*known_tasks} - {kind}:  # other tests have tasks with more names than are read
        del known_tasks[other]
    return kind, chores.echo.func.__code__.co_varnames[0]


@pytest.mark.parametrize("term", ["parameters.{name}:{value}", "{value}"])
@pytest.mark.parametrize("value", [1017, "order-1017"])
def test_an_argument_is_found_by_name_however_the_caller_gave_it(staff, make_task, one_parameter, term, value):
    kind, name = one_parameter
    found = {make_task(kind, parameters={name: value}).pk, make_task(kind, args=[value]).pk}
    make_task(kind, args=["another"])
    make_task("shop.tasks.of_no_known_function", args=[value])
    query = {"q": term.format(name=name, value=value)}
    assert found_by(staff, query) == found
    assert found_by(staff, query | {"status": "failed_any"}) == set()


def test_two_arguments_narrow_together(staff, make_task, one_parameter):
    kind, name = one_parameter
    task = make_task(kind, args=[1017], parameters={"color": "red"})
    make_task(kind, args=[1017], parameters={"color": "blue"})
    assert found_by(staff, {"q": f"parameters.{name}:1017 parameters.color:red"}) == {task.pk}


def test_an_action_on_all_that_match_means_positional_arguments_too(staff, make_task, one_parameter):
    kind, name = one_parameter
    task = make_task(kind, args=[1017])
    other = make_task(kind, args=[1018])
    query = {"q": f"parameters.{name}:1017"}
    data = {"action": "cancel_selected", "_selected_action": [task.pk], "select_across": "1"} | CONFIRMED
    staff.post(f"{LIST}?{urlencode(query)}", data)
    assert Task.objects.get(pk=task.pk).status == "cancelled"
    assert Task.objects.get(pk=other.pk).status == "queued"


def test_a_secret_argument_is_not_found_by_its_place(staff, make_task, one_parameter, settings):
    kind, name = one_parameter
    task = make_task(kind, args=["tok_5f2c9e81"])
    assert found_by(staff, {"q": "tok_5f2c9e81"}) == {task.pk}
    settings.TASKQUEUE = settings.TASKQUEUE | {"SENSITIVE": [name]}
    assert found_by(staff, {"q": "tok_5f2c9e81"}) == set()


# What the list shows of each task.


def test_lists_show_arguments_in_short(staff, client_of, make_task, dead, one_parameter):
    kind, name = one_parameter
    make_task(kind, args=["ann@example.org"])
    dead(parameters={"order": 1017, "password": "hunter2"})
    page = staff.get(LIST).content.decode()
    assert f'title="{kind}"' in page
    assert f"<small>{name}: ann@example.org</small>" in page
    for address in (LIST, LETTERS):
        shown = staff.get(address).content.decode()
        assert f"<small>order: 1017, password: {MASK}</small>" in shown
        assert "hunter2" not in shown
    assert "ann@example.org" not in client_of("viewer").get(LIST).content.decode()


def test_tasks_that_wait_for_a_person(staff, make_task):
    waiting = let_wait(make_task())
    let_sleep = make_task()
    assert found_by(staff, {"wait": "waits_for_a_person"}) == {waiting.pk}
    assert let_sleep.pk in found_by(staff, {})


def test_the_tasks_of_a_schedule_are_found(staff, make_task):
    task = make_task()
    schedule = create_schedule("nightly", {"task_type": registry.type_of(chores.echo), "args": [1], "every": 3600})
    schedule.ticks.create(instant=timezone.now(), at=timezone.now(), task_id=task.pk)
    for query in ({"q": "night"}, {"q": "schedule:nightly"}, {"schedule": "nightly"}):
        assert found_by(staff, query) == {task.pk}


def test_who_may_not_read_errors_finds_none_by_them(client_of, shop):
    viewer = client_of("viewer")
    response = viewer.get(LIST, {"q": "CardDeclined"})
    assert list(response.context["cl"].result_list) == []
    assert "needs the permission queue_app.view_payload" in response.content.decode()
    assert found_by(viewer, {"q": "omar"}) == {shop["failed"].pk}


def test_a_secret_in_an_error_is_not_found_by_guessing(staff, make_task, end_task):
    task = end_task(make_task(parameters={"token": "tok_5f2c9e81"}), "dead_letter", error="declined with tok_5f2c9e81")
    assert found_by(staff, {"q": "declined"}) == {task.pk}
    assert found_by(staff, {"q": "5f2c9e81x"}) == found_by(staff, {"q": "tok_5f2c9e81"}) == set()


def test_dead_letters_are_found_by_what_they_show(staff, shop):
    task_id = shop["failed"].pk
    for term in ("charge", "payments", "omar", "no funds", "CardDeclined", str(task_id)[-8:], str(task_id)):
        assert found_by(staff, {"q": term}, LETTERS) == {task_id}, term
    assert found_by(staff, {"q": "nonsense"}, LETTERS) == set()


@pytest.mark.parametrize("term", ["charge", "payments", "CardDeclined", "no funds", "omar"])
def test_an_action_on_all_that_match_reaches_the_same_tasks(staff, shop, term):
    """Its filter is stored, and read again in the background."""
    data = {
        "action": "retry_selected", "select_across": "1", "index": "0", **CONFIRMED,
        "_selected_action": [str(shop["failed"].pk)],
    }  # fmt: skip
    staff.post(f"{LIST}?q={term}", data)
    operation = Operation.objects.get()
    assert (operation.total, operation.changed) == (1, 1)
    assert Task.objects.get(pk=shop["failed"].pk).status == Status.QUEUED


@pytest.mark.parametrize(
    "term",
    [
        "type:charge", "type:shop.tasks.charge", "queue:pay", "user:omar", "worker:gpu-7", "error:no funds", "key:card",
        "type:charge user:omar", "queue:pay error:funds",
    ],
)  # fmt: skip
def test_dead_letters_are_found_by_the_conditions_of_tasks(staff, shop, dead, term):
    Task.objects.filter(pk=shop["failed"].pk).update(concurrency_key="card")
    dead(task_type="shop.tasks.other", queue="default", user="zoe")
    assert found_by(staff, {"q": term}, LETTERS) == {shop["failed"].pk}


def test_a_dead_letter_without_its_task_is_found_by_what_it_says_itself(staff, shop):
    Task.objects.filter(pk=shop["failed"].pk).delete()
    for term in ("type:shop.tasks.charge", "queue:payments", "user:omar", "omar", str(shop["failed"].pk)):
        assert found_by(staff, {"q": term}, LETTERS) == {shop["failed"].pk}, term


def test_who_may_not_read_errors_finds_no_dead_letter_by_them(client_of, shop):
    client = client_of("superuser")
    viewer = Client()
    viewer.force_login(StaffFactory(username="ed", permissions=["view_deadletter"]))
    assert found_by(client, {"q": "error:funds"}, LETTERS) == {shop["failed"].pk}
    page = viewer.get(LETTERS, {"q": "error:funds"}).content.decode()
    assert "needs the permission queue_app.view_payload" in page
    assert found_by(viewer, {"q": "error:funds"}, LETTERS) == set()


def test_filters(staff, shop, make_task, run_task):
    worker = WorkerFactory(name="w1", task_types=["shop.tasks.send_mail"])
    promoted = make_task(priority=Band.NORMAL, concurrency_key="customer:1")
    Task.objects.filter(pk=promoted.pk).update(queued_at=timezone.now() - timedelta(hours=1))
    running = run_task(make_task("shop.tasks.send_mail"), worker)
    assert found_by(staff, {"priority": "high", "status": "queued"}) == {promoted.pk}, "the effective band"
    assert promoted.pk not in found_by(staff, {"priority": "normal", "status": "queued"})
    assert found_by(staff, {"worker_id": str(worker.id)}) == {running.pk}
    assert found_by(staff, {"concurrency_key": "customer:1"}) == {promoted.pk}
    assert found_by(staff, {"error_class": "shop.gateway.CardDeclined"}) == {shop["failed"].pk}
    assert found_by(staff, {"status": "failed_any"}) == {shop["failed"].pk}
    assert found_by(staff, {"wait": "no_free_slot"}) == {promoted.pk}, "the only worker has one slot"
    assert found_by(staff, {"wait": "paused"}) == set()
    for bad in ({"wait": "no"}, {"sort": "no"}, {"worker_id": "no"}):
        assert staff.get(LIST, bad).status_code == 302


def test_no_action_on_all_that_match_ignores_a_filter(staff, make_task):
    """The list's filters and those of the action are the same: else it would reach tasks that nobody saw."""
    task, data = make_task(), {"action": "cancel_selected", "select_across": "1", "index": "0", **CONFIRMED}
    page = admin.site.get_model_admin(Task)
    request = RequestFactory().get("/")
    names = {getattr(each, "parameter_name", each) for each in page.get_list_filter(request)}
    for name in names | set(page.exact_lookups):
        value = {"worker_id": NOBODY, "workflow_id": NOBODY, "status": "executing", "sort": "oldest"}.get(name)
        value = value or {"priority": "low", "wait": "paused", "since": "15m", "ended": "1m"}.get(name, "no-such")
        if name in {"sort", "since"}:
            continue  # these leave the task in the list
        staff.post(f"{LIST}?{name}={value}", data | {"_selected_action": [str(task.pk)]})
        task.refresh_from_db()
        assert task.status == Status.QUEUED, name


def test_orders(staff):
    now = timezone.now()
    slow, quick, young = (TaskFactory(created_at=now - timedelta(minutes=5 - n)) for n in range(3))
    for task, seconds, attempt in ((slow, 90, 1), (quick, 1, 4)):
        started = now - timedelta(seconds=120)
        move(task, Status.COMPLETED, started + timedelta(seconds=seconds), started_at=started, attempt=attempt)

    def order(sort):
        return [row.pk for row in staff.get(LIST, {"sort": sort}).context["cl"].result_list]

    assert order("oldest") == [slow.pk, quick.pk, young.pk]
    assert order("slowest") == [slow.pk, quick.pk, young.pk]
    assert order("attempts")[0] == quick.pk


def test_suggestions(staff, client_of, shop):
    def names(text):
        return staff.get(f"{LIST}suggest/", {"q": text}).json()["names"]

    assert "shop.tasks.send_receipt" in names("receipt")
    assert "gpu-7.fra" in names("gpu")
    assert names("") == names("\x00") == []
    assert client_of("pauser").get(f"{LIST}suggest/", {"q": "gpu"}).status_code == 403


def test_a_list_costs_the_same_with_many_workers(staff, shop):
    costs = []
    for count in (1, 20):
        for n in range(count):
            WorkerFactory(name=f"w{count}-{n}")
        with CaptureQueriesContext(connection) as queries:
            staff.get(LIST)
        costs.append(len(queries))
    assert costs[0] >= costs[1]
    assert costs[1] <= 16


@pytest.mark.parametrize("parameter", INDEXED)
def test_the_list_finds_rare_values_by_their_index(staff, parameter):
    """Else a list of one queue, worker, type or key would read all tasks, from the newest to the oldest."""
    value, index = INDEXED[parameter]
    found = staff.get("/admin/queue_app/task/", {parameter: value}).context["cl"].queryset
    others = {name for _value, name in INDEXED.values()} | {"taskqueue_finished"}
    with connection.cursor() as cursor:  # which on an empty table are as good
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off")
        cursor.execute(f"DROP INDEX {', '.join(sorted(others - {index}))}")
    assert index in found.explain()


def test_a_part_of_an_error_is_looked_for_in_the_newest_ones(staff, make_task, end_task, override):
    """The page says how many were read; with other conditions too, and whatever stands in the text."""
    old = end_task(make_task(queue="mail"), Status.FAILED, error="no route to host-17")
    new = end_task(make_task(), Status.FAILED, error="50% of host_18 is full")

    def found(query):
        page = staff.get("/admin/queue_app/task/", query)
        return {task.pk for task in page.context["cl"].result_list}, "were read" in page.content.decode()

    assert found({"q": "error:HOST"}) == ({old.pk, new.pk}, False)
    assert found({"q": "error:t-17"}) == ({old.pk}, False)
    assert found({"q": "error:host queue:mail"}) == ({old.pk}, False)
    assert found({"q": "error:host", "status": "failed", "sort": "oldest"}) == ({old.pk, new.pk}, False)
    assert found({"q": "error:50%"}) == ({new.pk}, False)
    assert found({"q": "error:t_1"}) == ({new.pk}, False), "no placeholder"
    assert found({"q": "error:valueerr"}) == ({old.pk, new.pk}, False), "its class"
    assert found({"q": "error:nowhere"}) == (set(), False)
    override(rows, ERRORS_READ=1)
    assert found({"q": "error:host"}) == ({new.pk}, True)
    assert found({"q": "error:host queue:mail"}) == (set(), True)
