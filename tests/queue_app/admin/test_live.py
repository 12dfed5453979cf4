"""The overview: its cost, its caching, its content."""

import re
import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from queue_app.core import shared
from queue_app.core.priorities import Band
from queue_app.core.shared import Shared
from queue_app.dashboard import charts
from queue_app.diagnose import live, stalls
from queue_app.diagnose.overview import reasons
from queue_app.diagnose.stalls import Stall
from queue_app.diagnose.watchdog import Watchdog
from queue_app.models import IndexGeneration, MaintenanceJob, PriorityPolicy, Queue, Schedule, Task, Worker
from queue_app.registry import type_of
from queue_app.schedules.edit import create_schedule
from queue_app.services import pause
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.upkeep.jobs import take_lead
from tests.support.engine import index_away, leave_redis, put
from tests.support.factories import QueueStatsFactory, StaffFactory
from tests.support.findings import register_live
from tests.support.pages import words_of
from tests.workers import chores

ECHO = type_of(chores.echo)
CHARTS = "/admin/queue_app/queue/charts/"


def reasons_text():
    shared.forget()
    return " ".join(reason.text for reason in reasons(live.current()))


def test_the_cost_of_the_overview_is_constant_and_shared(make_task, make_worker, override):
    override(live, FRESH=600.0)  # long enough for a slow machine
    rebuild()
    QueueStatsFactory(completed=1)
    costs = []
    for count in (1, 10):
        for _ in range(count):
            make_task()
        make_worker(f"w{count}")
        shared.forget()
        with CaptureQueriesContext(connection) as queries:
            live.current()
            live.current()
        costs.append(len(queries))
    assert costs[0] == costs[1] <= 13
    about_tasks = [query["sql"] for query in queries if "FROM queue_app_task WHERE" in query["sql"]]
    assert len(about_tasks) == 1, "the tasks that ended within the last minute"
    assert "WHERE finished_at >=" in about_tasks[0]


def test_a_standstill_is_said_once(staff, make_task):
    make_task(queue="mail")
    make_task(queue="video")
    rebuild()
    shared.forget()
    page = staff.get("/admin/queue_app/").content.decode()
    assert page.count("No live worker takes new tasks.") == 1
    assert "No live worker serves the queue" not in page, "of each queue the banner has said so"
    queue = staff.get("/admin/queue_app/queue/mail/change/").content.decode()
    assert "No live worker serves the queue mail." in queue


def test_queues_that_no_worker_serves_are_said_at_once_with_what_to_do(staff, make_task, make_worker):
    """When the workers of many queues die, the banner has one line for all of them, and names the dead."""
    make_worker("video-1", queues=["video"])
    for n in range(7):
        make_task(queue=f"q{n}")
    Worker.objects.filter(pk=make_worker("web-1").pk).update(
        status="dead", stopped_at=timezone.now() - timedelta(seconds=20)
    )
    rebuild()
    shared.forget()
    banner = " ".join(re.sub("<[^>]+>", " ", staff.get("/admin/queue_app/queue/live/").content.decode()).split())
    assert "q0, q1, q2, q3, q4 and 2 more : No live worker serves them. 7 tasks wait, the oldest for" in banner
    assert "Start `manage.py runworker --queues q0,q1,q2,q3,q4,q5,q6`, or one without --queues." in banner
    assert banner.count("No live worker serves") == 1, "the rows of the queues do not repeat it"
    assert "web-1" in banner, banner[:600]
    assert re.search("1 worker has died, 2[0-9] s ago: web-1. Its tasks are queued again. See them", banner)
    Worker.objects.update(stopped_at=timezone.now() - timedelta(hours=1))
    assert "died" not in reasons_text()


def test_redis_is_away_since(rows):
    MaintenanceJob.objects.create(name="promote", succeeded_at=timezone.now() - timedelta(minutes=3))
    live._answered.clear()
    with index_away():
        assert "start in workers that reach it. It last answered 3 min ago. Start it" in re.sub(
            " [0-9]+ s ago", " ago", reasons_text()
        )
    assert "Redis" not in reasons_text()
    with index_away():
        assert re.search("It last answered (under 1|[0-9]+) s ago", reasons_text()), "this process has asked since"


