"""`manage.py demo`: run the example tasks on a folder and check the outcome."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from taskqueue_project.demo import folder, summary, verdict, workload
from taskqueue_project.terminal import terminal

TIMEOUT_SECONDS = 300.0


class Command(BaseCommand):
    """Exit code 0: all expectations met; 1: not all met; 2: the folder cannot be used."""

    help = (
        "Index the words of a folder with tasks in several bands. One task is flaky, one always fails, and one waits "
        "for a worker that does not exist. Needs running workers and a scheduler (manage.py quickstart starts them)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "--input",
            type=Path,
            default=settings.BASE_DIR,
            metavar="DIR",
            help="folder to index (default: this repository)",
        )
        add(
            "--timeout",
            type=float,
            default=TIMEOUT_SECONDS,
            metavar="SECONDS",
            help="maximum time to wait for the tasks (default: %(default)s)",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        console = terminal(self.stdout)
        try:
            found = folder.read_folder(options["input"])
        except OSError as error:
            raise CommandError(str(error), returncode=2) from error
        summary.show_folder(console, found)
        if not found.files:
            raise CommandError(f"There is no text file to index in {found.root}.", returncode=2)
        load = workload.enqueue(found)
        bar = summary.TasksBar(console)
        with bar.progress:
            ended = workload.follow(load, timeout=options["timeout"], report=bar.show)
        expectations = verdict.judge(load)
        summary.show_tasks(console, load)
        summary.show_expectations(console, expectations)
        if not ended:
            console.print(f"[red]{load.open:,} tasks had not ended after {load.seconds:.0f} s[/]; are workers running?")
        if not ended or not all(expectation.is_met for expectation in expectations):
            raise SystemExit(1)
