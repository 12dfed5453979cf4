"""The system check of the declared schedules."""

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error

from queue_app.checks import broken_modules, check, has_tasks
from queue_app.schedules import declared
from queue_app.schedules.edit import problem_of


@check("taskqueue")
def check_schedules(**_: Any) -> Iterator[CheckMessage]:
    """Report schedules that the code declares with invalid values (E013)."""
    if broken_modules() or not has_tasks():
        return
    for name, declaration in sorted(declared().items()):
        if (problem := problem_of(declaration.values)) is not None:
            yield Error(
                f"The schedule {name!r} is declared with an invalid {problem.field}: {problem}",
                hint="Mend it where it is declared: @schedule, or TASKQUEUE['SCHEDULES']. Until then it is not stored.",
                id="queue_app.E013",
            )
