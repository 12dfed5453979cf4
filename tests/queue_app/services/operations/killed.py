"""A separate process that advances operations and is killed at each point of a step; see test_request."""

from __future__ import annotations

import os
import signal
import sys
import uuid

import django


def die() -> None:
    """End as a machine that loses its power does."""
    os.kill(os.getpid(), signal.SIGKILL)


def advance_until(point: str, operation_id: uuid.UUID) -> None:
    """Take steps of two, and die at ``point`` of the first; or ``between`` the first and the second."""
    from django.db import transaction  # noqa: PLC0415 - needs the settings

    from queue_app.models import Operation  # noqa: PLC0415
    from queue_app.models.operation import OperationKind  # noqa: PLC0415
    from queue_app.services.operations import run  # noqa: PLC0415
    from queue_app.sql.database import alias  # noqa: PLC0415

    apply, save = dict(run._APPLY), Operation.save

    def apply_and_die(operation: Operation, ids: list[uuid.UUID]) -> int:
        if point == "committed":
            transaction.on_commit(die, using=alias())  # called first, so the index gets no notification
        changed = apply[OperationKind(operation.kind)](operation, ids)
        if point == "changed":
            die()
        return changed

    def save_and_die(operation: Operation, **options: object) -> None:
        save(operation, **options)
        if point == "noted":
            die()

    run.STEP = 2  # type: ignore[misc]
    run._APPLY.update(dict.fromkeys(apply, apply_and_die))
    Operation.save = save_and_die  # type: ignore[assignment,method-assign]
    run.advance(operation_id)
    die()


if __name__ == "__main__":
    django.setup()
    for where in sys.argv[2:]:
        if (child := os.fork()) == 0:
            advance_until(where, uuid.UUID(sys.argv[1]))
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, (where, status)
