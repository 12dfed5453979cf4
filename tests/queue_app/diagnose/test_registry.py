"""A new reason is its line in the registry and its finder: every door has it then."""

import sys

import pytest
from django.test import Client
from django.utils import timezone

from queue_app.admin.filters import NARROW
from queue_app.core import shared
from queue_app.core.reasons import KINDS, Kind, Level, Source, reason
from queue_app.core.states import Status
from queue_app.diagnose import doctor, explain, health, stalls, system, waits
from queue_app.diagnose.stalls import Stall
from queue_app.diagnose.waits import Workforce
from queue_app.metrics.exposition import families
from queue_app.services.read.task_filter import TaskFilter
from queue_app.services.upkeep.jobs import take_lead
from tests.docs.pages import ROOT
from tests.support.engine import put
from tests.support.factories import StaffFactory
from tests.support.findings import register_live
from tests.support.pages import words_of
from tests.support.rows import forget_known_queues

sys.path.append(str(ROOT / "docs"))
from parts import lists


@pytest.fixture
def add(monkeypatch):
    """Return a function that adds a kind to the registry for the test."""

    def add(*values, **options) -> None:
        kind = Kind(*values, **options)
        monkeypatch.setitem(KINDS, kind.code, kind)

    return add


@pytest.fixture
def overview(engine):
    """Return a function that reads the overview of the admin."""
    shared.forget()
    client = Client()
    client.force_login(StaffFactory(is_superuser=True))
    yield lambda: shared.forget() or words_of(client.get("/admin/queue_app/queue/live/"))
    shared.forget()
    forget_known_queues()


def test_a_new_trouble_is_in_explain_doctor_overview_and_readiness(engine, add, override, overview):
    register_live(engine.worker())
    task_id = put()
    assert "no_licence" not in explain.explain(task_id).codes
    add("no_licence", "The licence ended %(days)s days ago.", "Renew it.", Source.SYSTEM, Level.FAIL, check="licence")
    found = lambda _state: iter([reason("no_licence", days=3)])  # noqa: E731 - a finder
    override(system, FINDERS=[*system.FINDERS, found])
    answer = explain.explain(task_id)
    assert [each.text for each in answer.blocking if each.code == "no_licence"] == [
        "The licence ended 3 days ago. Renew it."
    ]
    [finding] = [each for each in doctor.examine() if each.check == "licence"]
    assert finding == doctor.Finding("licence", Level.FAIL, "The licence ended 3 days ago.", "Renew it.")
    assert "urgent The licence ended 3 days ago. Renew it." in overview()
    assert health.check(within=30).reasons["index"] == "The licence ended 3 days ago."
    assert "| `no_licence` | The licence ended … days ago. | Renew it. |" in lists.reasons()


def test_a_new_reason_of_tasks_is_in_explain_and_counted_in_the_overview(engine, add, monkeypatch, overview):
    worker = engine.worker()
    register_live(worker)
    task_id = put()
    add("no_permit", "No live worker has the permit of %(queue)s.", "Start one.", Source.WORKERS, Level.FAIL)
    able = Workforce.why_not

    def why_not(self, task, *, named):
        yield from able(self, task, named=named)
        yield reason("no_permit", queue=task.queue)

    monkeypatch.setattr(Workforce, "why_not", why_not)
    assert "no_permit" in explain.explain(task_id).codes
    shared.forget()
    assert "No live worker has the permit of default." in overview()
    assert "no_permit" in waits.wait_codes()
    assert NARROW["wait"](TaskFilter(), "no_permit", timezone.now()).kinds


def test_another_room_can_add_a_finder(engine, add, override):
    register_live(engine.worker())
    add("too_early", "Its shop is closed.", "Wait.", Source.ROW)
    override(explain, FINDERS=list(explain.FINDERS))
    explain.finds_tasks(Status.QUEUED)(lambda case: iter([reason("too_early", details={"queue": case.task.queue})]))
    [found] = [each for each in explain.explain(put()).reasons if each.code == "too_early"]
    assert (found.text, found.blocks, found.details) == ("Its shop is closed.", True, {"queue": "default"})


def test_a_new_kind_of_stall_is_in_doctor_overview_and_metrics(engine, add, overview):
    add("no_beat", "The beat of %(name)s stopped.", "Restart it.", Source.WATCHDOG, Level.FAIL, check="stalls")
    take_lead("me", 60)
    stalls.write([Stall("no_beat", "", "The beat of x stopped.")])
    [finding] = [each for each in doctor.examine() if each.check == "stalls"]
    assert (finding.message[:22], finding.hint) == ("The beat of x stopped.", "Restart it.")
    assert "urgent The beat of x stopped." in overview()
    shown = {family.metric.name: family.samples for family in families(health.collect(within=30))}
    assert (shown["stalled"]["no_beat",], shown["stalls_total"]["no_beat",]) == (1.0, 0)


def test_a_sentence_is_said_by_one_kind_only():
    assert len({kind.text for kind in KINDS.values()}) == len(KINDS)
    assert [kind.code for kind in KINDS.values() if kind.level is not Level.OK and not kind.remedy] == []
