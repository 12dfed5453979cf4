"""What holds workflows, and why their tasks wait: for ``explain``, the doctor, the overview and metrics."""

from collections.abc import Iterator
from typing import Final

from queue_app.core.reasons import Finding, Reason, all_of, because, by, ok, reason, status_name, warn
from queue_app.core.sentence import age, sentence, sentence_n
from queue_app.core.states import TERMINAL, Status
from queue_app.diagnose import work
from queue_app.diagnose.explain import NAMED, Case
from queue_app.diagnose.live import OverviewPart
from queue_app.diagnose.overview import Link, OverviewReason
from queue_app.models import Workflow
from queue_app.models.workflow import WorkflowState
from queue_app.sql.database import alias
from queue_app.sql.stats import counts_of
from queue_app.workflows import sql as workflow_graph

#: Seconds for which a workflow may be held before it is reported; the alert rule has the same limit.
HELD_SECONDS: Final = 3600.0
#: Maximum number of held workflows that the overview shows.
MAX_HELD: Final = 3


def of_task(case: Case) -> Iterator[Reason]:
    """Yield what its workflow has to do with a task that has ended, or waits."""
    if case.task.workflow_id is None:
        return
    if case.task.status in TERMINAL:
        yield from _holds_workflow(case)
    elif case.task.status == Status.BLOCKED:
        yield from _in_workflow(case)


def _holds_workflow(case: Case) -> Iterator[Reason]:
    """Yield that a failed task holds its workflow, and the ways out."""
    task = case.task
    if task.workflow_id is not None and workflow_graph.holds(task.id, task.workflow_id):
        flow = str(task.workflow_id)
        yield reason("holds_workflow", flow=flow, task=str(task.pk), details={"id": flow})


def _in_workflow(case: Case) -> Iterator[Reason]:
    """Yield why a task of a workflow waits, and who paused it and why."""
    task = case.task
    if task.workflow_id is None:
        return
    flow = Workflow.objects.using(alias()).filter(pk=task.workflow_id).first()
    if flow is not None and flow.paused:
        person, why = (flow.paused_by, flow.paused_reason) if case.named else ("", "")
        yield reason("workflow_paused", name=flow.name, by=by(person), why=because(why), details={"id": str(flow.pk)})
    parents = workflow_graph.waits_for(task.id, NAMED + 1)
    if parents:
        texts: list[str] = [
            sentence("%(task)s (%(status)s)", task=name or task_type.rpartition(".")[2], status=status_name(status))
            for _id, task_type, name, status, _condition in parents[:NAMED]
        ]
        texts += [sentence("others")] if len(parents) > NAMED else []
        details = {"tasks": [str(parent[0]) for parent in parents[:NAMED]]}
        yield reason("waits_for_tasks", tasks=all_of(texts), details=details)
    elif flow is not None and not flow.paused and flow.max_concurrent is not None:
        yield reason("workflow_limit", n=flow.max_concurrent, details={"limit": flow.max_concurrent})


def check_workflows() -> Iterator[Finding]:
    """Report workflows that a failed task has held for an hour."""
    held = workflow_graph.held(work.NAMED, seconds=HELD_SECONDS)
    if not held:
        yield ok("workflows", "none has been held for an hour")
        return
    named = "; ".join(f"{each.name} {each.id} for {each.seconds:,.0f} s{_by(each)}" for each in held)
    yield warn(
        "workflows",
        f"{held[0].number:,} held for more than an hour: {named}",
        "Mend the cause, then run `manage.py taskqueue workflow retry ID`; or discard the dead letter in the admin.",
    )


def _by(held: workflow_graph.HeldWorkflow) -> str:
    return f" by {held.task} ({held.status.replace('_', ' ')})" if held.task else ""


def _in_banner(found: list[workflow_graph.HeldWorkflow]) -> list[OverviewReason]:
    """Return how many workflows are held, and which have been held longest, and by what."""
    if not found:
        return []
    number, may_see = found[0].number, "queue_app.view_workflow"
    text = sentence_n(
        "A failed task holds %(n)s workflow, for %(time)s.",
        "Failed tasks hold %(n)s workflows, the first for %(time)s.",
        number, time=age(found[0].seconds),
    )  # fmt: skip
    links = [
        Link(
            sentence("%(name)s by %(task)s", name=each.name, task=each.task) if each.task else each.name,
            "workflow_change", may_see, args=(each.id,),
        )
        for each in found
    ]  # fmt: skip
    if number > len(found):
        links.append(Link(sentence("All held workflows"), "workflow_changelist", may_see, "standing=held"))
    return [OverviewReason(text, links=tuple(links))]


HELD: Final = OverviewPart("queue_app.view_workflow", lambda: workflow_graph.held(MAX_HELD), _in_banner)


def metrics() -> dict[str, dict[tuple[str, ...], float]]:
    """Return how many workflows there are by state, and how many a failed task holds."""
    states, held = counts_of("queue_app_workflow", "state"), workflow_graph.held(1)
    return {
        "workflow_state_total": {(state.value,): states.get(state, 0) for state in WorkflowState},
        "workflows_held": {(): held[0].number if held else 0},
        "workflow_held_seconds": {(): held[0].seconds if held else 0.0},
    }
