"""How long a failed task waits before it is tried again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

DEFAULT_BASE_SECONDS: Final = 20.0
DEFAULT_CAP_SECONDS: Final = 6 * 3600.0


def retry_delay(
    failures: int,
    *,
    base: float = DEFAULT_BASE_SECONDS,
    cap: float = DEFAULT_CAP_SECONDS,
    jitter: Callable[[float, float], float] | None = None,
) -> float:
    """Return the seconds to wait after the ``failures``-th failure: ``base * 2^(failures - 1)``, at most ``cap``.

    ``jitter(0, delay)`` picks a time up to that, so that tasks which failed together do not
    come back together ("full jitter", as in ``random.uniform``).
    """
    if failures < 1:
        raise ValueError(f"failures counts from 1, not {failures}")
    exponent = min(failures - 1, 62)  # 2^62 seconds is past every cap; keeps the product finite
    delay = float(min(base * 2**exponent, cap))
    return jitter(0.0, delay) if jitter else delay
