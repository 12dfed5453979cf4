"""Which task types a worker serves: those that its code knows, and those that it finds when they are asked for."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from queue_app import registry
from queue_app.index import Profile
from queue_app.registry import AnyTask
from workers import transport
from workers.options import WorkerOptions

logger = logging.getLogger("taskqueue")


class Learner:
    """Keeps the worker's profile, and widens it by types that wait and that the code turns out to have."""

    def __init__(
        self, options: WorkerOptions, worker_id: uuid.UUID, can_run: Callable[[AnyTask], bool] = lambda _task: True
    ) -> None:
        self.curious = False  # whether to look for unknown task types that wait
        self._options = options
        self._can_run = can_run
        self.refused: list[str] = []  # known types that the pool of this worker cannot run
        self._worker_id = worker_id
        self._unlearnable: set[str] = set()  # types whose modules break when imported
        self.profile = self._make_profile()

    def learn(self) -> bool:
        """Look for waiting types that are not known here yet, if curious; return whether some were learnt."""
        if not self.curious:
            return False
        self.curious = False
        learnt = [name for name in sorted(transport.unserved_types(self.profile)) if self._import(name)]
        if learnt:
            before, self.profile = self.profile, self._make_profile()
            transport.change_profile(self._worker_id, before, self.profile)
            logger.info("worker %s learnt %s", self._options.name, ", ".join(learnt))
        return bool(learnt)

    def _import(self, task_type: str) -> bool:
        if task_type in self._unlearnable or task_type in self.refused:
            return False
        try:
            return registry.learn(task_type)
        except Exception:
            logger.exception("the module of %s cannot be imported", task_type)
            self._unlearnable.add(task_type)
            return False

    def _make_profile(self) -> Profile:
        types = registry.known_types()
        self.refused = [name for name in types if not self._can_run(registry.get(name))]
        served = [name for name in types if name not in self.refused]
        return Profile.of(self._options.queues, served, self._options.capabilities, self._options.concurrency)
