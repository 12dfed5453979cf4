"""Every page renders with its content, and answers invalid addresses."""

import uuid
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import RequestFactory
from django.urls import reverse
from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.core.states import WAITING, Status
from queue_app.dashboard import cache
from queue_app.models import (
    DeadLetter,
    IndexGeneration,
    PriorityPolicy,
    Queue,
    QueueStats,
    RuntimeSettings,
    Schedule,
    ScheduleTick,
    StepResult,
    Task,
    Worker,
)
from queue_app.services import cancel, pause
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.schedules.edit import create_schedule
from tests.support.factories import AttemptFactory, DeadLetterFactory, QueueStatsFactory, move
from tests.workers import chores

MODELS = [Task, Queue, Worker, DeadLetter, QueueStats, IndexGeneration, PriorityPolicy, RuntimeSettings]


def url(model, view, *args):
    return reverse(f"admin:queue_app_{model._meta.model_name}_{view}", args=args)


def text_of(response):
    assert response.status_code == 200
    return response.content.decode()


@pytest.mark.parametrize("model", MODELS)
def test_list_and_page_render(model, staff, make_task, make_worker):
    make_task()
    make_worker()
    DeadLetterFactory()
    QueueStatsFactory(depth={"high": 2, "low": 0}, oldest_seconds=75)
    response = staff.get(url(model, "changelist"), follow=True)
    assert response.status_code == 200
    assert staff.get(url(model, "change", model.objects.first().pk)).status_code == 200


@pytest.mark.parametrize("state", list(Status))
def test_task_page_in_every_state(state, staff, make_task, run_task, end_task):
    task = make_task(run_after=timezone.now() + timedelta(hours=1) if state is Status.SCHEDULED else None)
    if state is Status.EXECUTING:
        task = run_task(task)
    elif state is Status.BLOCKED:
        task = move(task, state, queued_at=None)
    elif state not in WAITING:
        task = end_task(task, state, error="no luck" if state in (Status.FAILED, Status.DEAD_LETTER) else None)
    page = text_of(staff.get(url(Task, "change", task.pk)))
    assert f"tq-status-{state}" in page
    assert ("Cancel task" in page) == (state in WAITING)
    assert ("Ask to stop" in page) == (state is Status.EXECUTING)
    assert ("Change priority" in page) == (state in WAITING)
    assert f"tq-status-{state}" in text_of(staff.get(url(Task, "changelist"), {"status": state}))


def test_task_page_shows_everything(staff, make_task, end_task, make_worker):
    worker = make_worker("worker-7")
    task = make_task(
        parameters={"order": 17, "text": "grüße"}, args=[1, "two"], user="alice", idempotency_key="key-1", timeout=42.0
    )
    task = end_task(task, result={"sent": True}, error="first try failed", worker=worker)
    page = text_of(staff.get(url(Task, "change", task.pk)))
    for part in (
        str(task.pk), "shop.tasks.send_mail", "alice", "key-1", "worker-7", "grüße",
        '&quot;order&quot;</span>: <span class="tq-json-value">17',
        "&quot;two&quot;",
        '&quot;sent&quot;</span>: <span class="tq-json-value">true',
        "first try failed", "set for this task", "policy of normal",
        url(Worker, "change", worker.pk), url(Queue, "change", "default"), "42 s", "Traceback", "<details", "Completed",
    ):  # fmt: skip
        assert part in page


def test_task_page_tells_sleep_from_waiting(staff, make_task, end_task):
    """A task that slept for three days has not waited for a worker that long."""
    task, now = make_task(), timezone.now()
    end_task(task)
    day = timedelta(days=1)
    Task.objects.filter(pk=task.pk).update(created_at=now - 4 * day, started_at=now - day / 2, finished_at=now)
    StepResult.objects.create(
        task=task, name="sleep", position=1, kind="sleep", attempt=1, stored_at=now - 4 * day + day / 4, until=now - day
    )
    page = text_of(staff.get(url(Task, "change", task.pk)))
    assert "waited 18 h, slept 2 d 18 h, ran 12 h" in page
    assert 'aria-label="waited 6 h; slept 2 d 18 h; waited 12 h; ran 12 h"' in page


def test_task_page_tells_of_its_dead_letter(client_of, staff, make_task, end_task):
    task = end_task(make_task(), "dead_letter")
    told = 'id="tq-letter"'
    assert told not in text_of(staff.get(url(Task, "change", task.pk)))
    DeadLetterFactory(task_id=task.pk)
    assert told in text_of(staff.get(url(Task, "change", task.pk)))
    assert told not in text_of(client_of("viewer").get(url(Task, "change", task.pk)))


