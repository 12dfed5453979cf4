"""Shows a run of the demo in the terminal: progress while it runs, tables at its end."""

from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from queue_app.models import Task as TaskRow

from .folder import Folder
from .verdict import Finding
from .workload import Group, Workload, outcomes

OUTCOME_STYLE = {"completed": "green", "dead_letter": "red", "failed": "red", "queued": "yellow"}


class Bar:
    """A progress bar over all tasks that are expected to end."""

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
        """Move the bar to where the workload stands."""
        self.progress.update(self._id, total=workload.total, completed=workload.total - workload.open)


def show_folder(console: Console, folder: Folder) -> None:
    """Say what will be indexed and what will not."""
    size = sum(size for _, size in folder.files)
    console.print(f"Indexing [bold]{len(folder.files):,}[/] text files ({size:,} bytes) in {escape(str(folder.root))}")
    if folder.skipped:
        reasons = ", ".join(f"{count:,} {escape(reason)}" for reason, count in folder.skipped.most_common())
        console.print(f"Skipped {folder.skipped.total():,}: {reasons}", style="dim")


def show_tasks(console: Console, workload: Workload) -> None:
    """Print a line for each kind of task and band."""
    table = Table(title=f"Run {workload.run.pk}: {workload.total:,} tasks in {workload.seconds:.1f} s")
    for heading in ("task", "band"):
        table.add_column(heading)
    for heading in ("tasks", "outcome", "median wait", "median run"):
        table.add_column(heading, justify="right")
    rows = [(_rows(group), group) for group in workload.groups]
    for found, group in sorted(rows, key=lambda pair: (pair[0][0].priority if pair[0] else 0, pair[1].name)):
        table.add_row(group.name, *_cells(found, group))
    console.print(table)


def show_findings(console: Console, findings: list[Finding]) -> None:
    """Print which expectations came true."""
    table = Table(title="Expected outcomes", show_header=False)
    for finding in findings:
        mark = "[green]✓[/]" if finding.came_true else "[red]✗[/]"
        table.add_row(mark, finding.name, escape(finding.detail))
    console.print(table)


def _rows(group: Group) -> list[TaskRow]:
    return list(TaskRow.objects.filter(pk__in=group.ids))


def _cells(rows: list[TaskRow], group: Group) -> list[str]:
    counts = outcomes(group)
    outcome = ", ".join(
        f"[{OUTCOME_STYLE.get(status, 'white')}]{count:,} {status.replace('_', ' ')}[/]"
        for status, count in counts.most_common()
    )
    waits = [(row.started_at - row.queued_at).total_seconds() for row in rows if row.started_at and row.queued_at]
    runs = [(row.finished_at - row.started_at).total_seconds() for row in rows if row.finished_at and row.started_at]
    band = rows[0].get_priority_display() if rows else "?"
    return [str(band), f"{len(group.ids):,}", outcome, _milliseconds(waits), _milliseconds(runs)]


def _milliseconds(seconds: list[float]) -> str:
    return f"{median(seconds) * 1000:,.0f} ms" if seconds else "-"
