"""What an operator reads in an incident: states that do not look healthy, ids that lead somewhere, whole arguments."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.utils.html import strip_tags

from queue_app.models import Queue, Schedule, ScheduleTick, TaskPayload
from queue_app.schedules.edit import create_schedule
from queue_app.schedules.tick import run_due
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.repair.rebuild import rebuild
from queue_app.templatetags.taskqueue_admin import tq_linked
from tests.support.factories import StaffFactory

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ADMIN = "/admin/queue_app/"


def words(client, path):
    return " ".join(strip_tags(client.get(f"{ADMIN}{path}").content.decode()).split())


def test_a_task_at_a_limit_links_the_tasks_that_hold_it(staff, make_task, make_worker, run_task):
    holder, waiting = make_task(queue="exports"), make_task(queue="exports")
    worker = make_worker(queues=["exports"], task_types=[waiting.task_type])
    run_task(holder, worker)
    set_queue_limits("exports", max_concurrent=1)
    rebuild()
    page = staff.get(f"{ADMIN}task/{waiting.pk}/change/").content.decode()
    link = f'<a href="{ADMIN}task/{holder.pk}/change/">{str(holder.pk)[-8:]}</a>'
    assert link in page, "a limit names who holds it"


@pytest.mark.parametrize("known", [True, False])
def test_arguments_are_one_object_if_their_names_are_known(staff, make_task, known):
    task = make_task(task_type="taskqueue_project.demo.tasks.count_words" if known else "gone.away")
    TaskPayload.objects.filter(pk=task.pk).update(args=[7], parameters={"page": 2})
    page = words(staff, f"task/{task.pk}/change/")
    assert ("Positional arguments" in page) is not known
    assert (re.search(r"&quot;document_id&quot;: 7, &quot;page&quot;: 2", page) is not None) is known


def test_a_schedule_that_fails_says_so_in_the_list(staff, db):
    create_schedule("ledger", {"task_type": "taskqueue_project.demo.tasks.broken", "every": 60}, now=NOON)
    for minute in (1, 2, 3):
        run_due(now=NOON + timedelta(minutes=minute))
    assert "failing" not in words(staff, "schedule/")
    ScheduleTick.objects.update(outcome="dead_letter")
    listed = words(staff, "schedule/")
    assert "failing" in listed
    assert "3 times in a row" in listed


def test_only_who_may_change_a_schedule_has_the_preview_of_its_form(staff, client, db):
    create_schedule("ledger", {"task_type": "taskqueue_project.demo.tasks.broken", "every": 60}, now=NOON)
    path = f"{ADMIN}schedule/{Schedule.objects.get().pk}/change/"
    client.force_login(StaffFactory(permissions=["view_schedule"]))
    assert "data-tq-preview" not in client.get(path).content.decode(), "its script would ask in vain"
    assert "data-tq-preview" in staff.get(path).content.decode()


def test_the_week_names_its_zone(staff, db):
    page = words(staff, "schedule/week/")
    assert "Hours of the zone UTC." in page
    assert "schedules tick at the same moment" not in page


def test_the_button_that_pauses_everything_says_so(staff, db):
    assert "Pause everything" in words(staff, "runtimesettings/1/change/")
    Queue.objects.create(name="mail")
    assert "Pause everything" not in words(staff, "queue/mail/change/")


def test_a_worker_leads_to_its_tasks(staff, make_task, make_worker, run_task):
    worker = make_worker()
    run_task(make_task(queue="mail"), worker)
    page = staff.get(f"{ADMIN}worker/{worker.pk}/change/").content.decode()
    assert f'<a href="{ADMIN}task/?worker_id={worker.pk}">All tasks that it ran</a>' in page
    assert '<a href="/admin/queue_app/queue/mail/change/">mail</a>' in page
    assert "1 task" in words(staff, f"task/?worker_id={worker.pk}")


def test_a_suggestion_links_its_simulation(staff, db):
    """Its hint names the operation that shows the simulation."""
    wanted = "01a206eb-3a8b-7235-b7c4-15b2abb039ae"
    told = tq_linked(f"Operation {wanted} shows <it>, since 2026-11-23 05:15:21+00:00.", "operation")
    assert f'<a href="{ADMIN}operation/{wanted}/change/">abb039ae</a> shows &lt;it&gt;' in told
    assert '<time class="tq-exact" datetime="2026-11-23T05:15:21+00:00">' in told
