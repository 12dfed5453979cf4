"""Simulations as operations: requested by staff or by the scheduler, carried out by a process of their own, and kept.

The scheduler requests trials: higher limits where limits hold tasks back, so that suggestions have numbers
(``suggest``). The effort is bounded: one new trial a turn, one for each limit and value in ``suggest.VALID``,
at most ``MAX_TASKS`` tasks.

Crash points: a process that dies leaves the operation running. After ``SILENT`` without a sign of life the scheduler
starts another one, ``TRIES`` times in all. Nothing but the operation's row is written.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from queue_app.core.sentence import as_json
from queue_app.exceptions import InvalidTaskData, OperationEnded, TaskQueueError
from queue_app.models import Operation
from queue_app.models.fields import USER_LENGTH
from queue_app.models.operation import OperationKind, OperationState, OperationTarget
from queue_app.services.enqueue.validate import check_reason
from queue_app.sql.database import alias, atomic, clock
from queue_app.what_if import sql as rows
from queue_app.what_if.index import has_server
from queue_app.what_if.suggest import held, mark, operations

SILENT: Final = timedelta(seconds=60)
TRIES: Final = 3
#: Interval of the signs of life, and of the checks whether staff stopped the operation.
SIGN: Final = timedelta(seconds=1)
#: Progress in parts: reading, both runs, which share the time, and counting. {part: (begin, length)}
PARTS: Final = {"reading": (0, 10), "unchanged": (10, 80), "changed": (10, 80), "counting": (90, 10)}
TOTAL: Final = 100
#: Interval at which the scheduler looks for a limit to try.
TRIAL_SECONDS: Final = 600.0
WINDOW: Final = timedelta(hours=1)
MAX_TASKS: Final = 50_000
REASON: Final = "For a suggestion: this limit holds tasks back while slots are idle."
_children: Final[list[subprocess.Popen[bytes]]] = []


def start_simulation(  # noqa: PLR0913 - by name
    scenario: Mapping[str, Any], since: datetime, until: datetime, *, by: str, reason: str = "", trial: str = ""
) -> Operation:
    """Request a simulation of a window; return its operation. Raises ``InvalidTaskData`` and ``SimulationRefused``.

    ``trial`` is what ``suggest`` finds it by.
    """
    from queue_app.what_if.recorded import check_window  # noqa: PLC0415 - a scheduler rarely needs these
    from queue_app.what_if.scenario import changed, empty  # noqa: PLC0415

    check_window(since, until)
    changed(empty(0, 1.0), scenario, with_load=False)  # to refuse what makes no sense now, not later
    return Operation.objects.using(alias()).create(
        kind=OperationKind.SIMULATE,
        target=OperationTarget.POLICIES,
        filter={"since": since.isoformat(), "until": until.isoformat(), **({"trial": trial} if trial else {})},
        arguments=dict(scenario),
        by=by[:USER_LENGTH],
        reason=check_reason(reason),
        total=TOTAL,
        created_at=clock(),
    )


def run_simulations() -> int:
    """Start a process for the oldest simulation that has none; return how many were started. One runs at a time."""
    with atomic():
        running = Operation.objects.using(alias()).filter(kind=OperationKind.SIMULATE, state=OperationState.RUNNING)
        operation = running.select_for_update(skip_locked=True).order_by("id").first()
        if operation is None:
            return 0
        now, known = clock(), operation.result or {}
        if known and now - datetime.fromisoformat(known["alive"]) < SILENT:
            return 0
        tries = known.get("tries", 0) + 1
        if tries > TRIES:
            _end(operation, OperationState.STOPPED, {"error": f"Its process died {TRIES} times."})
            return 0
        operation.result = {"alive": now.isoformat(), "tries": tries}
        operation.save(update_fields=["result"])
    _spawn(operation.pk)
    return 1


def _spawn(operation_id: uuid.UUID) -> None:
    """Start the process of a simulation, and forget those that have ended."""
    _children[:] = [child for child in _children if child.poll() is None]
    arguments = [sys.executable, "-m", "django", "taskqueue", "simulate", "--operation", str(operation_id)]
    child = subprocess.Popen(  # noqa: S603 - no shell, and only an id
        arguments, env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    _children.append(child)


def carry_out(operation_id: uuid.UUID) -> Operation:
    """Run a requested simulation and store its result, or its error. Raises ``OperationEnded`` if staff stopped it."""
    from queue_app.what_if.simulate import simulate  # noqa: PLC0415 - the process of one simulation needs it

    operation = Operation.objects.using(alias()).get(pk=operation_id, kind=OperationKind.SIMULATE)
    since, until = (datetime.fromisoformat(operation.filter[name]) for name in ("since", "until"))
    reported_at = [clock() - SIGN]

    def report(what: str, share: float) -> None:
        now = clock()
        if now - reported_at[0] >= SIGN:
            reported_at[0] = now
            begins, lasts = PARTS[what]
            done = min(TOTAL - 1, begins + int(lasts * share))
            _update(operation, changed=done, result={**(operation.result or {}), "alive": now.isoformat()})

    try:
        answer = simulate(operation.arguments, since=since, until=until, report=report)
    except OperationEnded:
        raise
    except TaskQueueError as error:
        _end(operation, OperationState.STOPPED, {"error": str(error)})
    except Exception as error:  # another try would end the same way
        _end(operation, OperationState.STOPPED, {"error": f"{type(error).__name__}: {error}"[:500]})
        raise
    else:
        _end(operation, OperationState.DONE, answer | {"notes": [as_json(note) for note in answer["notes"]]})
    return operation


def _end(operation: Operation, state: OperationState, result: Mapping[str, Any]) -> None:
    _update(operation, state=state, result=dict(result), changed=TOTAL, finished_at=clock())


def _update(operation: Operation, **values: Any) -> None:
    running = Operation.objects.using(alias()).filter(pk=operation.pk, state=OperationState.RUNNING)
    if not running.update(**values):
        raise OperationEnded("The operation was stopped.")
    for name, value in values.items():
        setattr(operation, name, value)


def applicable(operation: Operation) -> dict[str, Mapping[str, Any]]:
    """Return what ``services.control.queues.apply`` can apply of a simulation that is done: {limit or band: fields}."""
    if operation.state != OperationState.DONE:
        return {}
    bands = {f"band:{name}": values for name, values in operation.arguments.get("bands", {}).items()}
    return {**operation.arguments.get("limits", {}), **bands}


def refuse_unless_done(operation: Operation) -> None:
    """Raise ``InvalidTaskData`` if a simulation has nothing to apply."""
    if not applicable(operation):
        raise InvalidTaskData("operation", "This simulation is not done, or changes neither limits nor bands.")


def request_trial() -> int:
    """Request the simulation of one limit that holds tasks back; return how many were requested."""
    if not has_server() or not (some := held()):
        return 0
    known = operations()
    each = next((one for one in some if mark(one) not in known), None)
    if each is None:
        return 0
    now = clock()
    window = WINDOW * min(1.0, MAX_TASKS / max(1, rows.ended_since(now - WINDOW)))
    changes = {"limits": {each.limit: {"max_concurrent": each.wanted}}}
    start_simulation(changes, now - window, now, by="", reason=REASON, trial=mark(each))
    return 1
