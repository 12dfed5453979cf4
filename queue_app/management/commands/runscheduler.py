"""``manage.py runscheduler``: run the scheduler loop."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from queue_app.logs import console
from queue_app.management.servers import ServerCommand, add_log_options, addresses, checked_port, report_eviction


class Command(ServerCommand):
    """Parse the options and run the scheduler loop."""

    help = (
        "Queue due tasks, requeue the tasks of dead workers, repair the index from the rows. "
        "Several schedulers may run; one leads. Exit codes: 0 stopped, 2 usage, 4 PostgreSQL or Redis unreachable."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--with-maintenance",
            action="store_true",
            help="also run promotion, expiry, statistics and purge every minute, for setups without Celery",
        )
        add("--health-port", type=int, metavar="PORT", help="answer GET /livez with the state of the loop on this port")
        add_log_options(parser)

    def handle(self, **options: Any) -> None:
        from queue_app.workers.health import HealthMonitor, PortUnavailable  # noqa: PLC0415 - see the import rules
        from queue_app.workers.options import default_name, release  # noqa: PLC0415
        from queue_app.workers.scheduler import STALE_SECONDS, Scheduler  # noqa: PLC0415 - see the import rules

        port = checked_port(options)
        self.check_settings()
        self.prepare()
        self.print_log(options)
        upkeep = "every minute" if options["with_maintenance"] else "only what Celery has not done for some minutes"
        console.announce(
            f"task queue {release()}, scheduler {default_name()}",
            {"maintenance": upkeep, **addresses(), "to stop": "Ctrl-C or SIGTERM"},
        )
        report_eviction()
        scheduler = Scheduler(with_maintenance=options["with_maintenance"])
        try:
            HealthMonitor([scheduler.loop_heartbeat], STALE_SECONDS, port).start()
        except PortUnavailable as error:
            raise CommandError(f"--health-port: {error}", returncode=2) from None
        scheduler.run()
