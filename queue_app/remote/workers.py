"""Act for remote workers, which have no access to the servers, within the scope of their token.

Each use case first checks that the worker belongs to the token. Then it calls the same services as
local workers, under the same fence. So a worker, and anyone who has its token, can only change
tasks that were granted to this worker.

Crash points: if the answer of a grant is lost, the worker's next poll does not list the task, and the server queues
the task again. If the worker does not poll again, the reaper queues it.
"""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from queue_app import registry
from queue_app.core.ids import uuid7
from queue_app.core.records import (
    UNKNOWN_USAGE,
    AttemptKey,
    ClaimedTask,
    Outcome,
    ProgressReport,
    TaskFailure,
    Usage,
    WorkerReport,
)
from queue_app.core.states import Status
from queue_app.core.steps import Fields, Step
from queue_app.encryption import call_of, failure_texts, hides, opened_if, opened_task
from queue_app.encryption.displayed import displayed_payload
from queue_app.exceptions import (
    AttemptLost,
    IndexNotReady,
    IndexUnavailable,
    OutOfScope,
    StaleLease,
    TaskQueueError,
    TokenRefused,
    UnknownProfile,
    WorkerLost,
    WorkerNameTaken,
    WorkerNotFound as NotFound,
)
from queue_app.index import Profile, WorkerMessage
from queue_app.models import Task, TaskAttempt, TaskPayload, TaskResult, Worker, WorkerToken
from queue_app.models.worker import LIVING, WorkerStatus
from queue_app.remote import tokens
from queue_app.services.lifecycle.claim import among_executing, claim, compare, give_back, give_back_unacknowledged
from queue_app.services.lifecycle.finish import finish, masked, record_progress
from queue_app.services.lifecycle.results import with_results, with_results_for_remote
from queue_app.services.lifecycle.steps import await_signal, record_step, stored_steps
from queue_app.services.repair.detour import leave_redis
from queue_app.services.repair.rebuild import rebuild_until_open
from queue_app.services.worker import registration as service
from queue_app.services.worker.registration import WorkerIdentity
from queue_app.sql import finish as rows, workers as worker_rows
from queue_app.sql.connections import idle

#: Seconds between two checks of the token while a poll waits: a revoked token ends the wait.
TOKEN_CHECK_SECONDS: Final = 2.0
#: Maximum seconds for which a poll of a draining worker waits.
DRAIN_SECONDS: Final = 1.0
MAX_UNSERVED: Final = 100  # names of task types in one reply
#: Seconds after which a worker polls again while a rebuild loads tasks.
LOAD_SECONDS: Final = 0.1
#: Makes the block in which a request waits.
type Waiting = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a worker says about itself; its identity comes from the token."""

    name: str  # empty: the server makes one
    queues: tuple[str, ...]
    capabilities: tuple[str, ...]
    task_types: Sequence[str] | None  # None: all that this process knows
    concurrency: int
    heartbeat_seconds: float = 30.0
    version: str = ""


class Polled(NamedTuple):
    """The reply to a poll."""

    tasks: list[ClaimedTask]
    began: float  # when the poll arrived (monotonic, s)
    drain: bool  # whether to finish the running tasks and exit
    notified: bool  # whether one of the worker's rows changed, so that a heartbeat brings news
    next_start: float | None  # seconds until a limit allows another start, or a rebuild has loaded more tasks
    loading: bool  # whether a rebuild still loads tasks


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The reply to a heartbeat."""

    cancel: list[uuid.UUID]  # tasks to stop
    lost: list[uuid.UUID]  # tasks that no longer belong to the worker
    drain: bool  # whether to finish the running tasks and exit
    unserved: list[str]  # task types that wait in the worker's queues and are not among its own
    again: bool  # whether to send another heartbeat at once: PostgreSQL has restarted since the last one
    stacks: Sequence[uuid.UUID]  # tasks whose stacks staff want to see


