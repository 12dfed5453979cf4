"""Record what attempts report while they run and how they ended, many at once, and free their slots.

Crash points: before the commit nothing is recorded, and the reaper runs the task again. Between
the commit and the release, the finished task keeps its slot until the reconciler releases it. Because of the fence, a
repeated report changes nothing. A progress report that was not stored is lost.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from django.db import DatabaseError

from queue_app import conf, signals
from queue_app.core.events import Ended
from queue_app.core.failures import fingerprint, retry_delay
from queue_app.core.limits import Gate, Scope, gate_of
from queue_app.core.records import (
    MAX_CLASS,
    MAX_MESSAGE,
    MAX_TRACEBACK,
    AttemptKey,
    ClaimedTask,
    Lease,
    Outcome,
    ProgressReport,
    TaskFailure,
    TaskRef,
)
from queue_app.core.redaction import Secrets, redact
from queue_app.core.states import Status
from queue_app.encryption import applies_to, is_on, sealed_failure, sealed_if
from queue_app.encryption.displayed import secrets_of_call
from queue_app.exceptions import IndexNotReady, IndexUnavailable
from queue_app.hooks import after_end
from queue_app.hooks.callbacks import MARK
from queue_app.index import Index, Profile, get_index
from queue_app.services import advance
from queue_app.services.enqueue.admission import enqueue_callbacks
from queue_app.services.lifecycle.claim import abandon, as_claimed, claim, keep, return_refused
from queue_app.services.lifecycle.dependencies import settle_later
from queue_app.services.notify import events
from queue_app.services.notify.index import breaker, notify_index
from queue_app.sql import claim as claim_rows, finish as finish_rows, snapshot
from queue_app.sql.database import atomic, fetch_all, lock_rows, once_more_after_deadlock
from queue_app.sql.finish import Verdict

#: The states of a task that is queued again by a signal, or by its time.
WAITING: Final = frozenset({Status.BLOCKED, Status.SCHEDULED})


@dataclass(slots=True)
class _Changes:
    """The new states of the tasks that the attempts still held, and the consequences."""

    held: dict[AttemptKey, Status] = field(default_factory=dict)
    workflows: Collection[uuid.UUID] = ()
    again: list[TaskRef] = field(default_factory=list)  # queued again, because their attempts raised ``Throttle``
    gates: list[Gate] = field(default_factory=list)  # which these attempts closed
    retry_in: dict[AttemptKey, float | None] = field(default_factory=dict)


def record_progress(reports: Sequence[ProgressReport]) -> None:
    """Store progress, log lines, later deadlines and stacks; ignore attempts that lost their task."""
    extended = [report for report in reports if report.extend]
    if extended:  # first: the reaper acts on deadlines
        finish_rows.extend(extended)
    moved = [report for report in reports if report.progress is not None]
    if moved:
        finish_rows.store_progress(moved)
    logged = [report for report in reports if report.lines is not None]
    if logged:
        finish_rows.store_lines(_sealed_lines(logged) if is_on() else logged)
    looked = [report for report in reports if report.stack is not None]
    if looked:
        finish_rows.store_stacks(looked)


def _sealed_lines(reports: Sequence[ProgressReport]) -> list[ProgressReport]:
    types = snapshot.types_of([report.task_id for report in reports])
    return [
        replace(report, lines=sealed_if(report.lines, types[report.task_id]))
        for report in reports
        if report.task_id in types
    ]


def finish(outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
    """Record the outcomes and commit; return the ids of the tasks that the attempts still held.

    The outcome of an attempt that no longer holds its task is dropped, unless PostgreSQL has only forgotten its grant.
    Only the first outcome of an attempt counts.
    """
    done = _finish_held(outcomes)
    refused = [outcome for outcome in outcomes if outcome.task.id not in done]
    kept = {task.key for task in keep([outcome.task for outcome in refused])} if refused else set()
    if kept:
        done |= _finish_held([outcome for outcome in refused if outcome.task.key in kept])
    return done


def _finish_held(outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
    first = {outcome.task.key: outcome for outcome in reversed(outcomes)}
    in_order = sorted(first.values(), key=lambda outcome: outcome.task.id.int)  # statements mostly lock in this order
    done: set[uuid.UUID] = set()
    completed = [one for one in in_order if one.is_completion and not _is_followed(one)]
    if any(one.task.workflow_id is not None for one in completed):
        done = _finish(first, once_more_after_deadlock(lambda: _complete(completed)))
        in_order = [one for one in in_order if one.task.id not in done]
    elif in_order and len(completed) == len(in_order):  # mostly: one statement, which commits
        return _finish(first, _Changes(once_more_after_deadlock(partial(finish_rows.complete, in_order))))
    if in_order:
        done |= _finish(first, once_more_after_deadlock(lambda: _store(in_order)))
    return done


def _finish(first: Mapping[AttemptKey, Outcome], ended: _Changes) -> set[uuid.UUID]:
    """Notify of attempts that ended; return the ids of their tasks."""
    attempts = [Ended(first[key], status, ended.retry_in.get(key)) for key, status in ended.held.items()]
    tasks = [attempt.outcome.task for attempt in attempts]
    if ended.gates:  # close them first, or the next tasks would start at once
        notify_index(_copy_limits, "set_limits", ended.gates)
    notify_index(Index.release, "release", [task.lease for task in tasks])
    if ended.again:
        notify_index(Index.push, "push", ended.again)
    _push_woken([key[0] for key, status in ended.held.items() if status in WAITING])
    if attempts:
        events.finished(attempts)
    if ended.workflows:
        settle_later(ended.workflows)
    call_after_end(attempts)
    return {task.id for task in tasks}


def call_after_end(attempts: Sequence[Ended]) -> None:
    """Call the hooks and receivers of attempts that ended."""
    after_end(attempts)
    for outcome, status, retry_in in attempts:
        if outcome.failure is not None:
            signals.attempt_failed.send(None, outcome=outcome, status=status, retry_in=retry_in)


def _complete(completed: Sequence[Outcome]) -> _Changes:
    """Complete tasks of workflows, and others beside them, in one statement that commits by itself."""
    done, workflows = advance.complete(completed)
    return _Changes(dict.fromkeys(done, Status.COMPLETED), workflows)


def _store(outcomes: Sequence[Outcome]) -> _Changes:
    """Record the outcomes in one transaction."""
    completed = [one for one in outcomes if one.is_completion]
    in_workflow = {outcome.task.id for outcome in outcomes if outcome.task.workflow_id is not None}
    followed = [one for one in outcomes if _is_followed(one)]
    snoozed = [outcome for outcome in outcomes if outcome.snooze is not None]
    throttled = [outcome for outcome in outcomes if outcome.throttle is not None]
    waiting = [outcome for outcome in outcomes if outcome.waits]
    verdicts = [_sealed(_judge(_without_secrets(outcome))) for outcome in outcomes if outcome.failure is not None]
    ended = _Changes()
    held = ended.held
    with atomic():
        if in_workflow:
            ended.workflows = advance.share(outcome.task.workflow_id for outcome in outcomes)
        if len(outcomes) > 1 or waiting:  # a signal that came before the lock is seen after it
            fetch_all(*lock_rows([outcome.task.id for outcome in outcomes]))
        if completed:
            held |= finish_rows.complete(completed)
        if snoozed:
            held |= finish_rows.snooze(snoozed)
        if waiting:
            held |= finish_rows.wait(waiting)
        if throttled:
            _throttle(throttled, ended)
        if verdicts:
            held |= finish_rows.fail(verdicts, conf.get().retention.dead_letter_seconds)
        if ended.workflows:
            advance.advance({key[0]: status for key, status in held.items() if key[0] in in_workflow})
        if followed:
            states = [(one.task, held.get(one.task.key, Status.EXECUTING)) for one in followed]
            enqueue_callbacks(states, {one.task.id: one.task.metadata for one in followed})
    ended.retry_in = {verdict.outcome.task.key: verdict.retry_in for verdict in verdicts}
    return ended


def _is_followed(outcome: Outcome) -> bool:
    """Return whether a task has a callback, which is stored with its end."""
    return MARK in (outcome.task.metadata or "")


def _push_woken(waiting: list[uuid.UUID]) -> None:
    """Push tasks that a signal or their time has queued since: while they had their lease, no push placed them."""
    with suppress(DatabaseError):  # the reconciler does it
        if waiting and (woken := snapshot.refs(waiting)):
            notify_index(Index.push, "push", woken)


def _throttle(outcomes: Sequence[Outcome], ended: _Changes) -> None:
    """Queue the tasks again, and close the gates that the attempts named; ignore attempts that lost their task."""
    by_id = {outcome.task.id: outcome for outcome in outcomes}
    returned = claim_rows.give_back([outcome.task for outcome in by_id.values()])
    longest: dict[Gate, float] = {}
    for row in returned:
        task, asked = by_id[row.task.id].task, by_id[row.task.id].throttle
        ended.held[task.key] = row.status
        if asked is not None:
            names = {Scope.QUEUE: task.queue, Scope.TYPE: task.task_type, Scope.KEY: task.concurrency_key}
            gate = Gate(asked.scope, names[Scope(asked.scope)])
            longest[gate] = max(longest.get(gate, 0.0), asked.seconds)
    ended.again = [row.task for row in returned if row.status is Status.QUEUED]
    ended.gates = sorted(longest)  # every process locks in this order, so none deadlock
    for gate in ended.gates:
        finish_rows.close(*gate, longest[gate])


def _copy_limits(index: Index, gates: Sequence[Gate]) -> None:
    for scope, name in gates:
        index.set_limits(gate_of(scope, name), snapshot.limits_of(scope, name))


def _without_secrets(outcome: Outcome) -> Outcome:
    """Return a failure that repeats no secret that the task was called with: stored texts can be searched.

    Texts are cut after that: a part of a secret would not be recognised. A short traceback is masked on display.
    """
    failure = outcome.failure
    if failure is None:
        return outcome
    return replace(outcome, failure=masked(failure, secrets_of_call(outcome.task)))


def masked(failure: TaskFailure, secrets: Secrets) -> TaskFailure:
    """Return a failure as it is stored."""
    traceback = failure.traceback
    return replace(
        failure,
        exception_class=redact(failure.exception_class, secrets)[:MAX_CLASS],
        message=redact(failure.message, secrets)[:MAX_MESSAGE],
        traceback=traceback if len(traceback) <= MAX_TRACEBACK else redact(traceback, secrets)[-MAX_TRACEBACK:],
    )


def _sealed(verdict: Verdict) -> Verdict:
    """Return a verdict whose texts are encrypted if the task is; its fingerprint then ignores the message."""
    outcome = verdict.outcome
    failure = outcome.failure
    if failure is None or not applies_to(outcome.task.task_type):
        return verdict
    cause = fingerprint(failure.exception_class, "", failure.traceback) if verdict.fingerprint else ""
    sealed = replace(outcome, failure=sealed_failure(failure, outcome.task.task_type))
    return replace(verdict, outcome=sealed, fingerprint=cause)


def _judge(outcome: Outcome) -> Verdict:
    """Decide what follows a failed attempt; options of the task take precedence over the policy."""
    task, failure = outcome.task, outcome.failure
    if failure is None or not failure.retriable:
        return Verdict(outcome, Status.FAILED, None)
    if task.failures >= task.max_retries:
        cause = fingerprint(failure.exception_class, failure.message, failure.traceback)
        return Verdict(outcome, Status.DEAD_LETTER, None, "timeout" if failure.reason == "timeout" else None, cause)
    if failure.retry_after is not None:
        return Verdict(outcome, Status.SCHEDULED, failure.retry_after)
    retry = conf.get().retry
    base = task.retry_delay or retry.base_seconds
    jitter = random.uniform if retry.jitter else None
    delay = retry_delay(task.failures + 1, base=base, cap=max(base, retry.cap_seconds), jitter=jitter)
    return Verdict(outcome, Status.SCHEDULED, delay)


# End attempts and claim the next tasks in one transaction, where a cap leaves the worker no other slots.
#
# A capped slot is idle from the end of an attempt until the next task is granted. Two transactions and two calls of the
# index would lie between; here it is one transaction, and the index proposes before it.
#
# The index counts the slots of the attempts that end as free, and proposes that many tasks. The transaction ends the
# attempts and grants the tasks only if every attempt still held its task. So never more tasks run than a cap allows.
#
# Crash points: before the commit nothing has ended and nothing is granted; the new leases are abandoned as after a
# claim. Between the commit and the release, old leases stay, so slots are missing, until the reconciler ends them.


def turn_over(  # noqa: PLR0913, PLR0917 - the parts of a claim and of an end
    profile: Profile,
    worker_id: uuid.UUID,
    outcomes: Sequence[Outcome],
    want: int,
    start: Callable[[list[ClaimedTask]], object],
    on_wait: Callable[[float | None, bool], object],
) -> set[uuid.UUID]:
    """Record completions and claim up to ``want`` tasks; return the ids of the tasks that the attempts still held.

    Only for completions outside workflows, each of another task. ``start`` gets the tasks when they are granted.
    Raises what ``claim`` raises; the outcomes are then not recorded.
    """
    index = get_index()
    if index.way == conf.ROWS:  # a slot is free as soon as its row has ended
        done = finish(outcomes)
        try:
            start(claim(profile, worker_id, want, reserve=False, on_wait=on_wait))
        except (IndexNotReady, DatabaseError):  # the worker claims again, and meets the error there
            start([])
        return done
    proposal = index.claim(profile, worker_id, want, reserve=False, exchange=[one.task.lease for one in outcomes])
    breaker.reset()
    if proposal.wait is not None or proposal.is_loading:
        on_wait(proposal.wait, proposal.is_loading)
    if not proposal.tasks:
        start([])
        return finish(outcomes)
    in_order = sorted(outcomes, key=lambda outcome: outcome.task.id.int)
    held, granted = finish_rows.turn_over(in_order, proposal, worker_id)
    granted = as_claimed(granted, proposal)
    start(granted)
    first = {one.task.key: one for one in in_order}
    attempts = [Ended(first[key], status) for key, status in held.items()]
    notify_index(Index.post_release, "release", [attempt.outcome.task.lease for attempt in attempts])
    with suppress(IndexUnavailable, IndexNotReady, DatabaseError):  # else the reconciler ends these leases
        if len(held) < len(outcomes):  # their slots were not free after all
            abandon([Lease(task_id, queue, proposal.leased_at) for task_id, queue in proposal.tasks])
        elif len(granted) < len(proposal.tasks):
            return_refused(proposal, {task.id for task in granted}, worker_id)
    if attempts:
        events.finished(attempts)
    if granted:
        events.started(granted)
    call_after_end(attempts)
    refused = [outcome for key, outcome in first.items() if key not in held]
    return {task_id for task_id, *_ in held} | (finish(refused) if refused else set())
