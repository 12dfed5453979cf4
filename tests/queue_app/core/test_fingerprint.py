"""Failures with the same cause have the same fingerprint, others do not."""

import pytest

from queue_app.core.failures import LENGTH, fingerprint, normalise, own_frames

TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/workers/executor.py", line 12, in run
    return call()
  File "/srv/app/shop/tasks.py", line {line}, in charge
    gateway.charge(order)
  File "/usr/lib/python3.13/site-packages/httpx/_client.py", line 9, in send
    raise Timeout
httpx.Timeout: no answer
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 declined", "order 4711 declined"),
        ("no answer from https://a.example/x?y=1", "no answer from https://b.example/"),
        ("user 'ina' is unknown", "user 'omar' is unknown"),
        ("row 018f8f3a-0000-7000-8000-0123456789ab is gone", "row 019abc00-0000-7000-8000-0123456789ab is gone"),
        ("the card of “Ina” expired", "the card of “Omar” expired"),
        ("declined: Ina Lee", "declined: Omar Said"),
        ("unknown customer: ina.", "unknown customer: omar."),
        ("order 17: Ina, try again", "order 4: Omar, try again"),
        ("ina@shop.example bounced", "omar@mail.shop.example bounced"),
        ("at 0x7f3a9c", "at 0x55d0aa"),
        ("line one\n  line two", "line one line two"),
    ],
)
def test_variable_parts_do_not_count(one, other):
    assert normalise(one) == normalise(other)
    assert fingerprint("shop.Declined", one) == fingerprint("shop.Declined", other)


def test_own_frames_count_without_line_numbers():
    assert own_frames(TRACEBACK.format(line=3)) == ["shop/tasks.py:charge"]
    same = [fingerprint("E", "m", TRACEBACK.format(line=line)) for line in (3, 99)]
    assert same[0] == same[1]
    elsewhere = TRACEBACK.format(line=3).replace("in charge", "in refund")
    distinct = {same[0], fingerprint("E", "m", elsewhere), fingerprint("F", "m"), fingerprint("F", "other words")}
    distinct |= {fingerprint("E", f"not paid: {why}") for why in ("the card expired", "the limit is reached")}
    assert len(distinct) == 6


@pytest.mark.parametrize("odd", ["", "\x00", "'" * 5000, '"' + "a" * 100_000, "9" * 100_000, "a\ud800b", "://" * 9999])
def test_unusual_text_has_a_fingerprint(odd):
    assert len(fingerprint(odd, odd, odd)) == LENGTH
