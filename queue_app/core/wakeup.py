"""What ends the wait of a worker that has nothing to do."""

from enum import Enum


class WorkerMessage(Enum):
    """A message of the index to one worker."""

    WAKE_UP = "wake"  # there may be work
    NOTIFICATION = "tell"  # one of its rows changed