def test_task_page_names_its_schedule_and_latest_changes(client_of, staff, make_task):
    task = make_task()
    schedule = create_schedule("nightly", {"task_type": f"{chores.__name__}.echo", "args": [1], "cron": "0 3 * * *"})
    ScheduleTick.objects.create(
        schedule=schedule, instant=timezone.now(), kind="due", at=timezone.now(), task_id=task.pk
    )
    staff.post(url(Task, "priority", task.pk), {"priority": "high", "reason": "the director asked"})
    page = text_of(staff.get(url(Task, "change", task.pk)))
    assert url(Schedule, "change", schedule.pk) in page
    assert "the director asked" in page
    page = text_of(client_of("viewer").get(url(Task, "change", task.pk)))
    assert url(Schedule, "change", schedule.pk) not in page
    assert "the director asked" not in page, "without view_auditentry"


def test_task_page_names_similar_failures_and_attempts_that_failed_alike(staff, make_task):
    now = timezone.now()
    one, other, foreign = (move(make_task(), "dead_letter") for _ in range(3))
    for task, cause in ((one, "same"), (other, "same"), (foreign, "another")):
        DeadLetterFactory(task=task, fingerprint=cause)
    for attempt, line in ((1, 7), (2, 7), (3, 9)):
        AttemptFactory(
            task=one, attempt=attempt, started_at=now, finished_at=now, traceback=f'File "shop.py", line {line}',
            exception_class="ValueError", message="no luck",
        )  # fmt: skip
    page = text_of(staff.get(url(Task, "change", one.pk)))
    similar = page.split("Similar failures")[1].split("</details>")[0]
    assert url(Task, "change", other.pk) in similar
    assert str(foreign.pk) not in similar
    assert page.count("the same as attempt") == 1
    assert page.count('<details class="tq-attempt" open>') == 2, "the two that differ"
    assert "the same as attempt 2" in page
    assert "Similar failures" not in text_of(staff.get(url(Task, "change", foreign.pk)))


def test_tabs_of_a_queue(staff):
    now, settings = (text_of(staff.get(f"{url(Queue, 'change', 'default')}{tab}")) for tab in ("", "?tab=settings"))
    assert ("Over time" in now, 'name="max_concurrent"' in now) == (True, False)
    assert ("Over time" in settings, 'name="max_concurrent"' in settings) == (False, True)
    refused = text_of(staff.post(url(Queue, "change", "default"), {"max_concurrent": "x"}))
    assert 'name="max_concurrent"' in refused, "a form with errors is shown, whatever the tab"


def test_position_in_the_queue(staff, make_task, make_worker):
    rebuild()
    first, second = make_task(), make_task()
    assert "First in its queue once it can start." in text_of(staff.get(url(Task, "change", first.pk))), "no worker"
    make_worker()
    assert "Next to run in its queue." in text_of(staff.get(url(Task, "change", first.pk)))
    assert "Position 2 in its queue." in text_of(staff.get(url(Task, "change", second.pk)))


def test_hints_explain_why_a_task_waits(staff, make_task, make_worker):
    task = make_task(capabilities=("gpu",))
    page = url(Task, "change", task.pk)
    assert "No live worker takes new tasks." in text_of(staff.get(page))
    make_worker("plain")
    assert "No live worker of this queue offers gpu. Closest: plain lacks gpu." in text_of(staff.get(page))
    make_worker("strange", capabilities=["gpu"], task_types=[])
    assert "knows the task type shop.tasks.send_mail. Closest:" in text_of(staff.get(page))
    make_worker("able", capabilities=["gpu"])
    assert "No live worker" not in text_of(staff.get(page))
    pause("default", by="bob", reason="release")
    assert "The queue default was paused by bob" in text_of(staff.get(page))


def test_filters(staff, make_task, end_task):
    make_task("a.high", priority=Band.HIGH)
    make_task("a.low", priority=Band.LOW, queue="slow")
    end_task(make_task("a.done"))

    def types(**query):
        response = staff.get(url(Task, "changelist"), query)
        assert response.status_code == 200
        return sorted(task.task_type for task in response.context["cl"].result_list)

    assert types() == ["a.done", "a.high", "a.low"]
    assert types(status="pending") == ["a.high", "a.low"]
    assert types(status="completed") == ["a.done"]
    assert types(priority="high") == ["a.high"]
    assert types(queue="slow") == ["a.low"]
    assert types(queue="slow", status="completed") == []