def test_claims_that_read_the_rows_because_redis_is_away(staff, engine):
    register_live(engine.worker())
    take_lead("me", 60)
    Watchdog().run_once()
    put()
    leave_redis("OOM command not allowed when used memory > 'maxmemory'.")
    IndexGeneration.objects.update(way_since=timezone.now() - timedelta(minutes=3))
    shared.forget()
    page = re.sub("3 min [0-9]+ s", "3 min", words_of(staff.get("/admin/queue_app/queue/live/")))
    assert (
        "Redis has been away for 3 min, so claims read the rows: tasks run, only slower. OOM command not allowed when"
        " used memory > 'maxmemory'. Start it, or fail over: claims return to it by themselves."
    ) in page
    found = live._read("")
    assert found.counted_by == "counted in the rows of PostgreSQL"
    assert [reason.text for reason in reasons(found) if reason.severe] == []


def test_many_ended_tasks_are_not_counted_again(make_task):
    rebuild()
    task = make_task(queue="mail")
    Task.objects.filter(pk=task.pk).update(status="completed", finished_at=timezone.now())
    QueueStatsFactory(queue="mail", completed=live.COUNTED + 1)
    shared.forget()
    with CaptureQueriesContext(connection) as queries:
        found = live.current()
    assert found.completed == live.COUNTED + 1, "of the last full minute"
    assert not any("FROM queue_app_task WHERE" in query["sql"] for query in queries)


def tiles(staff):
    shared.forget()
    found = live.current()
    assert staff.get("/admin/queue_app/queue/live/").status_code == 200
    return found.completed, found.failed


def test_rows_tell_what_ended_within_the_last_minute(staff, make_task):
    assert tiles(staff) == (0, 0)
    now = timezone.now()
    for status, ago in (("completed", 1), ("completed", 50), ("completed", 70), ("dead_letter", 5), ("cancelled", 5)):
        task = make_task(queue="mail")
        Task.objects.filter(pk=task.pk).update(status=status, finished_at=now - timedelta(seconds=ago))
    assert tiles(staff) == (2, 1)
    minute = now.replace(second=0, microsecond=0)
    QueueStatsFactory(queue="mail", taken_at=minute, completed=3)  # of the minute before the tasks ran
    QueueStatsFactory(taken_at=minute)
    assert tiles(staff) == (2, 1)


def test_concurrent_viewers_share_one_value():
    made = []
    shared = Shared(lambda key: made.append(key) or len(made), lambda _: 60.0)
    viewers = [threading.Thread(target=shared.get, args=("a",)) for _ in range(8)]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()
    assert made == ["a"]
    shared.forget()
    assert shared.get("a") == 2


def test_errors_are_not_cached():
    answers = iter([None, 1])

    def make(_):
        if (answer := next(answers)) is None:
            raise OSError("away")
        return answer

    shared = Shared(make, lambda _: 60.0)
    with pytest.raises(OSError, match="away"):
        shared.get()
    assert shared.get() == 1


def test_schedules_that_are_late_or_fail(staff, client):
    client.force_login(StaffFactory(permissions=["view_queue"]))

    def shown(viewer):
        shared.forget()
        return viewer.get("/admin/queue_app/queue/live/").content.decode()

    now = timezone.now()
    for name in ("late", "broken", "well", "paused", "paused until later"):
        create_schedule(name, {"task_type": ECHO, "args": [1], "every": 3600}, now=now)
    Schedule.objects.filter(name="late").update(due_at=now - timedelta(minutes=5))
    paused = Schedule.objects.filter(name__startswith="paused")
    paused.update(due_at=now - timedelta(minutes=5), paused=True, paused_at=now - timedelta(minutes=6))
    paused.filter(name__endswith="later").update(resume_at=now + timedelta(days=2))
    broken = Schedule.objects.get(name="broken")
    for hour in range(3):
        instant = now - timedelta(hours=hour)
        broken.ticks.create(instant=instant, at=now, reason="The task was refused: no", outcome="failed")
    page = shown(staff)
    assert re.search("The schedule late was due 5 min[^<]* ago and has not run since[.]", page)
    assert "The schedule broken has failed 3 times in a row." in page
    assert "schedule well" not in page
    assert "schedule paused" not in page
    assert "schedule broken" not in shown(client), "who may not see schedules"


