"""The lists of tasks, workers, queues and dead letters: filters, search, order, and how many queries they need."""

from datetime import timedelta
from types import SimpleNamespace

from django.utils import timezone

from queue_app.core import shared
from queue_app.core.priorities import Band
from queue_app.models import PriorityPolicy, Queue, Task, Worker
from queue_app.services import pause
from tests.support.pages import text_of, url


def test_the_task_list_stops_counting_at_its_limit(staff, make_task, override):
    override("queue_app.admin.mixins", COUNT_LIMIT=3)
    for _ in range(5):
        make_task()
    page = text_of(staff.get(url(Task, "changelist")))
    assert "Counting stops at 3" in page


def test_newest_task_comes_first(staff, make_task):
    tasks = [make_task() for _ in range(3)]
    assert [task.pk for task in staff.get(url(Task, "changelist")).context["cl"].result_list] == [
        task.pk for task in reversed(tasks)
    ]


def test_the_task_list_needs_as_many_queries_for_40_tasks_as_for_5(
    staff, make_task, make_worker, run_task, django_assert_max_num_queries, monkeypatch
):
    monkeypatch.setattr(shared, "time", SimpleNamespace(monotonic=lambda: 0.0))  # shared values do not age
    workers = [make_worker(f"w{number}") for number in range(10)]
    counts = []
    for target in (5, 40):
        while (have := Task.objects.count()) < target:
            run_task(make_task(queue=f"q{have % 3}"), workers[have % 10])
        staff.get(url(Task, "changelist"), {"all": ""})
        with django_assert_max_num_queries(14) as captured:
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


def test_the_queue_whose_tasks_wait_too_long_is_on_top(staff, make_task, end_task):
    end_task(make_task(queue="a-quiet"), "completed")
    PriorityPolicy.objects.update(target_seconds=0.001)
    for queue in ("c-later", "b-late"):
        make_task(queue=queue)
    answer = staff.get(url(Queue, "changelist"))
    names = [queue.name for queue in answer.context["cl"].result_list]
    assert names[:2] == ["c-later", "b-late"]
    assert names[2:] == sorted(names[2:])
    assert text_of(answer).count("(late)") == 2
    by_name = staff.get(url(Queue, "changelist"), {"o": "1"}).context["cl"].result_list
    assert [queue.name for queue in by_name] == sorted(names), "unless staff choose another order"