def test_search(staff, make_task):
    one = make_task("shop.mail", user="alice")
    make_task("shop.print", user="bob")
    make_task("alice.hello")

    def found(term):
        return sorted(
            task.task_type for task in staff.get(url(Task, "changelist"), {"q": term}).context["cl"].result_list
        )

    assert found(str(one.pk)) == ["shop.mail"]
    assert found(str(uuid.uuid4())) == []
    assert found("shop.") == ["shop.mail", "shop.print"]
    assert found("alice") == ["alice.hello", "shop.mail"]
    assert found("user:alice") == ["shop.mail"]
    assert found("type:alice") == ["alice.hello"]
    assert found("%") == []
    assert found("  ") == ["alice.hello", "shop.mail", "shop.print"]


def test_search_of_dead_letters(staff):
    letter = DeadLetterFactory()
    DeadLetterFactory(task_type="b.tasks.other")
    found = staff.get(url(DeadLetter, "changelist"), {"q": str(letter.task_id)}).context["cl"].result_list
    assert [row.pk for row in found] == [letter.pk]


@pytest.mark.parametrize(
    "query",
    [
        "status=nonsense", "priority=9", "queue=a%00b", "queue=%7Bx%7D", "q=%00", "p=99999999999999999999", "p=-1",
        "payload__parameters__password__startswith=a", "payload__parameters__contains=x", "task_type__startswith=shop",
        "id__in=a,b", "worker_id=nonsense", "nonsense=1", "idempotency_key__startswith=a", "all=", "o=5.-3",
    ],
)  # fmt: skip
def test_invalid_addresses_get_an_answer(query, staff, make_task):
    make_task(parameters={"password": "abcdef"})
    response = staff.get(f"{url(Task, 'changelist')}?{query}")
    assert response.status_code in (200, 302)
    response = staff.get(f"{url(Task, 'changelist')}?{query}", follow=True)
    assert response.status_code == 200
    assert response.redirect_chain or not query.startswith(("payload", "idempotency", "id__in", "task_type__"))


@pytest.mark.parametrize("object_id", ["nonsense", "01a1fc14-da10-717b-a823-56ad4650e023", "%00", "1/2"])
def test_unknown_objects_lead_back_to_a_list(object_id, staff):
    assert staff.get(f"/admin/queue_app/task/{object_id}/change/").status_code in (302, 404)
    assert staff.get(f"/admin/queue_app/queue/{object_id}/change/").status_code in (302, 404)
    assert staff.get(f"/admin/queue_app/worker/{object_id}/change/").status_code in (302, 404)


def test_the_task_list_stops_counting_at_its_limit(staff, make_task, monkeypatch):
    monkeypatch.setattr("queue_app.admin.mixins.COUNT_LIMIT", 3)
    for _ in range(5):
        make_task()
    page = text_of(staff.get(url(Task, "changelist")))
    assert "Counting stops at 3" in page


def test_newest_task_comes_first(staff, make_task):
    tasks = [make_task() for _ in range(3)]
    assert [task.pk for task in staff.get(url(Task, "changelist")).context["cl"].result_list] == [
        task.pk for task in reversed(tasks)
    ]


def test_the_task_list_needs_as_many_queries_for_100_tasks_as_for_5(
    staff, make_task, make_worker, run_task, django_assert_max_num_queries, monkeypatch
):
    monkeypatch.setattr(cache, "time", SimpleNamespace(monotonic=lambda: 0.0))  # shared values do not age
    workers = [make_worker(f"w{number}") for number in range(10)]
    counts = []
    for target in (5, 100):
        while (have := Task.objects.count()) < target:
            run_task(make_task(queue=f"q{have % 3}"), workers[have % 10])
        staff.get(url(Task, "changelist"), {"all": ""})
        with django_assert_max_num_queries(12) as captured:
            response = staff.get(url(Task, "changelist"), {"all": ""})
        assert len(response.context["cl"].result_list) == target
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_worker_list_counts_busy_slots_in_one_query(
    staff, make_task, make_worker, run_task, django_assert_max_num_queries
):
    counts = []
    for _ in range(2):
        for _ in range(5):
            worker = make_worker("w")
            run_task(make_task(), worker)
            run_task(make_task(), worker)
        staff.get(url(Worker, "changelist"))
        with django_assert_max_num_queries(12) as captured:
            page = text_of(staff.get(url(Worker, "changelist")))
        counts.append(len(captured))
    assert counts[0] == counts[1]
    assert page.count("2 / 5") == 10


def test_worker_list_and_page(staff, make_task, make_worker, run_task):
    late = make_worker(
        "late", last_heartbeat_at=timezone.now() - timedelta(minutes=5), capabilities=["gpu"], queues=["a"]
    )
    task = run_task(make_task(), late)
    page = text_of(staff.get(url(Worker, "changelist")))
    assert "(late)" in page
    assert "gpu" in page
    page = text_of(staff.get(url(Worker, "change", late.pk)))
    assert url(Task, "change", task.pk) in page
    assert "Running now: 1 of 5 slots" in page


