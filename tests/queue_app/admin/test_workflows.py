"""The pages of workflows: the list, the graph as picture and table, the buttons."""

import re
from collections import Counter
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone, translation

from queue_app import Workflow, group
from queue_app.admin.filters import read_address
from queue_app.core import shared
from queue_app.diagnose.explain import explain
from queue_app.models import AuditEntry, Signal, StepResult, Task, Workflow as Row, WorkflowNode
from queue_app.services.lifecycle.finish import finish
from queue_app.services.read.task_filter import TaskFilter, matching
from queue_app.workflows import read
from queue_app.workflows.drawing import graph, states_in_words
from queue_app.workflows.read import graph_of
from queue_app.workflows.steer import cancel_workflow
from tests.support.engine import done, take
from tests.support.factories import DeadLetterFactory, StaffFactory, TaskFactory, let_wait, move
from tests.support.pages import CONFIRMED, words_of
from tests.workers import chores

LIST = reverse("admin:queue_app_workflow_changelist")


def page(flow) -> str:
    return reverse("admin:queue_app_workflow_change", args=[flow.id])


def press(client, flow, button: str, **data) -> str:
    """Press a button of the page; return the message."""
    url = reverse(f"admin:queue_app_workflow_{button}", args=[flow.id])
    found = client.post(url, CONFIRMED | data, follow=True)
    return " ".join(str(message) for message in found.context["messages"])


@pytest.fixture
def flow(committed):
    """An order: paid, then packed and labelled, then shipped."""
    made = Workflow("order <7>", user="ina")
    pay = made.add(chores.echo, 1)
    parts = [made.add(chores.echo, number, after=[pay]) for number in (2, 3)]
    made.add(chores.echo, 4, after=parts)
    with committed():
        made.enqueue()
    return made


def tasks(flow) -> list[Task]:
    return list(Task.objects.filter(workflow_id=flow.id).order_by("id"))


def test_the_list_shows_progress_and_what_stands(staff, flow):
    move(tasks(flow)[0], "completed")
    text = staff.get(LIST).content.decode()
    assert "order &lt;7&gt;" in text
    assert "1 of 4" in text
    for standing in ("held", "paused"):
        assert "order" not in re.findall(
            r"<tbody>.*</tbody>", staff.get(f"{LIST}?standing={standing}").content.decode()
        )
    press(staff, flow, "pause", reason="the bank is down")
    assert "the bank is down" in staff.get(f"{LIST}?standing=paused").content.decode()


def test_what_waits_for_people_is_a_filter_of_workflows_and_of_tasks(staff, flow):
    names = tasks(flow)
    assert "order" not in staff.get(f"{LIST}?standing=waiting").content.decode().split("<tbody>")[-1]
    let_wait(names[0])
    assert "order &lt;7&gt;" in staff.get(f"{LIST}?standing=waiting").content.decode()
    held(flow)
    found = staff.get("/admin/queue_app/task/?wait=held").context["cl"].result_list
    assert [task.pk for task in found] == [names[0].pk]


def test_a_task_that_waits_for_days_does_not_squash_the_times_of_the_others(staff, flow):
    began = timezone.now() - timedelta(days=3)
    pay, pack, label, _ = tasks(flow)
    for task, second in ((pay, 0), (pack, 10)):
        at = began + timedelta(seconds=second)
        move(task, "completed", started_at=at, finished_at=at + timedelta(seconds=10))
    move(label, "blocked", started_at=began + timedelta(seconds=10), attempt=1)
    context = staff.get(page(flow)).context
    bars = {bar.box.group.first: bar for bar in context["times"].bars}
    assert context["times"].whole == "20 s"
    assert (bars[pay.id].width, bars[pay.id].lasted) == (250.0, "10 s")
    assert (bars[label.id].x, bars[label.id].width, bars[label.id].is_waiting) == (250.0, 310.0, True)
    assert bars[label.id].lasted == "2 d 23 h so far, waits"
    move(label, "executing")
    context = staff.get(page(flow)).context
    assert context["times"].whole.startswith("3 d"), "what runs is to scale"
    assert not context["times"].waits


