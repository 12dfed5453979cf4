"""A search of dead letters matches only text that the reader may see."""

import pytest

from queue_app.core.redaction import MASK
from queue_app.services.read import dead_letters as module
from queue_app.services.read.dead_letters import DeadLetterFilter, preview
from tests.support.dead_letters import make_dead_letter


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("LOGIN of ann", {"secret", "repeated"}),
        ("hunter2", {"repeated"}),
        ("hunter2-canary", set()),
        ("canary", set()),
        ("with h", {"repeated"}),
        ("s3cr3t", set()),
        (MASK, {"secret", "repeated", "named"}),  # it is stored masked: secrets cannot be found by trying
    ],
)
def test_a_text_search_sees_only_displayed_text(engine, override, text, found):
    override(module, SEARCH_BATCH=2)
    worker = engine.worker()
    secret = {"parameters": {"password": "hunter2-canary"}}
    letters = {
        "secret": make_dead_letter(worker, "Login of ann with hunter2-canary failed", **secret),
        "repeated": make_dead_letter(worker, "Login of ann with hunter2-canary failed; hunter2 with her", **secret),
        "other": make_dead_letter(worker, "no luck"),
        "named": make_dead_letter(worker, "token=s3cr3t refused"),
    }
    assert set(preview(DeadLetterFilter(text=text)).sample) == {letters[name].id for name in found}
