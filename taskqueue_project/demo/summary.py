"""Print a run of the demo: its progress, and tables at the end."""

from collections import Counter
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from queue_app.models import Task as TaskRow

from .folder import Folder
from .verdict import Expectation
from .workload import Workload

OUTCOME_STYLE = {"completed": "green", "dead_letter": "red", "failed": "red", "queued": "yellow"}


class TasksBar:
    """A progress bar for all tasks that should end."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._id: TaskID = self.progress.add_task("running tasks", total=None)

    def show(self, workload: Workload) -> None:
        self.progress.update(self._id, total=workload.total, completed=workload.total - workload.open)


def show_folder(console: Console, folder: Folder) -> None:
    """Print the number of files to index and of skipped files."""
    size = sum(size for _, size in folder.files)
    console.print(f"Indexing [bold]{len(folder.files):,}[/] text files ({size:,} bytes) in {escape(str(folder.root))}")
    if folder.skipped:
        reasons = ", ".join(f"{count:,} {escape(reason)}" for reason, count in folder.skipped.most_common())
        console.print(f"Skipped {folder.skipped.total():,}: {reasons}", style="dim")


def show_tasks(console: Console, workload: Workload) -> None:
    """Print a line for each group of tasks."""
    table = Table(title=f"Run {workload.run.pk}: {workload.total:,} tasks in {workload.seconds:.1f} s")
    for heading in ("task", "band"):
        table.add_column(heading)
    for heading in ("tasks", "outcome", "median wait", "median run"):
        table.add_column(heading, justify="right")
    groups = [(group.name, group.rows()) for group in workload.groups]
    for name, rows in sorted(groups, key=lambda pair: (pair[1][0].priority if pair[1] else 0, pair[0])):
        table.add_row(name, *_cells(rows))
    console.print(table)


def show_expectations(console: Console, expectations: list[Expectation]) -> None:
    """Print which expectations are met."""
    table = Table(title="Expected outcomes", show_header=False)
    for expectation in expectations:
        mark = "[green]✓[/]" if expectation.is_met else "[red]✗[/]"
        table.add_row(mark, expectation.name, escape(expectation.detail))
    console.print(table)


def _cells(rows: list[TaskRow]) -> list[str]:
    counts = Counter(row.status for row in rows)
    outcome = ", ".join(
        f"[{OUTCOME_STYLE.get(status, 'white')}]{count:,} {status.replace('_', ' ')}[/]"
        for status, count in counts.most_common()
    )
    waits = [(row.started_at - row.queued_at).total_seconds() for row in rows if row.started_at and row.queued_at]
    runs = [(row.finished_at - row.started_at).total_seconds() for row in rows if row.finished_at and row.started_at]
    band = rows[0].get_priority_display() if rows else "?"
    return [str(band), f"{len(rows):,}", outcome, _milliseconds(waits), _milliseconds(runs)]


def _milliseconds(seconds: list[float]) -> str:
    return f"{median(seconds) * 1000:,.0f} ms" if seconds else "-"
