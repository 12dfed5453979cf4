"""Probes of adaptive limits: how a step asks one, and the ready-made ones. Each returns a load, 1 for a full one."""

import logging
import math
import os
import threading
import time
from typing import Final

from django.db import connections
from django.utils.module_loading import import_string

from queue_app import conf
from queue_app.core.sentence import sentence
from queue_app.sql.database import fetch_value

#: Seconds that a step waits for a probe. A later answer counts in the next step, up to this age.
PATIENCE: Final = 0.5
FRESH_SECONDS: Final = 10.0
#: Interval of the warnings about one probe.
WARN_SECONDS: Final = 60.0

logger = logging.getLogger("taskqueue")


class _Question(threading.Thread):
    """One call of a probe, in a thread of its own: the code is the project's, and may hang or end its thread."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name=f"probe {name}", daemon=True)
        self.probe, self.path = name, path
        self.asked_at = time.monotonic()
        self.load: float | None = None
        self.problem = ""

    def run(self) -> None:
        try:
            load = float(import_string(self.path)())
            if math.isfinite(load) and load >= 0:
                self.load = load
            else:
                self.problem = f"it returned {load}, not a number from 0"
        except BaseException as error:  # noqa: BLE001 - SystemExit too must not end adaptation
            self.problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        finally:
            connections.close_all()

    def seconds(self) -> float:
        return time.monotonic() - self.asked_at


_questions: Final[dict[str, _Question]] = {}
_warned: Final[dict[str, float]] = {}


def load_of(name: str) -> tuple[float | None, str]:
    """Return what a probe reports, or ``None`` and what is wrong with it: a limit must not depend on its probe."""
    path = conf.get().all_probes.get(name)
    if path is None:
        return None, _warn(name, "TASKQUEUE PROBES does not name it")
    last = _questions.get(name)
    if last is None or not last.is_alive():
        question = _questions[name] = _Question(name, path)
        question.start()
        question.join(PATIENCE)
        if question.is_alive() and last is not None and last.path == path and last.seconds() < FRESH_SECONDS:
            return last.load, last.problem and _warn(name, last.problem)
        last = question
    if last.is_alive():
        return None, _warn(name, f"it has not answered for {last.seconds():.1f} s") if last.seconds() > 1 else ""
    return last.load, last.problem and _warn(name, last.problem)


def _warn(name: str, problem: str) -> str:
    """Log a problem once a minute, and return it as a sentence for the history."""
    now = time.monotonic()
    if now - _warned.get(name, -WARN_SECONDS) >= WARN_SECONDS:
        _warned[name] = now
        logger.warning("probe %s does not count: %s", name, problem)
    return sentence("The probe %(name)s does not count; the log of the scheduler says why.", name=name)


def host_cpu() -> float:
    """Return the load average of the last minute for each core of the scheduler's host."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def postgresql_active() -> float:
    """Return the share of PostgreSQL's connections that run a statement now."""
    active = fetch_value(
        "SELECT count(*) FILTER (WHERE state = 'active')::float8 / current_setting('max_connections')::float8"
        " FROM pg_stat_activity WHERE backend_type = 'client backend'"
    )
    return float(active)
