"""How a worker claims: which task types, for how many slots, and how many tasks ahead of its free slots."""

import logging
import time
import uuid
from collections.abc import Callable
from typing import Final

from django.db import Error as DatabaseError

from queue_app import registry
from queue_app.core.records import ClaimedTask, Outcome
from queue_app.exceptions import IndexNotReady, IndexUnavailable, UnknownProfile
from queue_app.index import MAX_CLAIM, Profile
from queue_app.registry import AnyTask
from queue_app.services.worker.registration import queues_except
from queue_app.workers.auto_slots import profile_slots
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.in_flight import InFlight
from queue_app.workers.options import WorkerOptions
from queue_app.workers.pools.base import Pool
from queue_app.workers.transport.base import Transport

logger = logging.getLogger("taskqueue")

#: Maximum time after the last grant that a burst waits for a limit to allow another start.
BURST_SECONDS = 10.0
#: Interval at which a burst claims while a rebuild loads tasks.
LOAD_SECONDS = 0.1
#: Time after which the run times of a task type are forgotten.
FORGET_SECONDS = 60.0
#: Weight of the newest run time in the moving average.
WEIGHT = 0.1
#: Minimum run time in the calculation of the allowance, which would be infinite otherwise.
FLOOR_SECONDS = 0.000_05


