"""Everything that a run needs, installed for a block: history, triggers, gates, and what makes steps repeatable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.conf import settings
from django.test import override_settings

from queue_app.index import notifier, scripts
from queue_app.services import requests
from queue_app.services.notify import index as notify_index
from queue_app.services.repair import detour, reap, rebuild, reconcile
from queue_app.sql import prepared
from tests.explorer import crew, said_twice, ways
from tests.explorer.controller import Controller, controller
from tests.explorer.queues import few_connections
from tests.explorer.world import World
from tests.support.engine import redis_client
from tests.support.history import installed
from tests.support.swaps import Swap, always, swapped

_STEADY: Final[tuple[Swap, ...]] = (
    # A statement becomes a prepared one after some runs: then the same transition would take other steps.
    (prepared, "PREPARE_AFTER", 10**9),
    # Each notification is sent by the actor, at once, and not by a thread later.
    (notifier, "GATHER_SECONDS", 0.0),
    (notify_index.first, "_is_open", True),
    # A consumer that stands still is taken for dead at once.
    (requests, "IDLE_SECONDS", 0.0),
    (requests, "PAUSE_SECONDS", 0.0),
    # A rebuild loads one of two tasks after it has allowed claims.
    (rebuild, "PAGE", 1),
    (rebuild, "LEAST", 1),
    # What is missing is not on its way: the actors stand still.
    (reconcile, "LONGEST_GRACE", 0.0),
    # A rebuild waits for the workers of the world, which are no threads.
    (rebuild, "await_answers", crew.await_answers),
    # An actor may let time pass.
    (time, "monotonic", crew.monotonic),
    # Claims may leave Redis while it answers, which is harder than if it were gone.
    (detour, "why_away", always("It is gone.")),
    # Workers of the world are no processes of this machine.
    (reap, "machine_identity", always("")),
)


@contextmanager
def instrument(count: int = 3) -> Iterator[tuple[World, Controller]]:
    """Yield a world and a controller of up to ``count`` actors."""
    with (
        swapped(*_STEADY, *ways.beliefs.swaps),
        override_settings(TASKQUEUE=settings.TASKQUEUE | {"REQUESTS": {"ENABLED": True}}),
        few_connections(),
        installed() as history,
        said_twice.installed() as again,
        controller(count) as control,
    ):
        for name in scripts.NAMES:  # a server that does not know a script makes a call take another step
            redis_client().script_load(scripts.source(name))
        yield World(history, again), control
