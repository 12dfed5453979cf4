"""The scheduler's job of workflows."""

from queue_app.conf import SchedulerSettings
from queue_app.workers.scheduler import Job
from queue_app.workflows.read import WorkflowUpkeep


def jobs(settings: SchedulerSettings) -> list[Job]:
    """Return the job."""
    return [Job("workflows", settings.reap_seconds, WorkflowUpkeep().run_once, asks=("workflows",))]
