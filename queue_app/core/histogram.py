"""Histograms of times; each bucket is half as long again as the one before. They can be added, and give percentiles."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from typing import Final

_FIRST, _RATIO, _COUNT = 0.001, 1.5, 46
#: Upper bounds of the buckets in seconds: from 1 ms to about 25 hours. The last bucket has none.
BOUNDS: Final = tuple(_FIRST * _RATIO**n for n in range(_COUNT))


def bucket_of(seconds: float) -> int:
    """Return the bucket of a time, as PostgreSQL's ``width_bucket`` does for times between two bounds."""
    return bisect_left(BOUNDS, seconds)


def bounds_of(bucket: int) -> tuple[float, float]:
    """Return the bounds of a bucket in seconds."""
    low = BOUNDS[bucket - 1] if bucket else 0.0
    return low, BOUNDS[min(bucket, _COUNT - 1)] if bucket < _COUNT else BOUNDS[-1] * _RATIO


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return a percentile in seconds, off by at most a quarter; ``None`` without times."""
    total = sum(counts.values())
    if not total:
        return None
    wanted, buckets = share * total, sorted(counts)
    for bucket, below in zip(buckets, accumulate(counts[bucket] for bucket in buckets), strict=True):
        if below >= wanted:
            low, high = bounds_of(bucket)
            inside = (wanted - (below - counts[bucket])) / counts[bucket]
            return low + (high - low) * max(0.0, min(1.0, inside))
    return None


def as_json(counts: Mapping[int, int]) -> dict[str, int]:
    """Return the counts as JSON can store them."""
    return {str(bucket): count for bucket, count in counts.items() if count}


def from_json(stored: Mapping[str, int]) -> Counter[int]:
    """Return the counts that ``as_json`` stored."""
    return Counter({int(bucket): count for bucket, count in stored.items()})
