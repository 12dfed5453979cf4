"""The process that forks the slots of a process pool.

A worker has threads, and a process with threads must not fork. So before it starts its threads, the worker forks this
process, which has one thread and no connections. It forks slots on request, reports how they ended, and kills them
when the worker is gone.
"""

import gc
import json
import logging
import os
import selectors
import signal
import socket
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import NoReturn

from django.db import connections

from queue_app.workers.context import AttemptStore
from queue_app.workers.pools.slot import SIGNALS, ignore_signals, run_slot
from queue_app.workers.resources import ResourceLimits

logger = logging.getLogger("taskqueue")

#: Time for idle slots to send their last notifications to the index when the worker exits.
LEAVE_SECONDS = 1.0


def start_fork_server(limits: ResourceLimits, store: AttemptStore) -> tuple[int, socket.socket]:
    """Fork the fork server; return its pid and the socket for requests."""
    ours, theirs = socket.socketpair()
    connections.close_all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the worker starts its threads later
        pid = os.fork()
    if pid == 0:
        ours.close()
        _exit_after(lambda: _ForkServer(theirs, limits, store).run())
    theirs.close()
    return pid, ours


def _exit_after(function: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        function()
        code = 0
    except BaseException:
        logger.exception("a process of the pool failed")
    finally:
        os._exit(code)


class _ForkServer:
    def __init__(self, worker: socket.socket, limits: ResourceLimits, store: AttemptStore) -> None:
        self._worker = worker
        self._limits = limits
        self._store = store
        self._slots: set[int] = set()

    def run(self) -> None:
        """Fork slots, and collect those that ended, until the worker hangs up."""
        ignore_signals(signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGCHLD, *SIGNALS.values())
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        gc.collect()
        gc.freeze()  # the collector no longer touches existing objects, so their pages stay shared with the slots
        signalled, waker = socket.socketpair()
        for end in (signalled, waker):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._worker, selectors.EVENT_READ)
            selector.register(signalled, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if signalled in ready:
                    with suppress(BlockingIOError):
                        signalled.recv(4096)
                self._collect()
                if self._worker in ready and not self._serve():
                    break
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._slots and time.monotonic() < deadline:  # idle slots end by themselves
            time.sleep(0.01)
            self._collect()
        for pid in self._slots:
            os.kill(pid, signal.SIGKILL)

    def _serve(self) -> bool:
        """Fork a slot that uses the socket which comes with the request; return false if the worker hung up."""
        try:
            request, descriptors, _, _ = socket.recv_fds(self._worker, 1, 2)
        except ConnectionError:
            return False
        if not request:
            return False
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            self._worker.close()
            slot = socket.socket(fileno=descriptors[0])
            # In an empty context, as a thread: attempts get copies, and would share objects such as decimal's context.
            _exit_after(lambda: Context().run(run_slot, slot, self._limits, self._store, descriptors[1]))
        for descriptor in descriptors:
            os.close(descriptor)
        self._slots.add(pid)
        self._report({"started": pid})
        return True

    def _collect(self) -> None:
        for pid in list(self._slots):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._slots.discard(pid)
                self._report({"died": pid, "code": os.waitstatus_to_exitcode(status)})

    def _report(self, event: dict[str, int]) -> None:
        with suppress(OSError):
            self._worker.sendall(json.dumps(event).encode() + b"\n")
