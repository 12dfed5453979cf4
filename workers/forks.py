"""Connections must not be shared by a process and its fork."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from functools import cache
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

#: The driver's connections that this process has open, in all its threads.
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def _remember(connection: Any, **_: Any) -> None:
    with suppress(TypeError):  # another database's driver
        _open.add(connection.connection)


def forget_connections() -> None:
    """Let go of every connection that a fork inherited, without a word to the server: they are its parent's.

    Their sockets are replaced, so that not even a bug can write to them.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        for raw in list(_open):
            with suppress(Exception):
                os.dup2(nowhere, raw.fileno(), inheritable=False)
    finally:
        os.close(nowhere)
    _open.clear()
    for connection in connections.all(initialized_only=True):
        connection.connection = None
        connection.in_atomic_block = False
        connection.savepoint_ids = []
        connection.run_on_commit = []


@cache
def guard() -> None:
    """See to it, from now on, that processes forked from this one begin without connections."""
    connection_created.connect(_remember, dispatch_uid="workers.forks")
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            _remember(connection)
    os.register_at_fork(after_in_child=forget_connections)
