"""What a worker's loop asks of a pool, whatever its slots are."""

from __future__ import annotations

from typing import Protocol

from queue_app.core.records import Outcome
from queue_app.exceptions import Interruption
from queue_app.registry import AnyTask
from queue_app.workers.context import ClaimedAttempt


class Pool(Protocol):
    """Runs held tasks in order in a fixed number of slots, and gathers the outcomes."""

    name: str
    #: Seconds after which an attempt that was interrupted is ended by force; ``None``: only its timeout does that.
    kill_after: float | None

    #: Seconds after which an attempt that was interrupted and still runs is interrupted again; ``None``: never.
    repeat_after: float | None

    def can_run(self, task: AnyTask) -> bool:
        """Whether a task of this kind may run here; others are not claimed."""

    def start(self) -> None:
        """Start the slots."""

    def submit(self, held: list[ClaimedAttempt]) -> None:
        """Take tasks to run, in this order."""

    def take_outcomes(self) -> list[Outcome]:
        """Return the outcomes since the last call, in the order in which they ended."""

    def take_unstarted(self) -> list[ClaimedAttempt]:
        """Take back the tasks that no slot has begun."""

    def running(self) -> list[tuple[ClaimedAttempt, float]]:
        """Return what runs now, and for how many seconds."""

    @property
    def unstarted(self) -> int:
        """How many tasks wait for a slot."""

    def interrupt(self, held: ClaimedAttempt, interruption: type[Interruption]) -> bool:
        """Ask an attempt to end; return false when it does not run here, or was asked already."""

    def interrupt_again(self, held: ClaimedAttempt) -> None:
        """Repeat an interruption that may have been lost."""

    def abandon(self, held: ClaimedAttempt, error: Interruption) -> Outcome | None:
        """End an attempt that did not end when it was asked; return its outcome, ``None`` when it has ended."""

    def stop(self) -> None:
        """Let the slots end; what still runs is given back by the caller."""
