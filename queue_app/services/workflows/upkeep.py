"""Keep workflows going after crashes: settle open ones, sweep for forgotten tasks, cancel overdue ones.

The scheduler calls this; every part is bounded and safe to run twice at once.
"""

from __future__ import annotations

import uuid
from typing import Final

from django.db.models.functions import Now

from queue_app.exceptions import InvalidTransition, WorkflowNotFound
from queue_app.models import Workflow
from queue_app.services.advance import changing, push_opened
from queue_app.services.lifecycle.settle import settle_all
from queue_app.services.notify import events
from queue_app.services.workflows.steer import cancel_workflow
from queue_app.sql import workflow_settle as rows
from queue_app.sql.database import alias
from queue_app.sql.workflow_advance import go_on

#: Open workflows that one run settles, and blocked tasks that it looks at.
FLOWS: Final = 200
TASKS: Final = 500
#: Counter of blocked tasks that the sweep had to queue; it stays 0.
MENDED: Final = "repair:forgotten_tasks"


class WorkflowUpkeep:
    """Goes through open workflows and blocked tasks, a part in each run."""

    def __init__(self) -> None:
        self._flow = uuid.UUID(int=0)
        self._task = uuid.UUID(int=0)

    def run_once(self) -> int:
        """Handle the next part; return how many tasks were forgotten."""
        cancel_overdue()
        self._settle()
        return self._sweep()

    def _settle(self) -> None:
        page = rows.page_of_open(self._flow, FLOWS)
        self._flow = page[-1][0] if len(page) == FLOWS else uuid.UUID(int=0)
        settle_all(workflow_id for workflow_id, is_wanted in page if is_wanted)

    def _sweep(self) -> int:
        page = rows.page_of_blocked(self._task, TASKS)
        self._task = page[-1][0] if len(page) == TASKS else uuid.UUID(int=0)
        ready = [task_id for task_id, _, is_ready in page if is_ready]
        return mend(ready) if ready else 0


def mend(ids: list[uuid.UUID]) -> int:
    """Queue blocked tasks whose parents have all ended, if that is still so; return how many."""
    with changing(ids, alone=True):
        mended = push_opened(go_on([(task_id, 0, 0) for task_id in rows.still_ready(ids)]))
    if mended:
        events.count({MENDED: mended})
    return mended


def cancel_overdue() -> int:
    """Cancel the workflows whose deadline has passed; return how many."""
    overdue = Workflow.objects.using(alias()).filter(
        finished_at=None, deadline__lte=Now(), cancel_requested_at=None, state="running"
    )
    done = 0
    for workflow_id in list(overdue.values_list("id", flat=True)[:FLOWS]):
        try:
            cancel_workflow(workflow_id, via="", reason="its deadline has passed")
        except (InvalidTransition, WorkflowNotFound):  # it ended meanwhile
            continue
        done += 1
    return done