def register(token: WorkerToken, wanted: Registration) -> Worker:
    """Register a worker; raise ``OutOfScope`` when it asks for more than its token allows."""
    queues = wanted.queues or tuple(token.queues)
    beyond = sorted(set(queues) - set(token.queues)) if token.queues else []
    if beyond:
        raise OutOfScope(f"The token does not allow the queues {', '.join(beyond)}.", code="queue_not_allowed")
    _check_capabilities(token, wanted.capabilities)
    host = f"token {token.name}"  # the same for the old and the new secret of a rotated token
    worker_id = uuid7()
    name = wanted.name or f"{token.name} {worker_id.hex[-8:]}"
    if Worker.objects.filter(name=name, status__in=LIVING).exclude(host=host).exists():
        raise WorkerNameTaken(f"Another living worker is called {name!r}; give this one its own name.")
    identity = WorkerIdentity(
        id=worker_id, name=name, host=host, pid=0, process_identity="remote", version=wanted.version
    )
    types = wanted.task_types
    if types is None:
        registry.discover()
        types = registry.known_types()
    profile = Profile.of(queues, _readable(token, types), wanted.capabilities, wanted.concurrency)
    service.register(
        identity, profile, concurrency=wanted.concurrency, heartbeat_seconds=wanted.heartbeat_seconds, token_id=token.id
    )
    return Worker.objects.get(id=worker_id)


def poll(  # noqa: PLR0913 - what a worker asks for, by keyword
    token: WorkerToken,
    worker_id: uuid.UUID,
    *,
    want: int,
    wait: float = 0.0,
    holding: Sequence[uuid.UUID] | None = None,
    capabilities: Sequence[str] | None = None,
    waiting: Waiting = idle,
) -> Polled:
    """Return up to ``want`` tasks that now belong to the worker; wait up to ``wait`` seconds for one, or for news.

    A worker that drains gets none, and waits ``DRAIN_SECONDS`` at most: it may not know yet.

    It waits within ``waiting``, which closes the connection to the database, and may refuse to wait by an error.

    ``holding`` names the tasks that the worker knows it has; other tasks that it was granted are
    given back first. ``capabilities`` are what the worker offers from now on; ``None`` changes nothing. Raises
    ``TokenRefused``, ``WorkerNotFound``, ``WorkerLost`` and ``OutOfScope``.
    """
    began = time.monotonic()
    deadline = began + wait
    worker = _own(token, worker_id)
    if capabilities is not None:
        _check_capabilities(token, capabilities)
    profile = _change(token, worker, capabilities=capabilities)
    if holding is not None:
        give_back_unacknowledged(worker_id, list(holding))
    notified = False
    while True:
        drains = worker.drain_requested_at is not None or worker.status == WorkerStatus.DRAINING
        room = 0 if drains else _room(token)
        tasks, next_start, loading = _claim(profile, worker_id, min(want, room), reserve=want <= room)
        left = deadline - time.monotonic()
        if tasks or left <= 0 or notified:
            return Polled(tasks, began, drains, notified, next_start, loading)
        if drains:
            deadline, left = 0.0, min(left, DRAIN_SECONDS)
        seconds = min(left, TOKEN_CHECK_SECONDS)
        if next_start is not None:
            seconds = min(seconds, max(next_start, 0.001))  # Redis would take 0 for no limit
        with waiting():
            notified = service.wait_for_wake(worker_id, seconds) is WorkerMessage.NOTIFICATION
        if not tokens.is_in_force(token.id):
            raise TokenRefused("The worker token is not valid.")
        worker = _own(token, worker_id)


def wait_for_call(
    token: WorkerToken, worker_id: uuid.UUID, seconds: float, waiting: Waiting = idle
) -> WorkerMessage | None:
    """Wait up to ``seconds`` until the index wakes or notifies the worker; return which, or ``None``."""
    _own(token, worker_id)
    with waiting():
        return service.wait_for_wake(worker_id, seconds)


def held(token: WorkerToken, worker_id: uuid.UUID, attempts: Sequence[AttemptKey]) -> dict[AttemptKey, ClaimedTask]:
    """Return the attempts that still hold their task for this worker; a stamp of 0 stands for any."""
    _own(token, worker_id)
    found = rows.held_by(worker_id, attempts)
    if len(found) < len(attempts) and compare(worker_id, attempts).again:
        found = rows.held_by(worker_id, attempts)
    by_key = {task.key: task for task in found} | {(task.id, task.attempt, 0): task for task in found}
    return {key: by_key[key] for key in attempts if key in by_key}


