"""The scheduler's job of adaptive limits."""

from queue_app.adaptive.adapt import STEP_SECONDS, adapt_limits
from queue_app.conf import SchedulerSettings
from queue_app.workers.scheduler import Job


def jobs(_settings: SchedulerSettings) -> list[Job]:
    """Return the job."""
    return [Job("adapt", STEP_SECONDS, adapt_limits, asks=("adaptive",))]
