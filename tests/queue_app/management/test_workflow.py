"""taskqueue workflow: list, show and steer."""

import io

import pytest
from django.core.management import CommandError, call_command

from queue_app import Workflow
from queue_app.models import AuditEntry, Task
from tests.workers import chores

pytestmark = pytest.mark.django_db(transaction=True)


def say(*words) -> str:
    out = io.StringIO()
    call_command("taskqueue", "workflow", *map(str, words), stdout=out, stderr=out)
    return out.getvalue()


@pytest.fixture
def flow():
    made = Workflow("ship order 7")
    pay = made.add(chores.echo, 1)
    made.add(chores.slow, after=[pay])
    made.enqueue()
    return made


def test_without_workflows():
    assert say("list") == "no workflows\n"


def test_list_and_show(flow):
    assert "ship order 7" in say("list")
    assert say("list", "--state", "completed") == say("list", "--state", "held") == "no workflows\n"
    assert "ship order 7" in say("list", "--state", "open")
    lines = say("show", flow.id).splitlines()
    assert lines[0] == "ship order 7: running, 2 tasks"
    assert [line.split()[0] for line in lines[2:]] == ["echo", "slow"]
    assert lines[3].split()[-1] == "echo"


def test_explain_sends_the_id_of_a_workflow_here(flow):
    with pytest.raises(CommandError, match=f"is a workflow: run `taskqueue workflow show {flow.id}`"):
        call_command("taskqueue", "explain", str(flow.id))


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["pause"], {"blocked"}),
        (["cancel"], {"cancelled"}),
        (["reprioritise", "--priority", "high"], {"queued", "blocked"}),
    ],
)
def test_steer(flow, words, after):
    action, *options = words
    assert f"{action} ship order 7" in say(action, flow.id, *options, "--reason", "because")
    assert set(Task.objects.values_list("status", flat=True)) == after
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.target) == (f"workflow.{action}", "because", "workflow")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show"], "needs the id of a workflow"),
        (["list", "--state", "hold"], "must be one of open, held, paused, running"),
        (["show", "019a2b00-0000-7000-8000-000000000000"], "There is no workflow"),
        (["cancel", "nonsense"], "nonsense"),
    ],
)
def test_wrong_words(words, said):
    with pytest.raises(CommandError, match=said):
        say(*words)
