"""Run one worker, or several under a supervisor."""

import gc
import os
import signal

from queue_app.workers.health import HealthMonitor, notify_systemd, stale_seconds
from queue_app.workers.lifecycle import Exit, end_with_main_thread
from queue_app.workers.options import WorkerOptions
from queue_app.workers.reload import Reloader, restart
from queue_app.workers.supervisor import Supervisor
from queue_app.workers.transport.base import Transport
from queue_app.workers.worker import Worker


def run_workers(
    options: WorkerOptions, transport: Transport, processes: int, *, health_port: int | None, reload: bool
) -> Exit:
    """Run one worker in this process, or several under a supervisor. Raises ``PortUnavailable``."""
    runner: Worker | Supervisor
    if processes == 1:
        runner = Worker(options, transport)
        loop_heartbeats = [runner.loop_heartbeat]
    else:
        runner = Supervisor(options, transport, processes)
        loop_heartbeats = runner.loop_heartbeats
    HealthMonitor(loop_heartbeats, stale_seconds(options.heartbeat_seconds), health_port).start()
    reloader = Reloader(lambda: os.kill(os.getpid(), signal.SIGTERM))
    if reload:
        reloader.start()
    gc.collect()
    gc.freeze()  # the collector no longer touches existing objects, so their pages stay shared with the workers
    code = runner.run()
    notify_systemd("STOPPING=1")
    if reloader.changed:
        restart()
    end_with_main_thread()
    return code
