"""Settings of the encryption: bad ones are reported without the keys that they hold."""

import pytest

from queue_app import conf, encryption
from queue_app.checks import check_encryption
from queue_app.registry import type_of
from tests.workers.secret_tasks import echo, plain

FIRST = "first:" + 42 * "a" + "A"


@pytest.mark.parametrize("entry", ["nonsense", "id:short", FIRST.replace("first", "two words"), f"{FIRST}x"])
def test_a_bad_key_is_reported_without_being_repeated(settings, entry):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": [entry]}}
    (problem,) = check_encryption()
    assert "entry 1" in problem.msg
    assert entry not in problem.msg


def test_a_setting_of_another_shape_does_not_repeat_its_value(settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": FIRST}}
    (problem,) = conf.load()[1]
    assert FIRST not in f"{problem}{problem.hint}"


def test_a_process_without_keys_hides_the_texts(settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "ENCRYPTION": {"KEYS": [], "TASKS": [type_of(echo)]}}
    assert encryption.hides(type_of(echo))
    assert not encryption.hides(type_of(plain))
