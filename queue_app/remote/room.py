"""What workers over HTTP add to the kernel."""

from typing import Final

from queue_app.core.rooms import Room

ROOM: Final = Room(
    "remote",
    addresses=("views.ADDRESSES",),
    pages={"WorkerToken": "admin.WorkerTokenAdmin"},
    verbs={"token": "verb"},
)
