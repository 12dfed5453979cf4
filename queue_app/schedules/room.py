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
    parts={
        "adelete_schedule": "edit.adelete_schedule",
        "aset_schedule": "edit.aset_schedule",
        "assert_scheduled": "testing.assert_scheduled",
        "delete_schedule": "edit.delete_schedule",
        "pause_schedule": "pause.pause_schedule",
        "resume_schedule": "pause.resume_schedule",
        "run_schedule": "backfill.run_schedule",
        "run_schedules": "testing.run_schedules",
        "set_schedule": "edit.set_schedule",
    },
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