class Claimer:
    """Fills the pool with claimed tasks, and gives back tasks that would wait too long in this worker."""

    def __init__(
        self, options: WorkerOptions, worker_id: uuid.UUID, transport: Transport, in_flight: InFlight, pool: Pool
    ) -> None:
        self.should_claim = True  # whether the next claim may find something
        self.is_capped = False  # whether the last claim brought too few tasks while others run: a limit may hold
        self.was_called = False  # whether the index has called this worker since its last claim
        self.free_slots = 0  # slots that the last claim could not fill; the heartbeat reports them
        self.slots = options.concurrency
        self.prefetch = Prefetch(options.look_ahead_ms, options.concurrency)
        self._options = options
        self._worker_id = worker_id
        self._transport = transport
        self._in_flight = in_flight
        self._pool = pool
        self._has_unacknowledged = False  # whether a claim may have been granted without an answer
        self.compare_rows = False  # whether to look for tasks that only the rows assign to this worker
        self._refill_at: float | None = None  # when (monotonic) a limit allows another start
        self._may_miss_tasks = False  # whether a rebuild still loaded tasks when a burst claimed last
        self._last_granted = self._last_progress = time.monotonic()

    def observe(self, task_type: str, seconds: float) -> None:
        """Record the run time of an attempt that ended."""
        self.prefetch.observe(task_type, seconds)
        self._last_progress = time.monotonic()

    def resize(self, slots: int) -> None:
        """Claim for this number of slots from now on."""
        self.should_claim |= slots > self.slots
        self.slots = self.prefetch.slots = slots

    @property
    def is_short(self) -> bool:
        """Whether the last claim filled every slot, so that more tasks may wait."""
        return self.free_slots == 0

    def room(self) -> int:
        """Return how many slots to claim for: the free ones, and more if tasks are quick and take 1 slot each."""
        return self._room(self._in_flight.slots)

    def _room(self, taken: int, ended: int = 0) -> int:
        ahead = self.prefetch.allowance() if taken == len(self._in_flight) - ended else 0
        room = min(MAX_CLAIM, self.slots - taken + ahead)
        maximum = self._options.max_tasks
        return room if maximum is None else min(room, maximum - self._in_flight.claimed)

    def _may_drain(self) -> bool:
        """Whether the worker can claim for all its slots later, so that it may drain for a heavy task."""
        maximum = self._options.max_tasks
        return maximum is None or maximum - self._in_flight.claimed >= self.slots

    @property
    def refill_in(self) -> float | None:
        """Seconds until a limit allows another start, if this worker is the one that must claim then."""
        return None if self._refill_at is None else max(0.0, self._refill_at - time.monotonic())

    @property
    def refills_soon(self) -> bool:
        """Whether a burst waits: for a limit that allows a start soon after the last grant, or for a rebuild."""
        if self._refill_at is None:
            return False
        return self._may_miss_tasks or self._refill_at - self._last_granted <= BURST_SECONDS

    def _set_refill(self, seconds: float | None, is_loading: bool) -> None:  # noqa: FBT001 - an ``OnWait``
        self._may_miss_tasks = is_loading and self._options.burst
        if self._may_miss_tasks:
            seconds = LOAD_SECONDS
        if seconds is not None:
            self._refill_at = time.monotonic() + seconds

    def claim(self, profile: Profile) -> None:
        """Claim tasks for the room that there is, and hand them to the pool."""
        if self.refill_in == 0:  # a limit allows another start; the index sends no wake-up call for it
            self.should_claim, self._refill_at = True, None
        if not self.should_claim:
            return
        taken = self._in_flight.slots
        want = self._room(taken)
        if want <= 0:
            self.free_slots = 0
            return
        self._may_miss_tasks, runs = False, self._in_flight.runs
        self.should_claim = self.was_called = False  # before the claim, so that a call during the claim is not lost
        try:
            tasks = self._transport.claim(
                profile, self._worker_id, want, reserve=self._may_drain(), on_wait=self._set_refill
            )
        except Exception as error:
            self._has_unacknowledged |= isinstance(error, DatabaseError | IndexUnavailable)
            self.free_slots = self._unfilled(want, taken)
            raise
        self._take(tasks, want, taken, runs)

    def _take(self, tasks: list[ClaimedTask], want: int, taken: int, runs: int) -> None:
        got = sum(task.weight for task in tasks)
        self.free_slots = self._unfilled(want - got, taken + got)
        self.is_capped = got < want and (got > 0 or len(self._in_flight) > 0)
        if got == want:
            self.should_claim = True
        if tasks:
            self._start(tasks, self.slots - taken, runs)

    def turn_over(self, profile: Profile) -> bool:
        """Report the outcomes and claim for their slots in one transaction, if a limit seems to hold; return whether.

        Without a limit, a batch of ends and a batch of claims cost less one after the other.
        """
        if not (self.is_capped and self._transport.can_turn_over and self._in_flight.can_turn_over):
            return False
        ended = self._in_flight.unreported
        taken = self._in_flight.slots - ended
        want = self._room(taken, ended)
        if want < ended:
            return False

        runs = self._in_flight.runs

        def report(outcomes: list[Outcome]) -> set[uuid.UUID]:
            def start(tasks: list[ClaimedTask]) -> None:
                self._take(tasks, want, taken, runs)

            return self._transport.turn_over(profile, self._worker_id, outcomes, want, start, self._set_refill)

        try:
            self._in_flight.turn_over(report)
        except (IndexUnavailable, IndexNotReady, UnknownProfile) as error:  # nothing has been reported
            self._has_unacknowledged |= isinstance(error, IndexUnavailable)
            self.should_claim, self.is_capped = True, False
            return False
        except DatabaseError:
            self._has_unacknowledged, self.is_capped = True, False
            raise
        return True

    def _unfilled(self, want: int, taken: int) -> int:
        """Return how many free slots a claim leaves that lacked ``want``; those ahead of free slots do not count."""
        return max(0, min(want, self.slots - taken))

    def _start(self, tasks: list[ClaimedTask], free: int, runs: int) -> None:
        """Hand tasks to the pool; give back those that do not fit into the free slots and may be slow."""
        self._last_granted = now = time.monotonic()
        if not self._pool.unstarted:  # otherwise the tasks in the pool have waited since then
            self._last_progress = now
        held = [ClaimedAttempt(task, now, self._transport) for task in tasks]
        self._in_flight.add(held)  # every heartbeat that begins from now on names them
        held = self._confirmed(held, runs)
        ahead = _beyond(held, free)
        is_heavy = any(task.weight > 1 for task in tasks)  # a waiting heavy task could exceed the free slots
        surplus = [item for item in ahead if is_heavy or not self.prefetch.is_quick(item.task.task_type)]
        if surplus:  # slow or unknown types: another worker may have a free slot
            refused = {item.task.id for item in surplus}
            held = [item for item in held if item.task.id not in refused]
            for item in surplus:
                self.prefetch.distrust(item.task.task_type)
            self._in_flight.return_later(surplus)
        self._pool.submit(held)
        self._in_flight.give_back()

    def _confirmed(self, held: list[ClaimedAttempt], runs: int) -> list[ClaimedAttempt]:
        """Return the attempts that are granted still: a heartbeat during their claim may have met another PostgreSQL.

        It did not name them, so their leases may have been abandoned.
        """
        if self._in_flight.runs == runs:
            return held
        try:
            lost = self._transport.compare(self._worker_id, [item.key for item in held]).lost
        except Exception:
            self._in_flight.return_later(held)
            raise
        self._in_flight.drop(lost)
        return [item for item in held if item.key not in lost]

    def give_back_stalled(self) -> None:
        """Give back the waiting tasks while every slot runs something unexpectedly long."""
        if self._pool.unstarted and time.monotonic() - self._last_progress > self.prefetch.max_wait:
            for held, seconds in self._pool.running():
                self.prefetch.observe(held.task.task_type, seconds)
            self._in_flight.return_later(self._pool.take_unstarted())
            self._in_flight.give_back()

    def give_back_unacknowledged(self) -> None:
        """Give back the tasks of a claim whose answer never arrived because the connection broke.

        With every heartbeat, also give back tasks whose end PostgreSQL has forgotten: a failover can lose commits.
        """
        if self._has_unacknowledged:
            self._in_flight.give_back_unacknowledged(self._worker_id)
            self._has_unacknowledged = self.compare_rows = False
        elif self.compare_rows:
            self.compare_rows = False
            self._in_flight.give_back_forgotten(self._worker_id)


