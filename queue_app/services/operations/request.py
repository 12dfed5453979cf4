"""Request an operation, an action on many tasks or dead letters; watch it, and cancel it.

An operation is a row: it outlives the process that requested it, and anyone with permission can watch
and cancel it. ``advance`` carries it out in steps. Nothing here touches the index.
"""

import uuid
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django.db.models import QuerySet

from queue_app import signals
from queue_app.core.priorities import Band
from queue_app.core.sentence import sentence
from queue_app.core.states import PENDING_NAME, TERMINAL, Status
from queue_app.exceptions import InvalidTaskData, OperationEnded, OperationNotFound
from queue_app.models import Operation
from queue_app.models.fields import USER_LENGTH
from queue_app.models.operation import OperationKind, OperationState, OperationTarget
from queue_app.models.querysets import TaskQuerySet
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.lifecycle.actions import RETRIABLE
from queue_app.services.notify.index import send_on_commit
from queue_app.services.read import dead_letters
from queue_app.services.read.dead_letters import DeadLetterFilter, Preview
from queue_app.services.read.task_filter import TaskFilter, matching
from queue_app.sql import dead_letters as rows
from queue_app.sql.database import atomic, clock

MAX_IDS: Final = 10_000
SAMPLE: Final = 10
STOP_AFTER_FAILURES: Final = 5
#: Tasks per second; the minimum is about one in a quarter of an hour.
MIN_RATE: Final = 0.001
MAX_RATE: Final = 10_000
#: Which of the matching tasks, or dead letters, come first: by the time when they were stored, or died.
ORDERS: Final = ("oldest", "newest")


class Option(NamedTuple):
    """A number that says how an operation works; the API, the commands and the admin offer what stands here."""

    kind: type[int] | type[float]
    lowest: float
    highest: int
    about: str


