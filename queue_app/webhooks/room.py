"""What webhooks add to the kernel."""

from typing import Final

from queue_app.core.rooms import Room

ROOM: Final = Room("webhooks", at_start=("checks",))
