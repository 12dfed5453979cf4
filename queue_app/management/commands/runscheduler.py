"""``manage.py runscheduler``: run the scheduler loop."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from queue_app.management.servers import ServerCommand


class Command(ServerCommand):
    """Parse the options and hand over to the scheduler loop."""

    help = (
        "Queue what is due, return the tasks of dead workers, keep the index true to the rows. "
        "Several may run; one leads. Exit codes: 0 stopped, 2 usage, 4 PostgreSQL or Redis unreachable."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--with-maintenance",
            action="store_true",
            help="also run promotion, expiry, statistics and purge every minute; for set-ups without Celery",
        )

    def handle(self, **options: Any) -> None:
        """Run until told to stop."""
        from workers.scheduler import Scheduler  # noqa: PLC0415 - see the import rules

        self.check_settings()
        self.prepare()
        Scheduler(with_maintenance=options["with_maintenance"]).run()
