"""Which scheduler leads, and the wake-up calls that it repeats."""

from __future__ import annotations

from queue_app.index import get_index

LOCK = "scheduler"


def take_lead(token: str, seconds: float) -> bool:
    """Take or renew the leadership for so long; return whether ``token`` leads. Raises ``IndexUnavailable``."""
    return get_index().hold(LOCK, token, seconds)


def resign(token: str) -> None:
    """Give the leadership up, if ``token`` has it. Raises ``IndexUnavailable``."""
    get_index().hold(LOCK, token, 0)


def wake_forgotten() -> int:
    """Wake an idle worker of every profile that has work: a call may have gone to one that died."""
    return get_index().tick()