OPTIONS: Final[dict[str, Option]] = {
    "rate": Option(float, MIN_RATE, MAX_RATE, "Tasks per second; default: no limit."),
    "limit": Option(int, 1, 2**31 - 1, "Only the first N that match; default: all."),
    "stop_after_failures": Option(int, 0, 1000, "Begin with this many, and stop if all of them fail again; 0: never."),
}
#: The actions on tasks, and the status that a task must have.
STATES: Final[dict[OperationKind, tuple[str, ...]]] = {
    OperationKind.CANCEL: (PENDING_NAME,),
    OperationKind.REPRIORITISE: (Status.BLOCKED, Status.SCHEDULED, Status.QUEUED),
    OperationKind.REPLAY: (Status.DEAD_LETTER,),
    OperationKind.RETRY: tuple(sorted(RETRIABLE)),
    OperationKind.RUN_NOW: (Status.SCHEDULED,),
    OperationKind.DELETE: tuple(sorted(TERMINAL)),
    OperationKind.REENCRYPT: tuple(sorted(Status)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What the operation does; ``band`` is where ``reprioritise`` moves the tasks."""

    kind: OperationKind
    band: Band | None = None

    def __post_init__(self) -> None:
        if (self.band is None) == (self.kind is OperationKind.REPRIORITISE):
            raise InvalidTaskData(
                "priority", "priority goes with reprioritise, and only with it.", code="conflicting_fields"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationOptions:
    """How many tasks an operation handles, in which order, and how fast; see ``OPTIONS``."""

    rate: float | None = None
    limit: int | None = None
    order: str = ORDERS[0]
    stop_after_failures: int = 0  # size of the first group of a replay, see start_operation; 0: never stop


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(OperationOptions):
    """Options of a replay that stops when all of its first tasks fail again."""

    stop_after_failures: int = STOP_AFTER_FAILURES


def preview_operation(
    action: Action, wanted: TaskFilter | DeadLetterFilter, options: OperationOptions | None = None
) -> Preview:
    """Return how many tasks of a filter an action applies to now, and the first of them. Raises ``InvalidTaskData``."""
    options = options or OperationOptions()
    check_options(options)
    newest = options.order != ORDERS[0]
    if isinstance(wanted, DeadLetterFilter):
        return dead_letters.preview(wanted, options.limit, newest=newest)
    tasks = applicable(action, wanted)
    count = (tasks if options.limit is None else tasks[: options.limit]).count()
    sample = tasks.order_by("-id" if newest else "id").values_list("id", flat=True)[: min(count, SAMPLE)]
    return Preview(count, list(sample))


def start_operation(
    action: Action,
    wanted: TaskFilter | DeadLetterFilter,
    options: OperationOptions | None = None,
    *,
    by: str,
    reason: str = "",
) -> Operation:
    """Request an action on everything that matches a filter now; return the operation.

    Tasks that are stored, or die, after this call are left alone. With ``stop_after_failures`` a replay
    begins with that many tasks: the others follow once one of these has ended without failing, and the
    operation stops when all of these fail again. The caller checks permissions, and restricts the filter
    to tasks that the user may change. Raises ``InvalidTaskData``.
    """
    options = options or OperationOptions()
    check_reason(reason)
    if options.stop_after_failures and action.kind is not OperationKind.REPLAY:
        raise InvalidTaskData("stop_after_failures", "stop_after_failures goes only with replay.")
    of_letters = isinstance(wanted, DeadLetterFilter)
    if of_letters and action.kind is not OperationKind.REPLAY:
        raise InvalidTaskData("action", "Dead letters can only be replayed.")
    if wanted.ids is not None and len(wanted.ids) > MAX_IDS:
        raise InvalidTaskData("ids", f"One operation takes at most {MAX_IDS} ids; use a filter.", limit=MAX_IDS)
    return store_operation(
        options,
        kind=action.kind,
        target=OperationTarget.DEAD_LETTERS if of_letters else OperationTarget.TASKS,
        filter=wanted.as_json(),
        arguments={} if action.band is None else {"priority": action.band.label},
        by=by[:USER_LENGTH],
        reason=reason,
        total=preview_operation(action, wanted, options).count,
    )


def store_operation(options: OperationOptions, **fields: Any) -> Operation:
    """Store a requested operation, for the scheduler to carry out."""
    now, values = clock(), asdict(options)
    order, rate = values.pop("order"), options.rate
    arguments = fields.pop("arguments", {}) | ({} if order == ORDERS[0] else {"order": order})
    return Operation.objects.create(
        **values,
        **fields,
        arguments=arguments,
        created_at=now,
        paced_at=None if rate is None else now - timedelta(seconds=1 / rate),  # allows the first task at once
    )


def start_replay(
    wanted: DeadLetterFilter, options: ReplayOptions | None = None, *, by: str, reason: str = ""
) -> Operation:
    """Request a replay of the open dead letters that match a filter now; the scheduler carries it out.

    ``dead_letters.preview`` is its dry run. Raises ``InvalidTaskData``. See ``start_operation``.
    """
    return start_operation(Action(kind=OperationKind.REPLAY), wanted, options or ReplayOptions(), by=by, reason=reason)


def get_operation(operation_id: uuid.UUID) -> Operation:
    """Return an operation with its current number of failed replays. Raises ``OperationNotFound``."""
    operation = _find(Operation.objects.all(), operation_id)
    if operation.kind == OperationKind.REPLAY:
        operation.failed_again, _ended_otherwise = rows.outcomes(operation.id)
    return operation


def cancel_operation(operation_id: uuid.UUID, *, by: str) -> Operation:
    """Cancel an operation; tasks that it has changed stay changed.

    Waits for a step under way, which is short. Raises ``OperationNotFound``, and ``OperationEnded``
    when it has already ended.
    """
    with atomic():
        operation = _find(Operation.objects.select_for_update(), operation_id)
        if operation.state != OperationState.RUNNING:
            raise OperationEnded(sentence("The operation is %(state)s already.", state=sentence(operation.state)))
        operation.state, operation.ended_by = OperationState.CANCELLED, by[:USER_LENGTH]
        operation.finished_at = clock()
        operation.save(update_fields=["state", "finished_at", "ended_by"])
    send_on_commit(signals.operation_ended, operation=operation)
    return operation


def _find(operations: QuerySet[Operation], operation_id: uuid.UUID) -> Operation:
    operation = operations.filter(pk=operation_id).first()
    if operation is None:
        raise OperationNotFound(f"There is no operation {operation_id}.")
    return operation


def applicable(action: Action, wanted: TaskFilter) -> TaskQuerySet:
    """Return the tasks of a filter to which an action applies now."""
    tasks = matching(wanted).in_status(*STATES[action.kind])
    return tasks if action.band is None else tasks.exclude(priority=action.band)


def check_options(options: OperationOptions) -> None:
    """Raise ``InvalidTaskData`` for numbers out of range, and for an unknown order."""
    for name, (kind, lowest, highest, _) in OPTIONS.items():
        value = getattr(options, name)
        if value is not None and not (type(value) in {kind, int} and lowest <= value <= highest):  # also refuses NaN
            noun = "a whole number" if kind is int else "a number"
            text = f"{name} must be {noun} from {lowest:g} to {highest}."
            raise InvalidTaskData(name, text, code="out_of_range", limit=highest)
    if options.order not in ORDERS:
        raise InvalidTaskData("order", f"order must be {' or '.join(ORDERS)}.", code="unknown_choice")
