"""A sentence is English text, and knows what it was made of."""

import copy
import json

import pytest
from django.utils import translation

from queue_app.core.sentence import as_json, from_json, joined, listed, sentence, sentence_as, sentence_n
from queue_app.dashboard.labels import translate

STALL = joined(
    sentence(
        "%(what)s is at its limit: %(used)s of at most %(most)s run.",
        what=sentence("The queue %(name)s", name="mail"), used=1200, most=1200,
    ),
    "",
    sentence_n("%(n)s more of its kind waits behind it.", "%(n)s more of its kind wait behind it.", 1),
)  # fmt: skip


def test_as_text_it_is_english():
    assert STALL == ("The queue mail is at its limit: 1,200 of at most 1,200 run. 1 more of its kind waits behind it.")
    assert json.loads(json.dumps({"text": STALL})) == {"text": str(STALL)}
    assert translate(STALL) is STALL, "also for an English reader"


@pytest.mark.parametrize("kept", [STALL, from_json(json.loads(json.dumps(as_json(STALL)))), copy.deepcopy(STALL)])
def test_a_reader_gets_it_in_their_language_also_from_a_row(kept):
    with translation.override("de"):
        assert translate(kept) == (
            "Die Warteschlange mail ist an der Grenze: 1.200 von höchstens 1.200 laufen."
            " 1 weitere ihrer Art wartet hinter ihr."
        )


def test_a_value_that_looks_like_a_place_for_one_stays_as_it_is():
    text = sentence("The queue %(name)s", name="100%(name)s %d")
    assert text == "The queue 100%(name)s %d"
    with translation.override("de"):
        assert translate(listed([text, "%s"])) == "Die Warteschlange 100%(name)s %d, %s"


def test_numbers_are_written_as_the_language_does():
    text = sentence("Every %(seconds)s seconds", seconds=1.5)
    assert (text, sentence("Every %(seconds)s seconds", seconds=90.0)) == ("Every 1.5 seconds", "Every 90 seconds")
    with translation.override("de"):
        assert translate(text) == "Alle 1,5 Sekunden"


def test_english_may_say_it_better_than_its_template():
    text = sentence_as("Every minute (UTC)", "Cron %(cron)s (%(zone)s)", cron="* * * * *", zone="UTC")
    assert text == "Every minute (UTC)"
    with translation.override("de"):
        assert translate(text) == "Cron * * * * * (UTC)"


def test_other_text_stays_as_it_is():
    with translation.override("de"):
        assert translate("Connection refused") == "Connection refused"
        assert (joined("", ""), from_json("an old row")) == ("", "an old row")
