"""The wait before a retry."""

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

    ``jitter(0, delay)``, such as ``random.uniform``, picks a shorter wait, so that tasks that
    failed together are not retried together ("full jitter").
    """
    if failures < 1:
        raise ValueError(f"failures counts from 1, not {failures}")
    exponent = min(failures - 1, 62)  # 2^62 s exceeds every cap, and the product stays finite
    delay = float(min(base * 2**exponent, cap))
    return jitter(0.0, delay) if jitter else delay
