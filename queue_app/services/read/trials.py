"""Read what simulations found about limits that hold tasks back; ``simulate.trials`` requests them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.utils import timezone

from queue_app.models import Operation
from queue_app.models.operation import OperationKind, OperationState
from queue_app.services.read.held import PERIOD, Held
from queue_app.sql.database import alias

#: Time for which a trial is valid.
VALID: Final = 4 * PERIOD
#: A trial helps if the wait of 95 % falls to this share of itself.
HELPS: Final = 0.8


@dataclass(frozen=True, slots=True)
class Trial:
    """What the simulation of a limit with another value found; waits of 95 % of its tasks in seconds."""

    operation: uuid.UUID
    value: int
    before: float
    after: float
    agrees: bool  # whether the simulation with the present value agrees with what happened

    @property
    def helps(self) -> bool:
        """Return whether the other value makes waits clearly shorter."""
        return self.after <= HELPS * self.before


def mark(each: Held) -> str:
    """Return the text that identifies a trial: the limit and its present value."""
    return f"{each.limit}={each.cap}"


def operations() -> dict[str, Operation]:
    """Return the newest valid trials, by mark."""
    recent = Operation.objects.using(alias()).filter(kind=OperationKind.SIMULATE, filter__has_key="trial")
    return {each.filter["trial"]: each for each in recent.filter(created_at__gte=timezone.now() - VALID).order_by("id")}


def trials_of(some: Sequence[Held]) -> dict[str, Trial]:
    """Return {limit: trial} of the limits that a simulation has tried from their present value."""
    if not some:
        return {}
    found: dict[str, Trial] = {}
    known = operations()
    for each in some:
        operation = known.get(mark(each))
        if operation is None or operation.state != OperationState.DONE:
            continue
        answer = operation.result or {}
        waits = [answer[run]["waits"].get("limit", {}).get(each.limit) for run in ("unchanged", "changed")]
        if all(waits):
            value = operation.arguments["limits"][each.limit]["max_concurrent"]
            found[each.limit] = Trial(
                operation.pk, value, waits[0]["p95"], waits[1]["p95"], bool(answer["calibration"]["agrees"])
            )
    return found
