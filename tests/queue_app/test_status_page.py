"""The status page: of one's own tasks, live by polling, complete without JavaScript."""

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.shortcuts import redirect
from django.template import Context, Template
from django.test import RequestFactory
from django.urls import reverse

from queue_app import task
from queue_app.core.states import Status
from queue_app.models import AuditEntry, Task, TaskProgress, TaskResult
from tests.support.factories import move


@task
def make_report(year: int = 0) -> None:
    """Make one."""


@pytest.fixture
def ann(client, db):
    user = User.objects.create_user("ann")
    client.force_login(user)
    return client


def page_of(result) -> str:
    return redirect(result)["Location"]


def ended(result, value) -> None:
    move(Task.objects.get(pk=result.id), "completed")
    if value is not None:
        TaskResult.objects.update_or_create(task_id=result.id, defaults={"value": value})


def test_redirect_leads_to_the_page_of_ones_own_task(ann):
    result = make_report.using(user="ann").enqueue()
    answer = ann.get(page_of(result))
    text = answer.content.decode()
    assert "Make report" in text
    assert "It waits for its turn." in text
    assert '<noscript><meta http-equiv="refresh"' in text
    assert "<script>" not in text
    assert "style=" not in text
    assert answer["Cache-Control"] == "no-store"


def test_another_user_does_not_see_it_and_nobody_has_to_log_in(ann, client):
    result = make_report.using(user="bob").enqueue()
    assert ann.get(page_of(result)).status_code == 404
    assert ann.post(page_of(result)).status_code == 404
    assert Task.objects.get(pk=result.id).status == Status.QUEUED
    client.logout()
    assert client.get(page_of(result)).status_code == 302


def test_the_address_of_a_task_without_a_user_is_enough_but_cannot_be_guessed(client, db):
    result = make_report.enqueue()
    page = page_of(result)
    answer = client.get(page)
    assert answer.status_code == 200
    assert "Cancel" not in answer.content.decode()
    other = make_report.enqueue()
    assert client.get(page.replace(result.id, other.id)).status_code == 404
    assert client.get(reverse("queue_app:task-status", args=[f"{result.id}:x"])).status_code == 404
    Task.objects.filter(pk=result.id).delete()
    assert client.get(page).status_code == 404


def test_the_part_that_changes_shows_progress_and_the_end(ann):
    result = make_report.using(user="ann").enqueue()
    row = move(Task.objects.get(pk=result.id), "executing")
    TaskProgress.objects.create(
        task=row, attempt=1, fraction=0.25, message="<b>page 3</b>", updated_at="2026-01-01T00:00:00Z"
    )
    part = ann.get(page_of(result) + "?part")
    assert '<progress value="0.250"' in part.content.decode()
    assert "&lt;b&gt;page 3" in part.content.decode()
    assert "<html" not in part.content.decode()
    assert part["X-Task-Ended"] == "0"
    ended(result, None)
    part = ann.get(page_of(result) + "?part")
    assert (part["X-Task-Ended"], "Done." in part.content.decode()) == ("1", True)


@pytest.mark.parametrize(
    ("value", "link"),
    [
        ({"url": "/reports/7"}, "/reports/7"), ("/reports/7", "/reports/7"), ("http://testserver/x", "http://testserver/x"),
        ("javascript:alert(1)//", ""), ("https://evil.example/", ""), ("//evil.example/", ""), ({"url": 7}, ""),
        ("text", ""), (None, ""),
    ],
)  # fmt: skip
def test_only_an_address_of_this_site_becomes_a_link(ann, value, link):
    result = make_report.using(user="ann").enqueue()
    ended(result, value)
    text = ann.get(page_of(result)).content.decode()
    assert ("Open the result" in text) is bool(link)
    assert f'href="{link}"' in text if link else "evil" not in text


def test_the_owner_cancels_with_a_form(ann):
    result = make_report.using(user="ann").enqueue()
    assert "<form" in ann.get(page_of(result)).content.decode()
    answer = ann.post(page_of(result), follow=True)
    assert "It was cancelled." in answer.content.decode()
    assert Task.objects.get(pk=result.id).status == Status.CANCELLED
    assert ann.post(page_of(result)).status_code == 302  # again: nothing happens
    assert AuditEntry.objects.get().by == "ann"


def test_a_failure_tells_no_error(ann):
    result = make_report.using(user="ann").enqueue()
    move(Task.objects.get(pk=result.id), "failed")
    assert "It did not succeed" in ann.get(page_of(result)).content.decode()


def test_the_tag_says_that_it_needs_the_request(ann):
    template = Template("{% load taskqueue %}{% task_status result %}")
    with pytest.raises(ImproperlyConfigured, match="needs the request"):
        template.render(Context({"result": make_report.enqueue()}))


def test_a_page_of_the_project_shows_it_by_a_tag(ann):
    own = make_report.using(user="ann").enqueue()
    other = make_report.using(user="bob").enqueue()
    request = RequestFactory().get("/")
    request.user = User.objects.get()
    template = Template("{% load taskqueue %}{% task_status result %}")
    shown = template.render(Context({"request": request, "result": own}))
    assert f'data-task-status="{page_of(own)}?part"' in shown
    assert 'status.js" defer></script>' in shown
    assert "It waits for its turn." in shown
    assert template.render(Context({"request": request, "result": own.id})).count("It waits") == 1
    assert template.render(Context({"request": request, "result": other})) == ""
