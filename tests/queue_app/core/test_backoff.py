"""retry_delay: it doubles with every failure, up to a cap."""

import pytest

from queue_app.core.failures import retry_delay


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(1, 20), (2, 40), (3, 80), (4, 160), (11, 20_480), (12, 21_600), (63, 21_600), (10**6, 21_600)],
)
def test_the_defaults(failures, seconds):
    assert retry_delay(failures) == seconds


@pytest.mark.parametrize(
    ("failures", "base", "cap", "seconds"), [(1, 0.5, 60, 0.5), (3, 0.5, 60, 2), (9, 0.5, 60, 60), (1, 100, 60, 60)]
)
def test_own_base_and_cap(failures, base, cap, seconds):
    assert retry_delay(failures, base=base, cap=cap) == seconds


@pytest.mark.parametrize("failures", [0, -1])
def test_failures_count_from_one(failures):
    with pytest.raises(ValueError, match="counts from 1"):
        retry_delay(failures)