def test_days_in_which_nothing_ran_are_cut_out_of_the_times(staff, flow):
    """A task that slept for three days ran again: the seconds before and after stay wide enough to be seen."""
    began = timezone.now() - timedelta(days=4)
    pay, pack, label, _ = tasks(flow)
    for task, after in ((pay, timedelta()), (pack, timedelta(seconds=10)), (label, timedelta(days=3, seconds=20))):
        at = began + after
        move(task, "completed", started_at=at, finished_at=at + timedelta(seconds=10))
    answer = staff.get(page(flow))
    times = answer.context["times"]
    [cut] = times.cuts
    assert (cut.lasted, times.whole) == ("3 d", "3 d")
    assert [(bar.x, bar.width) for bar in times.bars] == [(0.0, 172.0), (172.0, 172.0), (388.0, 172.0)]
    assert cut.x == 344.0, "between them, as wide as its text"
    assert "Times in which nothing ran are cut out" in answer.content.decode()


def test_the_page_shows_the_graph_as_picture_and_table(staff, flow):
    first, *_ = tasks(flow)
    move(first, "completed", started_at=timezone.now(), finished_at=timezone.now())
    found = staff.get(page(flow))
    text = found.content.decode()
    assert text.count('<rect x="') == 4 + 1, "four boxes and the bar of the one that ran"
    assert text.count('class="tq-edge') == 4
    assert len(re.findall(r'<tr id="group-\d+">', text)) == 4
    assert "tq-node-blocked" in text
    assert text.count(f"/admin/queue_app/task/{first.id}/change/") == 2, "in the picture and in the table"
    drawn = re.findall(r'<svg class="tq-graph.*?</svg>', text, re.DOTALL)[0]
    assert "style=" not in drawn, "the policy for content forbids it"


def test_who_may_not_view_tasks_sees_no_links_to_them(client, flow):
    client.force_login(StaffFactory(username="eve", permissions=["view_workflow"]))
    assert "/queue_app/task/" not in client.get(page(flow)).content.decode()
    assert "formaction" not in client.get(page(flow)).content.decode()
    assert client.post(reverse("admin:queue_app_workflow_cancel", args=[flow.id])).status_code == 403


@pytest.mark.parametrize(
    ("button", "data", "said", "after"),
    [
        ("pause", {}, "Tasks held back: 1", {"blocked": 4}),
        ("cancel", {}, "Cancelled tasks: 4", {"cancelled": 4}),
        ("reprioritise", {"priority": "critical"}, "Moved waiting tasks: 4", {"queued": 1, "blocked": 3}),
    ],
)
def test_a_button_acts_on_the_whole_workflow_and_records_it(staff, committed, flow, button, data, said, after):
    with committed():
        assert said in press(staff, flow, button, reason="because", **data)
    assert Counter(task.status for task in tasks(flow)) == after
    entry = AuditEntry.objects.get(target="workflow")
    assert (entry.action, entry.reason, entry.target_id) == (f"workflow.{button}", "because", str(flow.id))


def test_a_button_answers_in_the_language_of_the_reader(staff, committed, flow, settings, override):
    settings.LANGUAGE_CODE = "de"
    with translation.override("de"), committed():
        assert press(staff, flow, "cancel") == "Abgebrochene Aufgaben: 4."


def test_a_pause_ends_by_its_button(staff, committed, flow):
    with committed():
        press(staff, flow, "pause")
        assert "may run: 1" in press(staff, flow, "resume")
    assert Counter(task.status for task in tasks(flow)) == {"queued": 1, "blocked": 3}


def test_an_ended_workflow_has_no_button_to_cancel(staff, committed, flow):
    with committed():
        press(staff, flow, "cancel")
    assert "no longer" in press(staff, flow, "pause")
    assert "Cancelled tasks: 0" in press(staff, flow, "cancel")
    assert "/cancel/" not in staff.get(page(flow)).content.decode()


def test_tasks_that_are_alike_are_one_box(db, committed):
    with committed():
        flow_id = group([(chores.echo, number) for number in range(100)]).then(chores.raises).enqueue("images")
    first, last = graph_of(flow_id).groups
    assert (first.size, last.size, last.parents) == (100, 1, {0: "hold"})
    assert states_in_words(first.counts) == "100 queued"


def test_chains_side_by_side_fold_level_by_level(db, committed):
    made = Workflow("chains")
    for _ in range(20):
        before = made.add(chores.echo, 0)
        for number in range(1, 5):
            before = made.add(chores.echo, number, after=[before])
    with committed():
        made.enqueue()
    found = graph_of(made.id)
    assert [(len(each.tasks), each.level, sorted(each.parents)) for each in found.groups] == [
        (20, 0, []), (20, 1, [0]), (20, 2, [1]), (20, 3, [2]), (20, 4, [3]),
    ]  # fmt: skip


