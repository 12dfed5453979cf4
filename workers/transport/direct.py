"""The transport of a worker that has access to PostgreSQL and Redis."""

from queue_app.diagnose import system
from queue_app.services.lifecycle import claim as claims
from queue_app.services.lifecycle import finish as outcomes
from queue_app.services.lifecycle import grants
from queue_app.services.lifecycle import turnover as turnovers
from queue_app.services.repair import reap, rebuild, reconcile
from queue_app.services.upkeep import jobs, promote
from queue_app.services.worker import registration
from queue_app.sql import workers as worker_rows
from queue_app.workers.context import LocalStore


class DirectTransport(LocalStore):
    """Calls the services of the queue in this process."""

    register = staticmethod(registration.register)
    register_again = staticmethod(registration.register_in_index)
    heartbeat = staticmethod(registration.heartbeat)
    compare = staticmethod(grants.compare)
    deregister = staticmethod(registration.deregister)
    mark_dead = staticmethod(reap.mark_dead)
    wait_for_wake = staticmethod(registration.wait_for_wake)
    unserved_types = staticmethod(registration.unserved_types)
    change_profile = staticmethod(registration.change_profile)
    cancel_requests = staticmethod(worker_rows.cancel_requests)
    claim = staticmethod(claims.claim)
    finish = staticmethod(outcomes.finish)
    turn_over = staticmethod(turnovers.turn_over)
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