def attempts_of(worker_id: uuid.UUID, task_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Return the attempt under which the worker holds each task, or else held it last."""
    ended = TaskAttempt.objects.filter(task_id__in=task_ids, worker_id=worker_id).order_by("attempt")
    held = Task.objects.filter(pk__in=task_ids, worker_id=worker_id)
    return dict(ended.values_list("task_id", "attempt")) | dict(held.values_list("id", "attempt"))


def steps(  # noqa: PLR0913, PLR0917 - what a worker sends
    token: WorkerToken,
    worker_id: uuid.UUID,
    attempt: AttemptKey,
    action: str,
    step: Step | None = None,
    schema: Fields | None = None,
) -> list[Step]:
    """Read the steps of a task that the worker holds, store one, or wait for a signal in one; raise ``StaleLease``."""
    task = held(token, worker_id, [attempt]).get(attempt)
    try:
        if task is not None and step is None:
            return stored_steps(task)
        if task is not None and step is not None and action == "wait":
            return [await_signal(task, step, schema)]
        if task is not None and step is not None:
            record_step(task, step)
            return [step]
    except AttemptLost:
        pass
    raise stale_lease(attempt[0], worker_id)


def report(outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
    """Record the outcomes of attempts that ``held`` returned; return the tasks that they still held."""
    failed = [outcome.task.id for outcome in outcomes if outcome.failure is not None]
    calls = {found.task_id: found for found in TaskPayload.objects.filter(pk__in=failed)} if failed else {}
    return finish([_with_call(outcome, calls.get(outcome.task.id)) for outcome in outcomes])


def _with_call(outcome: Outcome, call: TaskPayload | None) -> Outcome:
    """Add the arguments of the call to a failure, so that secrets among them can be masked in its message."""
    if call is None:
        return outcome
    task = opened_task(replace(outcome.task, args=json.dumps(call.args), parameters=json.dumps(call.parameters)))
    with suppress(TaskQueueError):  # results that flowed into it may be secrets too
        task = with_results(task)
    return replace(outcome, task=task)


def is_repeated(
    worker_id: uuid.UUID, attempt: AttemptKey, result: str | None = None, failure: TaskFailure | None = None
) -> bool:
    """Return whether the worker reported this very outcome before: the answer was lost, and the report repeated."""
    task_id, number, _ = attempt
    if failure is None:
        done = Task.objects.filter(pk=task_id, worker_id=worker_id, attempt=number, status=Status.COMPLETED).exists()
        stored = TaskResult.objects.filter(pk=task_id).values_list("value", "task__task_type").first() if done else None
        value = None if stored is None else opened_if(*stored)
        return done and value == (None if result is None else json.loads(result))
    attempts = TaskAttempt.objects.filter(task_id=task_id, attempt=number, worker_id=worker_id)
    found = attempts.select_related("task").first()
    if found is None:
        return False
    call = TaskPayload.objects.filter(pk=task_id).first()
    if call is not None:
        call.args, call.parameters = call_of(found.task.task_type, call.args, call.parameters)
    secrets, _, _ = displayed_payload(found.task.task_type, call)
    told = masked(failure, secrets)
    texts = failure_texts(found.task.task_type, found.message, found.traceback)
    return (found.exception_class, *texts) == (told.exception_class, told.message, told.traceback)


def stale_lease(task_id: uuid.UUID, worker_id: uuid.UUID) -> StaleLease:
    """Return the error for an attempt that holds no task; with the status if the task was once this worker's."""
    status = Task.objects.filter(pk=task_id, worker_id=worker_id).values_list("status", flat=True).first()
    return StaleLease(f"The attempt does not hold task {task_id}; its outcome was dropped.", status=status)


def heartbeat(  # noqa: PLR0913 - what a worker reports, by keyword
    token: WorkerToken,
    worker_id: uuid.UUID,
    reports: Sequence[ProgressReport],
    *,
    draining: bool,
    tasks_done: int,
    free_slots: int = 0,
    usage: Usage = UNKNOWN_USAGE,
    current_load: int | None = None,
) -> HeartbeatReply:
    """Record that the worker lives, and what its attempts report. Raises ``WorkerLost`` when it was declared dead.

    A worker that tells its ``current_load`` polls for all of its other slots.
    """
    worker = _own(token, worker_id)
    if current_load is not None and not draining:
        free_slots = free_slots or max(0, worker.concurrency - current_load)
    report = WorkerReport(draining, tasks_done, free_slots, usage)
    by_key = {(report.task_id, report.attempt, report.leased_at): report for report in reports}
    answer = service.heartbeat(worker_id, report, list(by_key))
    if not answer.alive:
        raise WorkerLost("The worker was declared dead; register again.")
    record_progress([report for key, report in by_key.items() if key not in answer.lost])
    lost = [key[0] for key in by_key if key in answer.lost]
    cancel = sorted(worker_rows.cancel_requests(worker_id, [report.task_id for report in reports] or None))
    return HeartbeatReply(cancel, lost, answer.should_drain, unserved(worker), answer.is_first, answer.stacks)


def change_task_types(token: WorkerToken, worker_id: uuid.UUID, task_types: Sequence[str]) -> None:
    """Let a worker serve exactly these task types from now on."""
    _change(token, _own(token, worker_id), task_types=task_types)


def deregister(token: WorkerToken, worker_id: uuid.UUID, *, tasks_done: int) -> None:
    """Record that the worker exits, and return the tasks that it still holds; a repetition changes nothing."""
    worker = _find(token, worker_id)
    if worker.status in LIVING:
        give_back_unacknowledged(worker_id, [])
        service.deregister(worker_id, _profile(worker), tasks_done=tasks_done)


def _find(token: WorkerToken, worker_id: uuid.UUID) -> Worker:
    worker: Worker | None = Worker.objects.filter(id=worker_id, token_id=token.id).first()
    if worker is None:
        raise NotFound(f"This token has no worker {worker_id}.")
    return worker


def _own(token: WorkerToken, worker_id: uuid.UUID) -> Worker:
    worker = _find(token, worker_id)
    if worker.status not in LIVING:
        raise WorkerLost(f"The worker is {worker.status}; register again.")
    return worker


def _check_capabilities(token: WorkerToken, capabilities: Sequence[str]) -> None:
    beyond = sorted(set(capabilities) - set(token.capabilities))
    if beyond:
        text = f"The token does not allow the capabilities {', '.join(beyond)}."
        raise OutOfScope(text, code="capability_not_allowed")


def _readable(token: WorkerToken, task_types: Sequence[str]) -> list[str]:
    """Return the task types whose tasks the token's workers may read."""
    return [name for name in task_types if token.reads_encrypted or not hides(name)]


def _change(token: WorkerToken, worker: Worker, **changes: Sequence[str] | None) -> Profile:
    """Register a worker under another profile if it can run other tasks now; return the profile."""
    before = _profile(worker)
    for name, value in changes.items():
        if value is not None:
            setattr(worker, name, list(value))
    worker.task_types = _readable(token, worker.task_types)  # the setting may encrypt more types than before
    after = _profile(worker)
    if after != before:
        service.change_profile(worker.id, before, after)
    return after


def _profile(worker: Worker) -> Profile:
    return Profile.of(worker.queues, worker.task_types, worker.capabilities, worker.concurrency)


def unserved(worker: Worker) -> list[str]:
    """Return unserved task types of the worker's queues; none while the index does not answer."""
    try:
        return sorted(service.unserved_types(_profile(worker)))[:MAX_UNSERVED]
    except IndexUnavailable:
        return []


def _room(token: WorkerToken) -> int:
    """Return how many more tasks the token's workers may hold: a stolen token must not empty the queue unseen."""
    in_flight = among_executing("in flight", lambda among: rows.in_flight(token.id, among))
    return max(0, token.max_in_flight - in_flight)


def _claim(
    profile: Profile, worker_id: uuid.UUID, want: int, *, reserve: bool
) -> tuple[list[ClaimedTask], float | None, bool]:
    """Claim tasks; return also after how many seconds a claim may find more, though nothing wakes the worker then.

    The third value is whether that is because of a rebuild.
    """
    if want <= 0:
        return [], None, False
    waits: list[tuple[float | None, bool]] = [(None, False)]

    def once() -> list[ClaimedTask]:
        return claim(profile, worker_id, want, reserve=reserve, on_wait=lambda *found: waits.append(found))

    try:
        try:
            tasks = once()
        except UnknownProfile:
            service.register_in_index(profile, worker_id)
            tasks = once()
        except IndexUnavailable as error:
            if not leave_redis(str(worker_id), error):
                raise
            tasks = once()
    except IndexNotReady:
        rebuild_until_open()
        return [], LOAD_SECONDS, True
    next_start, is_loading = waits[-1]
    tasks = with_results_for_remote(tasks, give_back)
    return tasks, LOAD_SECONDS if is_loading else next_start, is_loading
