"""What workflows add to the kernel; what lets a task start after another (``services.advance``) is a part of that."""

from typing import Final

from queue_app.core.rooms import Room

ROOM: Final = Room(
    "workflows",
    jobs=("jobs.jobs",),
    in_tests=("read.cancel_overdue",),
    questions={"workflows": "sql.ANY_OPEN"},
    addresses=("views.ADDRESSES",),
    pages={"Workflow": "admin.WorkflowAdmin"},
    verbs={"workflow": "verb"},
    task_details=("admin.around_task",),
    task_filters={"held": "read.holding_tasks"},
    parts={
        "children": "children",
        "enqueue_workflow": "store.enqueue_checked",
        "StoredWorkflow": "store.StoredWorkflow",
        "RunningWorkflow": "builder.RunningWorkflow",
        "assert_workflow": "testing.assert_workflow",
    },
    reasons=("diagnose.of_task",),
    findings=("diagnose.check_workflows",),
    overview={"held": "diagnose.HELD"},
    metrics=("diagnose.metrics",),
)