def test_the_worker_list_shows_what_workers_use_and_folds_those_that_ended_away(staff, make_worker):
    make_worker("busy", cpu_percent=93.4, memory_bytes=210 * 2**20, supervisor_pid=4711)
    make_worker("gone", status="stopped", stopped_at=timezone.now())
    living, ended, everything, stopped = (
        text_of(staff.get(f"{url(Worker, 'changelist')}{query}"))
        for query in ("", "?shown=ended", "?shown=all", "?status__exact=stopped")
    )
    assert "93 %, 210.0" in living
    assert "supervisor 4711" in living
    assert [">gone<" in page for page in (living, ended, everything, stopped)] == [False, True, True, True]
    assert [">busy<" in page for page in (living, ended, everything, stopped)] == [True, False, True, False]


def test_queue_list_shows_depth_and_pause(staff, make_task):
    make_task(priority=Band.HIGH)
    make_task(priority=Band.HIGH)
    make_task(queue="other")
    pause("other", by="bob", reason="<b>broken</b> printer")
    page = text_of(staff.get(url(Queue, "changelist")))
    assert '<span class="tq-label tq-band-high">high</span> 2' in page
    assert "by bob" in page
    assert "&lt;b&gt;broken&lt;/b&gt; printer" in page


def test_pages_render_while_redis_is_down(staff, make_task, redis_down):
    task = make_task()
    page = text_of(staff.get(url(Queue, "changelist")))
    assert "Redis cannot be reached" in page
    assert "Redis cannot be reached" in text_of(staff.get(url(Queue, "change", "default")))
    assert "Redis cannot be reached" in text_of(staff.get(url(Task, "change", task.pk)))
    assert text_of(staff.get(url(Task, "changelist")))
    assert "unreachable" in text_of(staff.get(url(IndexGeneration, "change", 1)))
    assert "Redis cannot be reached" in text_of(staff.get(reverse("admin:app_list", args=["queue_app"])))


def test_app_index_shows_only_what_the_user_may_see(client_of, make_task, make_worker):
    make_task(priority=Band.CRITICAL)
    make_worker()
    page = text_of(client_of("viewer").get(reverse("admin:app_list", args=["queue_app"])))
    assert "5 slots" in page
    assert "tq-band-critical" in page
    page = text_of(client_of("canceller").get(reverse("admin:app_list", args=["queue_app"])))
    assert "5 slots" not in page
    assert "tq-band-critical" not in page


def test_history_page_of_a_task(staff, make_task):
    task = make_task()
    cancel(task.pk)
    assert staff.get(url(Task, "history", task.pk)).status_code == 200


def test_no_page_has_inline_scripts_or_styles(staff, make_task, make_worker, end_task):
    task = end_task(make_task(), Status.FAILED, error="x")
    pages = [
        url(Task, "change", task.pk),
        url(Worker, "change", make_worker().pk),
        reverse("admin:app_list", args=["queue_app"]),
    ]
    for page in [*pages, url(Queue, "change", "default"), url(Task, "changelist")]:
        text = text_of(staff.get(page))
        content = text[text.index('id="content"') :]
        assert "style=" not in content
        assert "<script>" not in content
        assert " onclick" not in content


def test_stylesheet_exists():
    from django.contrib.staticfiles import finders  # noqa: PLC0415

    assert finders.find("queue_app/admin.css")


def test_the_page_works_if_the_task_module_cannot_be_imported(staff, make_task, monkeypatch):
    def broken(_):
        raise SyntaxError("in a user's tasks.py")

    monkeypatch.setattr("queue_app.registry.get", broken)
    task = make_task(args=["positional"])
    assert "positional" in text_of(staff.get(url(Task, "change", task.pk)))


@pytest.mark.parametrize("model", sorted(apps.get_app_config("queue_app").get_models(), key=lambda one: one.__name__))
def test_a_nul_in_any_filter_is_answered_with_a_message(admin_client, model):
    """PostgreSQL refuses to compare it; Django would answer with a server error."""
    if model not in admin.site._registry:
        return
    page = admin.site._registry[model]
    request = RequestFactory().get("/")
    request.user = User.objects.get(username="admin")
    filters = [getattr(item, "parameter_name", item) for item in page.get_list_filter(request)]
    names = {"q", "o", "p", "fingerprint", "user", "operation_id", *map(str, filters)}
    address = reverse(f"admin:queue_app_{model._meta.model_name}_changelist")
    for name in names:
        answer = admin_client.get(address, {name: "\x00"})
        assert answer.status_code in {302, 403}, (name, answer.status_code)
