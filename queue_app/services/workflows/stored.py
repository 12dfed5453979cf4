"""A stored workflow as the backend gives it to its handle, with the interface of a workflow in memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from queue_app import codecs
from queue_app.exceptions import WorkflowNotFound
from queue_app.models import Workflow
from queue_app.models.workflow import WorkflowState
from queue_app.services.lifecycle.results import filled_in
from queue_app.services.workflows import steer
from queue_app.sql.database import alias


class StoredWorkflow:
    """Reads the rows of a workflow, and calls the services on it."""

    def __init__(self, workflow_id: uuid.UUID) -> None:
        self.id = workflow_id
        self.cancel: Callable[..., int] = partial(steer.cancel_workflow, workflow_id)
        self.pause: Callable[..., int] = partial(steer.pause_workflow, workflow_id)
        self.resume: Callable[..., int] = partial(steer.resume_workflow, workflow_id)
        self.retry: Callable[..., int] = partial(steer.retry_workflow, workflow_id)
        self.stop_undoing: Callable[..., int] = partial(steer.stop_undoing, workflow_id)

    @property
    def row(self) -> Workflow:
        """The row; raises ``WorkflowNotFound``."""
        found: Workflow | None = Workflow.objects.using(alias()).filter(pk=self.id).first()
        if found is None:
            raise WorkflowNotFound(f"There is no workflow {self.id}.")
        return found

    @property
    def state(self) -> WorkflowState:
        """Its state."""
        return WorkflowState(self.row.state)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens, unless it is retried."""
        return self.row.finished_at is not None

    @property
    def gaps(self) -> list[str]:
        """Names of the completed tasks that stay as they are."""
        return [gap["name"] for gap in self.row.gaps]

    def filled(self, reference: Any) -> Any:
        """Return what a stored reference stands for."""
        return codecs.real_result(filled_in(self.id, [reference], {})[0][0])
