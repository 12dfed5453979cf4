"""From tasks to their workflow and back: the task's page, the filter and the search of the list."""

import re

import pytest
from django.urls import reverse
from django.utils import timezone

from queue_app import Workflow
from queue_app.admin.task_search import read_address
from queue_app.models import Task
from queue_app.models import Workflow as Row
from queue_app.services.lifecycle.finish import finish
from queue_app.services.read.task_filter import TaskFilter, matching
from queue_app.services.workflows.steer import cancel_workflow
from tests.support.engine import done, take
from tests.support.factories import StaffFactory
from tests.workers import chores

LIST = reverse("admin:queue_app_task_changelist")


@pytest.fixture
def order(committed) -> Workflow:
    """An order: paid (which can be undone), then packed, then shipped, or reported if packing fails."""
    made = Workflow("order <7>", user="ina")
    pay = made.add_call(chores.echo, [1], name="pay", compensate=chores.returns)
    pack = made.add_call(chores.echo, [2], after=[pay], name="pack")
    made.add_call(chores.echo, [3], after=[pack], name="ship")
    made.add_call(chores.echo, [4], after=[pack.if_failed], name="report")
    with committed():
        made.enqueue()
    return made


def text_of(client, task: Task) -> str:
    text = client.get(reverse("admin:queue_app_task_change", args=[task.pk])).content.decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def found(client, query: str) -> set[str]:
    """Return the short ids of the listed tasks."""
    return set(re.findall(r'<code title="([0-9a-f-]{36})"', client.get(f"{LIST}?{query}").content.decode()))


def ids(flow) -> list[str]:
    return [str(pk) for pk in Task.objects.filter(workflow_id=flow.id).order_by("id").values_list("pk", flat=True)]


def test_a_task_links_to_its_workflow_and_its_neighbours(staff, client, order):
    _pay, pack, *_ = Task.objects.filter(workflow_id=order.id).order_by("id")
    text = text_of(staff, pack)
    assert "order &lt;7&gt; running Name in it pack" in text
    assert "Waits for pay queued Waited for by ship blocked report blocked if it fails" in text
    client.force_login(StaffFactory(username="eve", permissions=["view_task"]))
    assert "order &lt;7&gt;" not in text_of(client, pack)


def test_a_task_that_was_undone_links_to_what_undid_it(staff, committed, engine, order):
    pay = Task.objects.filter(workflow_id=order.id).earliest("id")
    with committed():
        finish([done(task, '"paid"') for task in take(engine.worker(pay.task_type))])
    with committed():
        cancel_workflow(order.id)
    undo = Task.objects.filter(workflow_id=order.id).latest("id")
    assert "Undone by returns queued" in text_of(staff, pay)
    assert "Undoes pay completed" in text_of(staff, undo)


def test_the_list_is_narrowed_to_a_workflow(staff, make_task, order):
    other = make_task()
    assert found(staff, f"workflow_id={order.id}") == set(ids(order))
    text = staff.get(f"{LIST}?workflow_id={order.id}").content.decode()
    assert f"/workflow/{order.id}/change/" in text, "each row links to it"
    assert "order &lt;7&gt;" in text
    assert staff.get(f"{LIST}?workflow_id=7").status_code == 302, "no id"
    assert str(other.pk) in found(staff, "")


@pytest.mark.parametrize("term", ["order", "workflow:order", "workflow:ORDER <7", "{id}"])
def test_the_search_finds_the_tasks_of_a_workflow(staff, make_task, order, term):
    make_task()
    assert found(staff, f"q={term.format(id=order.id)}") == set(ids(order))


def test_search_and_filter_by_workflow_hold_together(staff, committed, order):
    other = Workflow("parcel")
    other.add(chores.echo, 1)
    with committed():
        other.enqueue()
    assert found(staff, f"q=workflow:order&workflow_id={other.id}") == set()
    assert found(staff, f"q=workflow:parcel&workflow_id={other.id}") == set(ids(other))
    assert found(staff, "q=workflow:nothing") == set()


def test_an_action_on_all_that_match_reaches_the_tasks_of_the_workflow_only(staff, make_task, order):
    make_task()
    for address in ({"q": "workflow:order"}, {"workflow_id": str(order.id)}, {"q": "order"}):
        wanted = read_address(address, timezone.now(), may_view_payload=True)
        stored = TaskFilter.from_json(wanted.as_json())
        assert {str(task.pk) for task in matching(stored)} == set(ids(order))
    nothing = read_address({"q": "workflow:none"}, timezone.now(), may_view_payload=True)
    assert not matching(TaskFilter.from_json(nothing.as_json())).exists()


def test_the_list_of_workflows_finds_one_by_its_id(staff, order):
    url = reverse("admin:queue_app_workflow_changelist")
    assert "order &lt;7&gt;" in staff.get(f"{url}?q={order.id}").content.decode()
    assert Row.objects.count() == 1
    assert "0 workflows" in staff.get(f"{url}?q=parcel").content.decode()
