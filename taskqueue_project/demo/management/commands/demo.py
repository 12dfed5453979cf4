"""`manage.py demo`: run the example tasks over a folder and compare what came out with what was expected."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from taskqueue_project.demo import folder, summary, verdict, workload
from taskqueue_project.terminal import terminal

TIMEOUT_SECONDS = 300.0


class Command(BaseCommand):
    """Exit code 0 when every expected outcome came true, 1 when one did not, 2 when the folder is unusable."""

    help = (
        "Index the words of a folder with tasks in several bands, among them one that is flaky, one that always fails "
        "and one that no worker can run. Needs running workers and a scheduler (manage.py quickstart starts them)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--input",
            type=Path,
            default=settings.BASE_DIR,
            metavar="DIR",
            help="the folder to index (default: this repository)",
        )
        parser.add_argument(
            "--timeout",
            type=float,
            default=TIMEOUT_SECONDS,
            metavar="SECONDS",
            help="how long to wait for the tasks (default: %(default)s)",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Enqueue, follow, compare, show."""
        console = terminal(self.stdout)
        try:
            found = folder.read_folder(options["input"])
        except OSError as error:
            raise CommandError(str(error), returncode=2) from error
        summary.show_folder(console, found)
        if not found.files:
            raise CommandError(f"There is no text file to index in {found.root}.", returncode=2)
        load = workload.enqueue(found)
        bar = summary.Bar(console)
        with bar.progress:
            ended = workload.follow(load, timeout=options["timeout"], report=bar.show)
        findings = verdict.judge(load)
        summary.show_tasks(console, load)
        summary.show_findings(console, findings)
        if not ended:
            console.print(f"[red]{load.open:,} tasks had not ended after {load.seconds:.0f} s[/]; are workers running?")
        if not ended or not all(finding.came_true for finding in findings):
            raise SystemExit(1)
