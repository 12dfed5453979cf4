"""What simulations add to the kernel."""

from typing import Final

from queue_app.core.rooms import Room

ROOM: Final = Room(
    "what_if",
    jobs=("jobs.jobs",),
    pages={"Operation": "admin.SimulatingAdmin"},
    verbs={"simulate": "verb"},
    suggestions=("suggest.of_limits", "suggest.of_bands"),
)