def test_reasons_why_tasks_wait(make_task, make_worker, staff):
    make_task(queue="mail")
    text = reasons_text()
    assert "No live worker serves the queue mail." in text
    assert "No live worker takes new tasks. Start one: `manage.py runworker`." in text
    assert "No scheduler runs: due tasks and retries are not queued" in text
    make_worker(queues=["other"])
    assert "No live worker serves the queue mail." in reasons_text()
    make_worker("able", queues=["mail"])
    assert "No live worker" not in reasons_text()
    pause("mail", by="ina", reason="new templates", resume_at=timezone.now() + timedelta(hours=1))
    text = reasons_text()
    said = r"The queue mail is paused by ina \(.+ ago\): new templates\. It resumes by itself in 59 min"
    assert re.search(said, text)
    Queue.objects.filter(pk="mail").update(
        throttled_until=timezone.now() + timedelta(minutes=5), rate_count=2, rate_seconds=60
    )
    text = reasons_text()
    assert (
        "The queue mail is throttled, because its code asked to slow down: none of its tasks starts for another 4 min"
        in text
    )
    Task.objects.all().delete()


def test_work_that_stands_still_is_said_first_and_in_full(make_worker, staff):
    make_worker()
    stall = Stall("not_started", "mail", "Work stands still in queue mail.", steps="12:00: rebuilt the index.")
    stalls.write([stall])
    assert "Work stands still in queue mail. 12:00: rebuilt the index." in reasons_text()
    take_lead("me", 60)
    page = re.sub("3 min [0-9]+ s", "3 min", words_of(staff.get("/admin/queue_app/queue/live/")))
    assert re.search("things? needs? you .* urgent Work stands still in queue mail.", page)
    MaintenanceJob.objects.update(succeeded_at=timezone.now() - timedelta(minutes=2))
    assert "A scheduler leads, but has not looked" in reasons_text()


def test_tasks_that_wait_longer_than_their_target_are_marked(make_task, staff):
    PriorityPolicy.objects.filter(pk=Band.NORMAL).update(target_seconds=0.000001)
    make_task()
    shared.forget()
    [row] = [row for row in live.current().queues if row.depth]
    assert row.is_late
    assert "tq-alert" in staff.get("/admin/queue_app/queue/live/").content.decode()


def test_charts_average_each_step_and_end_with_the_current_state(staff, make_task):
    make_task()
    now = timezone.now().replace(second=0, microsecond=0)
    Queue.objects.get_or_create(pk="mail")
    for name, wait in (("default", 1.0), ("mail", 3.0)):
        for ago in range(1, 4):
            QueueStatsFactory(
                queue=name, taken_at=now - timedelta(minutes=ago), depth={"normal": 5}, completed=10, wait_p50=wait
            )
    data = staff.get(CHARTS, {"range": "15m"}).json()
    assert data["values"]["normal"] == [10.0, 10.0, 10.0, 1]
    assert data["values"]["completed"] == [20.0, 20.0, 20.0, None]
    assert data["values"]["wait_p50"] == [3.0, 3.0, 3.0, None], "the slowest queue"
    QueueStatsFactory(taken_at=now - timedelta(minutes=9), completed=7)
    shared.forget()
    gap = staff.get(CHARTS, {"range": "15m"}).json()
    assert gap["values"]["completed"] == [7.0, None, 20.0, 20.0, 20.0, None], "nothing was measured for five minutes"
    assert gap["times"][1] - gap["times"][0] == 60
    one = staff.get(CHARTS, {"range": "15m", "queue": "default"}).json()
    assert one["values"]["wait_p50"][2] == 1.0
    shared.forget()
    for name in charts.RANGES:
        assert staff.get(CHARTS, {"range": name}).status_code == 200
    assert staff.get(CHARTS, {"range": "1y"}).status_code == 400


def test_the_overview_needs_its_permission(client_of):
    assert client_of("canceller").get(CHARTS).status_code == 403
    assert client_of("viewer").get(CHARTS).status_code == 200
    assert client_of("anonymous").get("/admin/queue_app/queue/live/").status_code == 302
