"""The scheduler's jobs of simulations: start the process of one that was requested, and request trials."""

from queue_app.conf import SchedulerSettings
from queue_app.what_if.operation import TRIAL_SECONDS, request_trial, run_simulations
from queue_app.workers.scheduler import Job


def jobs(settings: SchedulerSettings) -> list[Job]:
    """Return the jobs."""
    return [
        Job("simulations", settings.reap_seconds, run_simulations, asks=("operations",)),
        Job("trials", TRIAL_SECONDS, request_trial),
    ]
