"""``manage.py runworker``: run a worker."""

import logging
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.management.base import CommandError

from queue_app import conf, registry
from queue_app.exceptions import InvalidTaskData
from queue_app.index import hide_password
from queue_app.logs import console
from queue_app.management.servers import (
    EXIT_USAGE,
    ServerCommand,
    add_log_options,
    addresses,
    checked_port,
    report_eviction,
)
from queue_app.management.verbs._values import names
from queue_app.models import Queue
from queue_app.sql.database import alias

#: Maximum number of task types that the first lines name.
NAMED = 5

logger = logging.getLogger("taskqueue")


class Command(ServerCommand):
    """Parse the options and run the workers."""

    help = (
        "Run a worker. SIGTERM or Ctrl-C lets it finish its running tasks; a second one gives them back at once. "
        "Exit codes: 0 done, 2 usage, 3 declared dead, 4 PostgreSQL or Redis unreachable, 5 tasks given back."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--queues", default="", help="comma-separated names; default: all queues")
        add("--exclude-queues", default="", help="serve all queues except these; not with --server")
        add("--capabilities", default="", help="comma-separated names that tasks may require")
        add(
            "--concurrency",
            metavar="N",
            help="tasks that one process runs at once (default 5); auto or auto:LEAST-MOST: by CPU, memory and waits",
        )
        add("--processes", type=int, default=1, help="worker processes under a supervisor (default 1)")
        add(
            "--with-scheduler",
            action="store_true",
            help="also run a scheduler with maintenance in each process (one leads): enough for one host",
        )
        add("--name", help="name in the admin; default: host name and process id")
        add("--max-tasks", type=int, help="exit after N tasks", metavar="N")
        add("--burst", action="store_true", help="exit when no task can start now or in the next 10 s")
        add(
            "--pool",
            default="threads",
            metavar="KIND",
            help="kind of slot: threads (default), processes, or async for coroutine functions only",
        )
        add("--max-memory", type=int, metavar="MB", help="--pool processes: kill a process above this size")
        add("--max-tasks-per-child", type=int, metavar="N", help="--pool processes: replace a process after N tasks")
        add(
            "--rlimit",
            action="append",
            default=[],
            metavar="NAME=N",
            help="--pool processes: resource limit, such as nofile=1024 or as=2G",
        )
        add("--server", metavar="URL", help="use this server over HTTP instead of PostgreSQL and Redis")
        add("--token", help="--server: the worker token; default: $TASKQUEUE_TOKEN")
        add("--health-port", type=int, metavar="PORT", help="answer GET /livez on this port")
        add("--reload", action="store_true", help="restart when the code changes, for development")
        add("--grace", type=float, help="seconds that a drain waits for running tasks (default 30)")
        add_log_options(parser)

    def handle(self, **options: Any) -> None:
        from queue_app.workers.auto_slots import SlotRange, parse_concurrency  # noqa: PLC0415
        from queue_app.workers.health import PortUnavailable  # noqa: PLC0415 - see the import rules
        from queue_app.workers.options import WorkerOptions, check_processes, default_name, release  # noqa: PLC0415
        from queue_app.workers.resources import ResourceLimits, parse_rlimit  # noqa: PLC0415
        from queue_app.workers.run import run_workers  # noqa: PLC0415

        if options["server"] and options["with_scheduler"]:
            message = "--with-scheduler needs PostgreSQL and Redis; leave it out with --server."
            raise CommandError(message, returncode=EXIT_USAGE)
        self.check_settings()
        defaults = conf.get().worker
        heartbeat = defaults.heartbeat_seconds
        try:
            processes = check_processes(options["processes"])
            transport = _transport(options["server"], options["token"])
            _check_excluded(options)
            given = options["concurrency"]
            slots = parse_concurrency(str(defaults.concurrency) if given is None else given, options["pool"])
            worker_options = WorkerOptions(
                queues=tuple(names(options["queues"])),
                excluded=tuple(names(options["exclude_queues"])),
                capabilities=tuple(names(options["capabilities"])),
                concurrency=defaults.concurrency if isinstance(slots, SlotRange) else slots,
                auto=slots if isinstance(slots, SlotRange) else None,
                name=options["name"] or default_name(),
                max_tasks=options["max_tasks"],
                with_scheduler=options["with_scheduler"],
                burst=options["burst"],
                grace_seconds=defaults.grace_seconds if options["grace"] is None else options["grace"],
                heartbeat_seconds=min(heartbeat, 10) if options["server"] else heartbeat,
                look_ahead_ms=defaults.look_ahead_ms,
                pool=options["pool"],
                limits=ResourceLimits(
                    max_tasks=_positive("max-tasks-per-child", options["max_tasks_per_child"]),
                    max_memory=(_positive("max-memory", options["max_memory"]) or 0) * 1024**2 or None,
                    rlimits=tuple(parse_rlimit(text) for text in options["rlimit"]),
                ),
            )
        except InvalidTaskData as error:
            names_queues = "exclude-queues" if options["exclude_queues"] else "queues"
            option = names_queues if error.field == "queue" else error.field
            names_it = str(error).startswith(f"{option} ")
            raise CommandError(f"--{error}" if names_it else f"--{option}: {error}", returncode=EXIT_USAGE) from None
        port = checked_port(options)
        if options["server"]:
            registry.discover()
        else:
            self.prepare()
        self.print_log(options)
        facts = _facts(worker_options, processes, options["server"])
        if options["verbosity"] == 1 and sys.stderr.isatty() and not options["json"]:
            facts["to see more"] = "-v 2 prints each task"
        console.announce(f"task queue {release()}, worker {worker_options.name}", facts)
        if not options["server"]:
            _warn_of_unknown(worker_options.queues, "The worker serves it when a task names it.")
            _warn_of_unknown(worker_options.excluded, "It is excluded as soon as a task names it.")
            report_eviction()
        try:
            code = run_workers(worker_options, transport, processes, health_port=port, reload=options["reload"])
        except PortUnavailable as error:
            raise CommandError(f"--health-port: {error}", returncode=EXIT_USAGE) from None
        _end(code, is_own_process=self._called_from_command_line)  # type: ignore[attr-defined] # the stubs lack it


def _end(code: Any, *, is_own_process: bool) -> None:
    """End the process, whatever threads tasks have left; that of a test, which has called the command, goes on."""
    from queue_app.workers.lifecycle import end_with_main_thread  # noqa: PLC0415 - see the import rules

    if not is_own_process:
        if code:
            raise CommandError(f"The worker ended with the exit code {code}: {code.name}.", returncode=int(code))
        return
    if code:  # not sys.exit(): a task that still runs must not keep the process
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))
    end_with_main_thread()