def _beyond(held: list[ClaimedAttempt], free: int) -> list[ClaimedAttempt]:
    """Return the tasks that do not fit into the free slots."""
    for position, item in enumerate(held):
        free -= item.task.weight
        if free < 0:
            return held[position:]
    return []


#: The task type of the queue itself that ``Workflow.map`` needs.
MAP: Final = "queue_app.workflows.builder.expand"


class TaskDiscovery:
    """Keeps the worker's profile, and adds waiting task types that the project's code turns out to have."""

    def __init__(
        self, options: WorkerOptions, worker_id: uuid.UUID, transport: Transport, can_run: Callable[[AnyTask], bool]
    ) -> None:
        #: Whether to look for unknown task types. A burst does at once, as it may end before the first heartbeat.
        self.requested = options.burst
        self.refused: list[str] = []  # known types that the pool of this worker cannot run
        self._options = options
        self._worker_id = worker_id
        self._transport = transport
        self._can_run = can_run
        self._slots = options.concurrency
        self._broken: set[str] = set()  # types whose modules cannot be imported
        self._reported: set[str] = set()  # types that no module here has
        self._import(MAP)
        self.profile = self._make_profile()

    def discover(self) -> bool:
        """Import waiting task types that are unknown here, if requested; return whether the profile has grown."""
        if not self.requested:
            return False
        self.requested = False
        found = [name for name in sorted(self._transport.unserved_types(self.profile)) if self._import(name)]
        is_changed = bool(found or self._options.excluded) and self._change()
        if found:
            logger.info("worker %s discovered the task types %s", self._options.name, ", ".join(found))
        return is_changed

    def resize(self, slots: int) -> None:
        """Claim tasks up to the weight that this number of slots can run."""
        self._slots = slots
        self._change()

    def _change(self) -> bool:
        """Make the profile again; return whether it is another."""
        before, now = self.profile, self._make_profile()
        if now != before:
            self._transport.change_profile(self._worker_id, before, now)
            self.profile = now
        return now != before

    def _import(self, task_type: str) -> bool:
        if task_type in self._broken or task_type in self.refused:
            return False
        try:
            if registry.import_module_of(task_type):
                return True
        except Exception:
            logger.exception("the module of %s cannot be imported; its tasks wait for another worker", task_type)
            self._broken.add(task_type)
            return False
        if task_type not in self._reported:
            self._reported.add(task_type)
            why = registry.why_unknown(task_type)
            logger.info("worker %s leaves tasks of %s to other workers. %s", self._options.name, task_type, why)
        return False

    def _make_profile(self) -> Profile:
        types = registry.known_types()
        self.refused = [name for name in types if not self._can_run(registry.get(name))]
        served = [name for name in types if name not in self.refused]
        options = self._options
        queues = queues_except(options.excluded) if options.excluded else options.queues
        slots = profile_slots(self._slots) if options.auto else self._slots
        return Profile.of(queues, served, options.capabilities, slots)


class Prefetch:
    """Decides from recent run times how many tasks the worker claims ahead of its free slots."""

    def __init__(self, budget_ms: float, slots: int) -> None:
        self.budget = budget_ms / 1000
        self.slots = slots
        self._means: dict[str, tuple[float, float]] = {}  # type -> (mean seconds, time of the last run)
        self._unproven: dict[str, float] = {}  # type -> when the worker claimed it without having run it

    def observe(self, task_type: str, seconds: float) -> None:
        """Record a run time. A run 10 times slower than the mean replaces the mean."""
        self._unproven.pop(task_type, None)
        mean = self._means.get(task_type, (seconds, 0.0))[0]
        mean = seconds if seconds > 10 * mean else mean + WEIGHT * (seconds - mean)
        self._means[task_type] = (mean, time.monotonic())

    def distrust(self, task_type: str) -> None:
        """Claim nothing ahead until this type has run here, or has not been claimed for a while."""
        self._means.pop(task_type, None)
        self._unproven[task_type] = time.monotonic()

    def allowance(self) -> int:
        """Return how many tasks to claim beyond the free slots."""
        if not self.budget or not self._means:
            return 0
        cutoff = time.monotonic() - FORGET_SECONDS
        if any(met >= cutoff for met in self._unproven.values()):
            return 0
        recent = [mean for mean, seen in self._means.values() if seen >= cutoff]
        if not recent:
            self._means.clear()
            return 0
        return min(MAX_CLAIM, int(self.slots * self.budget / max([FLOOR_SECONDS, *recent])))

    def is_quick(self, task_type: str) -> bool:
        """Whether a task of this type may wait in this worker behind others."""
        known = self._means.get(task_type)
        return known is not None and known[0] <= self.budget

    @property
    def max_wait(self) -> float:
        """Seconds after which tasks that wait for a slot are given back."""
        return max(0.25, 10 * self.budget)