def test_a_tangle_folds_by_type_and_level(db, committed, override):
    override(read, MAX_GROUPS=10)
    made = Workflow("tangle")
    roots = [made.add(chores.echo, number) for number in range(30)]
    for number in range(30):
        made.add(chores.raises, "x", after=[roots[number], roots[(number * 7) % 30]])
    with committed():
        made.enqueue()
    assert [len(each.tasks) for each in graph_of(made.id).groups] == [30, 30]


def test_the_critical_path_is_that_of_the_last_to_end(flow):
    now = timezone.now()
    for number, task in enumerate(tasks(flow)):
        slow = 60 if number == 2 else 1
        start = now + timezone.timedelta(seconds=(0, 10, 10, 80)[number])
        move(task, "completed", started_at=start, finished_at=start + timezone.timedelta(seconds=slow))
    found = graph_of(flow.id)
    order = [task.id for task in tasks(flow)]
    assert [order.index(task_id) for task_id in found.critical] == [0, 2, 3]


def test_a_failed_task_for_which_others_wait_holds_the_workflow(staff, flow):
    move(tasks(flow)[0], "failed")
    Row.objects.update(held_at=timezone.now())
    text = staff.get(page(flow)).content.decode()
    assert "What holds it" in text
    assert text.count(f"/admin/queue_app/task/{tasks(flow)[0].id}/change/") == 3


def test_explain_names_what_a_task_waits_for_and_a_pause(staff, committed, flow):
    first, second, _, last = tasks(flow)
    assert [reason.text for reason in explain(second.id).reasons] == ["It waits for echo (queued)."]
    assert [reason.text for reason in explain(last.id).reasons] == ["It waits for echo (blocked) and echo (blocked)."]
    with committed():
        press(staff, flow, "pause", reason="the bank is down")
    texts = [reason.text for reason in explain(first.id).reasons]
    assert texts == ["Its workflow order <7> is paused by superuser: the bank is down."]
    own = explain(first.id, Task.objects.all()).reasons
    assert [reason.text for reason in own] == ["Its workflow order <7> is paused."]


def held(flow) -> None:
    """Let the payment be a dead letter, and the workflow be held by it."""
    failed = move(tasks(flow)[0], "dead_letter")
    DeadLetterFactory(task_id=failed.pk)
    Row.objects.update(held_at=timezone.now() - timezone.timedelta(hours=2))


def overview(client) -> str:
    shared.forget()
    return client.get(reverse("admin:app_list", args=["queue_app"])).content.decode()


def test_the_overview_names_held_workflows_and_what_holds_them(staff, client, flow):
    assert "holds 1 workflow" not in overview(staff)
    held(flow)
    text = overview(staff)
    assert "A failed task holds 1 workflow, for 2 h" in text
    assert re.search(r'href="[^"]*workflow/' + str(flow.id) + r'/change/">order &lt;7&gt; by echo</a>', text)
    client.force_login(StaffFactory(username="adam", permissions=["view_queue"]))
    assert "holds 1 workflow" not in overview(client)


def test_a_dead_letter_for_which_nothing_waits_holds_the_workflow_too(staff, committed):
    made = Workflow("alone")
    made.add(chores.echo, 1)
    with committed():
        made.enqueue()
    held(made)
    assert "What holds it" in staff.get(page(made)).content.decode()


def test_a_task_that_holds_it_runs_again_from_its_page(staff, client, committed, flow):
    held(flow)
    text = staff.get(page(flow)).content.decode()
    assert "no luck" in text, "the message of its error"
    url = reverse("admin:queue_app_task_retry", args=[tasks(flow)[0].pk])
    assert url in text
    with committed():
        answer = staff.post(url, {"next": f"workflow/{flow.id}"})
    assert answer.url == page(flow)
    assert tasks(flow)[0].status == "queued"
    client.force_login(StaffFactory(username="eve", permissions=["view_workflow", "view_task"]))
    Row.objects.update(held_at=timezone.now())
    text = client.get(page(flow)).content.decode()
    assert "no luck" not in text, "it needs the permission for payloads"
    assert url not in text


