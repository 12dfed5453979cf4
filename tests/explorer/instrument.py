"""Everything that a run needs, installed for a block: history, triggers, gates, and what makes steps repeatable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from django.conf import settings
from django.test import override_settings

from queue_app.index import get_index, notifier, scripts
from queue_app.services import requests
from queue_app.services.notify import index as notify_index
from queue_app.services.repair import reap, rebuild, reconcile
from queue_app.sql import prepared
from tests.explorer import crew, said_twice
from tests.explorer.controller import Controller, controller
from tests.explorer.queues import few_connections
from tests.explorer.world import World
from tests.support.history import installed


@contextmanager
def instrument(count: int = 3) -> Iterator[tuple[World, Controller]]:
    """Yield a world and a controller of up to ``count`` actors."""
    with (
        # A statement becomes a prepared one after some runs: then the same transition would take other steps.
        mock.patch.object(prepared, "PREPARE_AFTER", 10**9),
        # Each notification is sent by the actor, at once, and not by a thread later.
        mock.patch.object(notifier, "GATHER_SECONDS", 0.0),
        mock.patch.object(notify_index.first, "_is_open", True),
        # A consumer that stands still is taken for dead at once.
        mock.patch.multiple(requests, IDLE_SECONDS=0.0, PAUSE_SECONDS=0.0),
        override_settings(TASKQUEUE=settings.TASKQUEUE | {"REQUESTS": {"ENABLED": True}}),
        # A rebuild loads one of two tasks after it has allowed claims.
        mock.patch.multiple(rebuild, PAGE=1, LEAST=1),
        # A server for three connections: near its limit a queue still shares its lock.
        few_connections(),
        # What is missing is not on its way: the actors stand still.
        mock.patch.object(reconcile, "LONGEST_GRACE", 0.0),
        # A rebuild waits for the workers of the world, which are no threads.
        mock.patch.object(rebuild, "await_answers", crew.await_answers),
        # An actor may let time pass.
        mock.patch.object(time, "monotonic", crew.monotonic),
        # Workers of the world are no processes of this machine.
        mock.patch.object(reap, "machine_identity", return_value=""),
        installed() as history,
        said_twice.installed() as again,
        controller(count) as control,
    ):
        index = get_index()
        for name in scripts.NAMES:  # a server that does not know a script makes a call take another step
            index._client.script_load(scripts.source(name))
        yield World(history, again), control
