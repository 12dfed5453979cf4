"""Tasks with callbacks for ``test_callbacks``."""

from queue_app import task
from queue_app.exceptions import Discard, Snooze

heard: list[tuple[str, str]] = []


@task(queue_name="after")
def thanks(task_id: str) -> None:
    heard.append(("thanks", task_id))


@task
def sorry(task_id: str) -> None:
    heard.append(("sorry", task_id))


@task(max_retries=0, on_success=thanks, on_failure="tests.workers.callback_tasks.sorry")
def work(how: str = "") -> str:
    if how == "snooze" and not heard:
        heard.append(("snoozed", ""))
        raise Snooze(0.001)
    if how == "discard":
        raise Discard("no")
    if how == "fail":
        raise ValueError("no")
    return how