@pytest.mark.parametrize("next_page", ["workflow/", "workflow/../../../", "//evil.example", "workflow///evil.example"])
def test_a_button_leads_only_to_pages_of_the_admin(staff, flow, next_page):
    url = reverse("admin:queue_app_workflow_pause", args=[flow.id])
    assert staff.post(url, {"next": next_page}).url.startswith("/admin/queue_app/workflow/")


def test_a_signal_is_sent_to_the_workflow(staff, client, flow):
    url = reverse("admin:queue_app_workflow_signal", args=[flow.id])
    assert url in staff.get(page(flow)).content.decode()
    answer = staff.post(url, {"name": "go", "payload": '{"n": 1}', "reason": "because"}, follow=True)
    assert "it is kept until a task waits for it" in answer.content.decode()
    sent = Signal.objects.get()
    assert (sent.workflow_id, sent.name, sent.payload, sent.sent_by) == (flow.id, "go", {"n": 1}, "superuser")
    entry = AuditEntry.objects.get(target="workflow")
    assert (entry.action, entry.reason) == ("workflow.signal", "because")
    assert "go" in re.findall(r"Signals to the workflow.*", staff.get(page(flow)).content.decode(), re.DOTALL)[0]
    assert "JSON" in staff.post(url, {"name": "go", "payload": "{"}).content.decode()
    client.force_login(StaffFactory(username="eve", permissions=["view_workflow", "steer_workflow"]))
    assert client.post(url, {"name": "go"}).status_code == 403
    assert url not in client.get(page(flow)).content.decode()


def test_the_list_says_what_holds_and_what_waits(staff, flow):
    held(flow)
    assert re.search(r">held</span>.*by echo, for 2 h", staff.get(LIST).content.decode())
    Row.objects.update(held_at=None)
    Task.objects.filter(pk=tasks(flow)[1].pk).update(attempt=1)
    step = {"position": 1, "kind": "signal", "attempt": 1, "stored_at": timezone.now()}
    StepResult.objects.create(task_id=tasks(flow)[1].pk, name="wait", signal="checked", **step)
    assert "echo waits for the signal checked" in staff.get(LIST).content.decode()
    assert "waits for: checked" in staff.get(page(flow)).content.decode()


def test_an_ended_workflow_that_completed_has_no_buttons(staff, flow):
    for task in tasks(flow):
        move(task, "completed", started_at=timezone.now())
    Row.objects.update(state="completed", finished_at=timezone.now())
    text = staff.get(page(flow)).content.decode()
    assert "formaction" not in text
    assert "data-tq-live" not in text


def test_a_compensation_hangs_on_what_it_undoes_and_is_no_part_of_the_critical_path(staff, committed):
    made = Workflow("undone", on_failure="cancel")
    pay = made.add(chores.echo, 1, compensate=chores.returns)
    made.add(chores.echo, 2, after=[pay])
    with committed():
        made.enqueue()
    first, second = tasks(made)
    now = timezone.now()
    undo = TaskFactory(task_type="a.undo", workflow_id=made.id)
    WorkflowNode.objects.create(task=undo, compensates=first.pk)
    for number, task in enumerate((first, second, undo)):
        move(task, "completed", started_at=now, finished_at=now + timezone.timedelta(seconds=number))
    found = graph_of(made.id)
    assert found.critical == [first.id, second.id]
    drawn = graph(found)
    paid, undo = (next(box for box in drawn.boxes if box.group.first == task.pk) for task in (first, undo))
    assert (undo.x, undo.y > paid.y) == (paid.x, True)
    assert [condition for _path, condition, _critical in drawn.lines].count("undoes") == 1
    text = staff.get(page(made)).content.decode()
    assert "undoes the task above it" in text
    assert (paid.state, undo.state) == ("compensated", "completed")
    assert 'class="tq-node tq-node-compensated' in text
    assert "2 completed" in text
    assert "1 compensated" in text


def test_the_edges_of_a_graph_have_a_fixed_order(staff, committed):
    made = Workflow("fan in")
    first = [made.add_call(chores.echo, [number], name=f"part {number}") for number in range(12)]
    made.add_call(chores.echo, [99], after=first[::-1], name="sum")
    with committed():
        made.enqueue()
    boxes = staff.get(page(made)).context["graph"].boxes
    waits = [name for name, _number in boxes[-1].waits]
    assert waits == [f"part {number}" for number in range(12)]


