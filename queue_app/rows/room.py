"""What the index in PostgreSQL adds to the kernel."""

from typing import Final

from queue_app.core.rooms import Room

ROOM: Final = Room(
    "rows",
    findings=("diagnose.check_wake_ups",),
    parts={
        "RowsIndex": "index.RowsIndex",
        "build_lanes": "lanes.build",
        "name_recent": "lanes.name_recent",
        "empty_lanes": "lanes.empty",
        "fill_lanes": "lanes.fill",
        "begin_gates": "gates.begin",
        "forget_expired": "counting.forget_expired",
    },
)
