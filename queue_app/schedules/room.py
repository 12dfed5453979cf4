"""What schedules add to the kernel."""

from typing import Final

from queue_app.core.rooms import Room

ROOM: Final = Room(
    "schedules",
    at_start=("checks", "declare"),
    jobs=("jobs.of_leader",),
    jobs_of_all=("jobs.of_all",),
    questions={"schedules": "sql.SECONDS_UNTIL_DUE"},
    addresses=("views.ADDRESSES",),
    pages={"Schedule": "admin.ScheduleAdmin"},
    verbs={"schedule": "verb"},
    reasons=("diagnose.of_tick",),
    findings=("diagnose.check_schedules",),
    overview={"late": "diagnose.LATE"},
    metrics=("diagnose.metrics",),
    operation_kinds={"backfill": "backfill.fill_page"},
    operation_targets={"ticks": "backfill.next_instants"},
    queued_again=("sql.reopen",),
    before_deletion=("sql.copy_outcomes",),
    pause_ends=("pause.settle_if_paused",),
)
