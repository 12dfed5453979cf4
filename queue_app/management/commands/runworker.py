"""``manage.py runworker``: run a worker."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from queue_app import conf
from queue_app.exceptions import InvalidTaskData
from queue_app.management.servers import EXIT_USAGE, ServerCommand


class Command(ServerCommand):
    """Parse the options and hand over to the worker runtime."""

    help = (
        "Run a worker. It drains on SIGTERM or Ctrl-C; a second one gives back what still runs. "
        "Exit codes: 0 done, 2 usage, 3 declared dead, 4 PostgreSQL or Redis unreachable, 5 tasks given back."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--queues", default="", help="comma-separated names; default: all queues")
        parser.add_argument("--capabilities", default="", help="comma-separated names that tasks may require")
        parser.add_argument("--concurrency", type=int, help="tasks at the same time in one process (default 5)")
        parser.add_argument("--processes", type=int, default=1, help="worker processes under a supervisor (default 1)")
        parser.add_argument("--name", help="as staff will see it; default: host and process id")
        parser.add_argument("--max-tasks", type=int, help="leave after so many tasks")
        parser.add_argument("--burst", action="store_true", help="leave when nothing is pending for this worker")
        parser.add_argument("--grace", type=float, help="seconds that a drain waits for running tasks (default 30)")

    def handle(self, **options: Any) -> None:
        """Run until told to stop; exit with the worker's code."""
        from workers.options import WorkerOptions, check_processes, default_name  # noqa: PLC0415 - see the import rules
        from workers.supervisor import run_workers  # noqa: PLC0415

        self.check_settings()
        defaults = conf.get().worker
        try:
            processes = check_processes(options["processes"])
            worker_options = WorkerOptions(
                queues=_names(options["queues"]),
                capabilities=_names(options["capabilities"]),
                concurrency=defaults.concurrency if options["concurrency"] is None else options["concurrency"],
                name=options["name"] or default_name(),
                max_tasks=options["max_tasks"],
                burst=options["burst"],
                grace_seconds=defaults.grace_seconds if options["grace"] is None else options["grace"],
                heartbeat_seconds=defaults.heartbeat_seconds,
                look_ahead_ms=defaults.look_ahead_ms,
            )
        except InvalidTaskData as error:
            option = "queues" if error.field == "queue" else error.field
            raise CommandError(f"--{option}: {error}", returncode=EXIT_USAGE) from None
        self.prepare()
        code = run_workers(worker_options, processes)
        if code:  # not sys.exit(): a task that still runs must not keep the process
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(code))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