def _facts(options: Any, processes: int, server: str | None) -> dict[str, str]:
    """Return what the first lines of a worker say."""
    each = f"{options.auto.least} to {options.auto.most}" if options.auto else str(options.concurrency)
    slots = f"{processes} processes with {each} each" if processes > 1 else each
    types = [name for name in registry.known_types() if not name.startswith(registry.OWN)]  # ours are not the project's
    named = ", ".join(types[:NAMED]) + (f" and {len(types) - NAMED} more" if len(types) > NAMED else "")
    all_others = f"all but {', '.join(options.excluded)}" if options.excluded else "all"
    facts = {
        "queues": ", ".join(options.queues) or all_others,
        "slots": f"{slots} ({options.pool})",
        "capabilities": ", ".join(options.capabilities),
        "tasks": named or "none: write functions with @task in the module tasks of an installed app",
        **({"server": hide_password(server)} if server else addresses()),
        "to stop": f"Ctrl-C or SIGTERM; running tasks have {options.grace_seconds:g} s to end",
    }
    return {name: value for name, value in facts.items() if value}


def _check_excluded(options: Mapping[str, Any]) -> None:
    if options["server"] and options["exclude_queues"]:
        raise InvalidTaskData("exclude-queues", "exclude-queues needs the database; with --server use --queues.")
    if options["server"] and str(options["concurrency"]).startswith("auto"):
        raise InvalidTaskData("concurrency", "concurrency auto needs the database; with --server give a number.")


def _warn_of_unknown(queues: Iterable[str], what_then: str) -> None:
    """Log the names that no queue has: they may be mistyped."""
    known = set(Queue.objects.using(alias()).filter(pk__in=queues).values_list("pk", flat=True))
    for name in queues:
        if name not in known:
            logger.warning("%s %s", Queue.unknown(name, using=alias()), what_then)


def _transport(server: str | None, token: str | None) -> Any:
    if server:
        from queue_app.workers.transport.http import HttpTransport  # noqa: PLC0415 - see the import rules

        return HttpTransport(server, token or os.environ.get("TASKQUEUE_TOKEN", ""))
    from queue_app.workers.transport.base import DirectTransport  # noqa: PLC0415 - see the import rules

    return DirectTransport()


def _positive(name: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise InvalidTaskData(name, f"{name} must be at least 1, not {value}.")
    return value