def test_the_times_have_an_axis(staff, flow):
    began = timezone.now().replace(hour=12, minute=0, second=2, microsecond=0)
    for number, task in enumerate(tasks(flow)[:2]):
        start = began + timedelta(seconds=10 * number)
        move(task, "completed", started_at=start, finished_at=start + timedelta(seconds=10))
    times = staff.get(page(flow)).context["times"]
    assert [text for _x, text in times.ticks] == ["5 s", "10 s", "15 s"]
    assert times.ticks[0][0] == 140.0, "5 of 20 s of the width of 560"


# -- links between tasks and workflows -------------------------------------------------------------------------------


TASKS = reverse("admin:queue_app_task_changelist")


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
    return set(re.findall(r'<code title="([0-9a-f-]{36})"', client.get(f"{TASKS}?{query}").content.decode()))


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
    stop = reverse("admin:queue_app_workflow_stop_undoing", args=[order.id])
    assert "1 completed task stays as it is: pay. The workflow ends as failed." in words_of(staff.post(stop))


def test_the_first_click_on_cancel_only_shows_what_it_would_do(staff, committed, engine, order):
    pay = Task.objects.filter(workflow_id=order.id).earliest("id")
    with committed():
        finish([done(task, '"paid"') for task in take(engine.worker(pay.task_type))])
    move(tasks(order)[1], "executing")
    address = reverse("admin:queue_app_workflow_cancel", args=[order.id])
    words = words_of(staff.post(address, {"reason": "too late"}))
    assert "Cancel workflow: order <7>" in words
    for told in (
        "1 completed task is undone: 1 echo.",
        "1 running task is asked to stop.",
        "2 waiting tasks never run.",
    ):
        assert told in words
    assert "This field is required." in words_of(staff.post(address, {"confirmed": "yes", "reason": " "}))
    assert Row.objects.get().cancel_requested_at is None, "nothing has been changed yet"
    with committed():
        press(staff, order, "cancel", reason="too late")
    assert AuditEntry.objects.get().reason == "too late"
    assert Row.objects.get().cancel_requested_at is not None


def test_moving_a_workflow_to_the_front_names_the_tasks_and_what_stays(staff, order):
    words = words_of(
        staff.post(reverse("admin:queue_app_workflow_reprioritise", args=[order.id]), {"priority": "critical"})
    )
    assert "4 waiting tasks move to critical. Each task keeps its timeout" in words
    assert set(Task.objects.values_list("priority", flat=True)) == {2}
    assert "Moved waiting tasks: 4." in press(staff, order, "reprioritise", priority="critical")


def test_a_skip_names_what_then_does_not_run(staff, order):
    pay, pack, *_ = tasks(order)
    address = reverse("admin:queue_app_workflow_skip", args=[order.id])
    told = words_of(staff.post(address, {"task": str(pay.pk), "reason": "paid in cash"}))
    assert "1 task that waits for it does not run: echo." in told
    assert (
        'value="paid in cash"' in staff.post(address, {"task": str(pay.pk), "reason": "paid in cash"}).content.decode()
    )
    WorkflowNode.objects.filter(task_id=pack.pk).update(compensates=pay.pk)
    told = words_of(staff.post(address, {"task": str(pack.pk)}))
    assert "What it should have undone stays as it is. The others are undone." in told
    assert "undone by hand" in words_of(staff.post(address, {"task": str(pack.pk), "done": "1"}))


def test_a_task_of_a_workflow_is_cancelled_after_a_second_click(staff, order):
    _pay, pack, *_ = tasks(order)
    address = reverse("admin:queue_app_task_cancel", args=[pack.pk])
    assert "It belongs to a workflow: tasks that wait for it do not run." in words_of(staff.post(address))
    assert Task.objects.get(pk=pack.pk).status == "blocked"
    staff.post(address, CONFIRMED)
    assert Task.objects.get(pk=pack.pk).status == "cancelled"


def test_the_list_is_narrowed_to_a_workflow(staff, make_task, order):
    other = make_task()
    assert found(staff, f"workflow_id={order.id}") == set(ids(order))
    text = staff.get(f"{TASKS}?workflow_id={order.id}").content.decode()
    assert f"/workflow/{order.id}/change/" in text, "each row links to it"
    assert "order &lt;7&gt;" in text
    assert staff.get(f"{TASKS}?workflow_id=7").status_code == 302, "no id"
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
