"""Which task types a worker serves: those that its code knows, and those that it finds when they are asked for."""

from __future__ import annotations

import logging
import uuid

from queue_app import registry
from queue_app.index import Profile
from queue_app.services import workers as service
from workers.options import WorkerOptions

logger = logging.getLogger("taskqueue")


class Learner:
    """Keeps the worker's profile, and widens it by types that wait and that the code turns out to have."""

    def __init__(self, options: WorkerOptions, worker_id: uuid.UUID) -> None:
        self.curious = False  # whether to look for unknown task types that wait
        self._options = options
        self._worker_id = worker_id
        self._unlearnable: set[str] = set()  # types whose modules break when imported
        self.profile = self._make_profile()

    def learn(self) -> bool:
        """Look for waiting types that are not known here yet, if curious; return whether some were learnt."""
        if not self.curious:
            return False
        self.curious = False
        learnt = [name for name in sorted(service.unserved_types(self.profile)) if self._import(name)]
        if learnt:
            before, self.profile = self.profile, self._make_profile()
            service.change_profile(self._worker_id, before, self.profile)
            logger.info("worker %s learnt %s", self._options.name, ", ".join(learnt))
        return bool(learnt)

    def _import(self, task_type: str) -> bool:
        if task_type in self._unlearnable:
            return False
        try:
            return registry.learn(task_type)
        except Exception:
            logger.exception("the module of %s cannot be imported", task_type)
            self._unlearnable.add(task_type)
            return False

    def _make_profile(self) -> Profile:
        return Profile.of(self._options.queues, registry.known_types(), self._options.capabilities)
