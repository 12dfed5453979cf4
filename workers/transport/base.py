"""What the worker runtime asks of the queue, and the transport that asks the servers directly."""

import uuid
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Protocol

from queue_app.core.records import AttemptKey, ClaimedTask, HeartbeatAnswer, Outcome, ProgressReport, WorkerReport
from queue_app.diagnose import system
from queue_app.index import Profile, WorkerMessage
from queue_app.services.lifecycle import claim as claims, finish as outcomes
from queue_app.services.repair import detour, reap, rebuild, reconcile
from queue_app.services.upkeep import jobs, promote
from queue_app.services.worker import registration
from queue_app.services.worker.registration import WorkerIdentity
from queue_app.sql import workers as worker_rows
from queue_app.sql.claim import Comparison
from queue_app.workers.context import AttemptStore, LocalStore

#: Called with the seconds until a limit allows another start, if known, and whether a rebuild still loads tasks, which
#: the claim may have missed.
type OnWait = Callable[[float | None, bool], object]


class OutcomesRefused(Exception):
    """The queue refuses a batch of outcomes because it cannot store one of them."""


class Transport(AttemptStore, Protocol):
    """A way to reach the queue. The command makes one and passes it to the worker or supervisor.

    Methods with a body do nothing by default: over HTTP the server does this work itself.
    """

    def register(
        self, identity: WorkerIdentity, profile: Profile, *, concurrency: int, heartbeat_seconds: float
    ) -> None:
        """Register a worker."""

    def register_again(self, profile: Profile, worker_id: uuid.UUID) -> object:
        """Register a worker with an index that was rebuilt."""
        return None

    def heartbeat(self, worker_id: uuid.UUID, report: WorkerReport, held: Sequence[AttemptKey]) -> HeartbeatAnswer:
        """Report that the worker lives and holds these grants; return what it must know."""

    def compare(self, worker_id: uuid.UUID, held: Sequence[AttemptKey]) -> Comparison:
        """Return which of these grants the worker has lost."""
        return Comparison()

    def deregister(self, worker_id: uuid.UUID, profile: Profile, *, tasks_done: int) -> None:
        """Report that the worker exits."""

    def mark_dead(self, worker_id: uuid.UUID) -> object:
        """Give back the tasks of a worker process that has died."""
        return None

    def wait_for_wake(self, worker_id: uuid.UUID, seconds: float) -> WorkerMessage | None:
        """Block until the index wakes or notifies the worker, for at most ``seconds``; return which, or ``None``."""

    def unserved_types(self, profile: Profile) -> set[str]:
        """Return the task types that wait in the profile's queues but are missing from the profile."""

    def change_profile(self, worker_id: uuid.UUID, before: Profile, after: Profile) -> None:
        """Register a running worker under another profile."""

    def cancel_requests(self, worker_id: uuid.UUID, tasks: Collection[uuid.UUID]) -> set[uuid.UUID]:
        """Return the tasks among ``tasks`` that the worker runs and a caller has cancelled."""

    def claim(
        self, profile: Profile, worker_id: uuid.UUID, want: int, *, reserve: bool, on_wait: OnWait
    ) -> list[ClaimedTask]:
        """Claim tasks for up to ``want`` slots, most urgent first.

        With ``reserve`` the worker may drain for a task that needs more slots.
        """

    def finish(self, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
        """Record outcomes; return the ids of the tasks whose attempts were still valid.

        Raises ``DataError``, ``IntegrityError`` or ``OutcomesRefused`` if one of them cannot be stored.
        """

    #: Whether ``turn_over`` works.
    can_turn_over: bool = False

    def turn_over(  # noqa: PLR0913, PLR0917 - the parts of a claim and of an end
        self,
        profile: Profile,
        worker_id: uuid.UUID,
        outcomes: Sequence[Outcome],
        want: int,
        start: Callable[[list[ClaimedTask]], object],
        on_wait: OnWait,
    ) -> set[uuid.UUID]:
        """Record completions and claim tasks for their slots at once, as ``finish`` and ``claim`` do in turn."""
        raise RuntimeError("This transport cannot claim and report at once.")

    def give_back(self, tasks: list[ClaimedTask]) -> object:
        """Return the claimed tasks that the worker still holds to their places."""

    def give_back_unacknowledged(self, worker_id: uuid.UUID, known: list[uuid.UUID]) -> int:
        """Return the tasks that the worker was granted by a claim whose answer it never saw."""
        return 0

    def give_back_forgotten(self, worker_id: uuid.UUID, known: list[uuid.UUID]) -> int:
        """Return the tasks that the rows assign to the worker without a claim that lacks its answer."""
        return 0

    def record_progress(self, reports: Sequence[ProgressReport]) -> None:
        """Store progress, log lines and extensions of running attempts."""

    def make_due(self) -> int:
        """Queue scheduled tasks whose time has come; return their number."""
        return 0

    def push_missing(self) -> int:
        """Push queued tasks that are missing from the index; return their number."""
        return 0

    def why_unled(self) -> str:
        """Return why no scheduler leads, and what that means; '' if one does."""
        return ""

    def wake_idle_workers(self) -> int:
        """Repeat wake-up calls that may have been lost."""
        return 0

    def rebuild_if_needed(self) -> bool:
        """Rebuild a lost index, unless another process does; return whether claims are allowed now."""
        return False

    def leave_redis(self, voter: str, error: Exception) -> bool:
        """Claim from the rows, if Redis is away for others too; return whether to claim again at once."""
        return False


# The transport of a worker that has access to PostgreSQL and Redis.


def _if_redis_answers[**P, R](call: Callable[P, R]) -> Callable[P, R]:
    """Return ``call``, which raises an error at once while a Redis that did not answer a moment ago does not either."""

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        detour.check_redis()
        return call(*args, **kwargs)

    return checked


class DirectTransport(LocalStore):
    """Calls the services of the queue in this process."""

    register = staticmethod(registration.register)
    register_again = staticmethod(registration.register_in_index)
    heartbeat = staticmethod(registration.heartbeat)
    compare = staticmethod(claims.compare)
    deregister = staticmethod(registration.deregister)
    mark_dead = staticmethod(reap.mark_dead)
    wait_for_wake = staticmethod(registration.wait_for_wake)
    unserved_types = staticmethod(registration.unserved_types)
    change_profile = staticmethod(registration.change_profile)
    cancel_requests = staticmethod(worker_rows.cancel_requests)
    claim = staticmethod(_if_redis_answers(claims.claim))
    finish = staticmethod(outcomes.finish)
    turn_over = staticmethod(_if_redis_answers(outcomes.turn_over))
    can_turn_over = True
    give_back = staticmethod(claims.give_back)
    give_back_unacknowledged = staticmethod(claims.recover)
    give_back_forgotten = staticmethod(claims.give_back_unacknowledged)
    record_progress = staticmethod(outcomes.record_progress)
    why_unled = staticmethod(system.why_unled)
    make_due = staticmethod(promote.make_due)
    push_missing = staticmethod(reconcile.push_missing)
    wake_idle_workers = staticmethod(jobs.wake_idle_workers)
    rebuild_if_needed = staticmethod(rebuild.rebuild_until_open)
    leave_redis = staticmethod(detour.leave_redis_with_others)
