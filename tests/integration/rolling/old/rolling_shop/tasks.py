"""The tasks before the deployment."""

import os
from pathlib import Path

from queue_app import task


def note(line: str) -> None:
    """Append a line to the log of the test."""
    with Path(os.environ["ROLLING_LOG"]).open("a") as log:
        log.write(f"{line}\n")


@task
def charge(order: int, euros: float) -> None:
    note(f"charge {order} {round(euros * 100)} old")


@task
def mail_receipt(order: int) -> None:
    note(f"receipt {order} old")
