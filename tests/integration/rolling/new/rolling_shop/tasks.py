"""The tasks after it: one has another signature, the other another name."""

import os
from pathlib import Path

from queue_app import task


def note(line: str) -> None:
    """Append a line to the log of the test."""
    with Path(os.environ["ROLLING_LOG"]).open("a") as log:
        log.write(f"{line}\n")


def to_cents(_version, args, _kwargs):
    """Turn the arguments of version 1, (order, euros), into those of version 2."""
    return [args[0], round(args[1] * 100)], {}


@task(version=2, upgrade=to_cents)
def charge(order: int, cents: int) -> None:
    note(f"charge {order} {cents} new")


@task(aliases=["rolling_shop.tasks.mail_receipt"])
def send_receipt(order: int) -> None:
    note(f"receipt {order} new")
