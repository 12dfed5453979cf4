"""Many secrets are hidden in texts, in time that grows with the texts and not with the number of secrets."""

import random
import time

import pytest

from queue_app.core.redaction import FEW, MASK, Search, Secrets, redact, redact_value, secrets_of


def one_by_one(text, secrets):
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 300])
def test_finds_what_a_search_one_after_another_finds(count):
    numbers = random.Random(count)
    words = ["".join(numbers.choices("abcdefgh", k=numbers.randint(4, 30))) for _ in range(count)]
    gaps = ["".join(numbers.choices("xyz ", k=numbers.randint(1, 9))) for _ in range(400)]
    text = "".join(gap + numbers.choice(words) + gap for gap in gaps)
    assert Search(words).hide(text) == one_by_one(text, words)


@pytest.mark.parametrize("many", [0, 100])
def test_the_longer_of_two_secrets_that_begin_alike_is_hidden_whole(many):
    words = [f"noise{number:04}" for number in range(many)]
    words += ["hunter", "hunter2-and-more", "a-long-secret-of-words", "a-long-secret-of-words-and-more", "zzz"]
    text = "hunter hunter2-and-more! a-long-secret-of-words-and-more? a-long-secret-of-words. zzz"
    assert Search(words).hide(text) == f"{MASK} {MASK}! {MASK}? {MASK}. {MASK}"


def test_a_long_secret_that_was_cut_is_hidden_too_among_many():
    words = [f"secret-number-{number:020}" for number in range(100)]
    assert "0000000000" not in Search(words).hide(f"… {words[7][:30]}")


def test_time_is_linear():
    """9 800 secrets in a result that repeats them all took 16 s when they were searched for one after another."""
    values = [f"value-{number:020}" for number in range(9_800)]
    secrets = secrets_of({"token": values})
    assert isinstance(secrets, Secrets)
    began = time.process_time()
    shown = redact_value({"said": values, "text": " ".join(values)}, secrets)
    assert redact(" ".join(values), secrets) == " ".join([MASK] * len(values))
    spent = time.process_time() - began
    assert set(shown["said"]) == {MASK}
    assert spent < 3, "about 0.3 s; a quadratic search takes 16 s"


def test_alike_secrets_of_all_lengths_take_no_longer():
    values = ["a" * length for length in range(4, 700)]
    secrets = secrets_of({"token": values})
    began = time.process_time()
    assert "a" not in redact("a" * 200_000 + "\n" + "a" * 5, secrets)
    assert time.process_time() - began < 3
