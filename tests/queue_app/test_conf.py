"""TASKQUEUE: types, defaults, override_settings, the environment, and problems with hints."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from queue_app import conf


@pytest.fixture(autouse=True)
def fresh():
    """Load the settings anew before and after each test, because they include the environment."""
    conf.reset()
    yield
    conf.reset()


@pytest.mark.parametrize("prefix", ["a b", "{a}", "a*", "a?", "[a]", "a\n", "\x1b", "é", "a/b", "p" * 101])
def test_prefixes_with_special_characters_are_refused(settings, prefix):
    settings.TASKQUEUE = {"KEY_PREFIX": prefix}
    _, [problem] = conf.load()
    assert problem.key == "KEY_PREFIX"
    assert "letters, digits" in problem.hint


@pytest.mark.parametrize("prefix", ["taskqueue", "shop:tasks.v2_x-1", "p" * 100])
def test_prefixes(settings, prefix):
    settings.TASKQUEUE = {"KEY_PREFIX": prefix}
    assert conf.get().key_prefix == prefix


def test_defaults():
    with override_settings(TASKQUEUE={}):
        settings = conf.get()
    assert (settings.redis_alias, settings.database_alias, settings.key_prefix) == ("default", "default", "taskqueue")
    assert settings.task_modules == ["tasks"]
    assert (settings.payload.max_bytes, settings.payload.max_depth, settings.payload.max_nodes) == (262_144, 32, 10_000)
    assert (settings.retry.base_seconds, settings.retention.dead_letter_seconds) == (20, 30 * 86_400)


def test_settings_follow_override_settings():
    with override_settings(TASKQUEUE={"WORKER": {"CONCURRENCY": 9}}):
        assert conf.get().worker.concurrency == 9
        with override_settings(TASKQUEUE={"WORKER": {"CONCURRENCY": 2}}):
            assert conf.get().worker.concurrency == 2
        assert conf.get().worker.concurrency == 9


def test_the_project_need_not_have_the_setting(settings):
    del settings.TASKQUEUE
    assert conf.get().key_prefix == "taskqueue"


# settings -> (key, part of the message, part of the hint)
WRONG = {
    "mistyped key": ({"REDIS_ALAIS": "x"}, "REDIS_ALAIS", "is not a setting", "Did you mean 'REDIS_ALIAS'?"),
    "mistyped key in a section": (
        {"WORKER": {"CONCURENCY": 1}},
        "WORKER.CONCURENCY",
        "is not a setting",
        "Did you mean 'CONCURRENCY'?",
    ),
    "nothing alike": ({"ZZZ": 1}, "ZZZ", "is not a setting", "Known keys: REDIS_ALIAS"),
    "key is no text": ({1: 2}, "1", "is not a setting", "Known keys"),
    "section is no dict": ({"WORKER": 5}, "WORKER", "is 5", "Make it a dict with keys CONCURRENCY"),
    "number too small": ({"WORKER": {"CONCURRENCY": 0}}, "WORKER.CONCURRENCY", "is 0", "whole number of at least 1"),
    "number is a fraction": ({"WORKER": {"CONCURRENCY": 1.5}}, "WORKER.CONCURRENCY", "is 1.5", "whole number"),
    "number is true": ({"WORKER": {"CONCURRENCY": True}}, "WORKER.CONCURRENCY", "is True", "whole number"),
    "number is not one": ({"RETRY": {"BASE_SECONDS": float("nan")}}, "RETRY.BASE_SECONDS", "is nan", "a number"),
    "text is empty": ({"KEY_PREFIX": ""}, "KEY_PREFIX", "is ''", "non-empty string"),
    "list is a text": ({"TASK_MODULES": "tasks"}, "TASK_MODULES", "is 'tasks'", "list of strings"),
    "owner with two stars": ({"REQUESTS": {"USER": "*:*"}}, "REQUESTS.USER", "is '*:*'", "at most one *"),
    "switch is a text": ({"REQUESTS": {"ENABLED": "yes"}}, "REQUESTS.ENABLED", "is 'yes'", "True or False"),
    "no dict at all": ([], "", "is a list", "Make it a dict"),
}


@pytest.mark.parametrize("case", WRONG)
def test_problems_have_hints(case):
    value, key, message, hint = WRONG[case]
    with override_settings(TASKQUEUE=value):
        settings, [problem] = conf.load()
        with pytest.raises(ImproperlyConfigured, match="TASKQUEUE"):
            conf.get()
    assert problem.key == key
    assert message in problem.message
    assert hint in problem.hint
    assert settings == conf.TaskQueueSettings(), "defaults stand in"


def test_all_problems_are_reported_at_once():
    with override_settings(TASKQUEUE={"A": 1, "WORKER": {"B": 2, "CONCURRENCY": 0}}):
        assert len(conf.load()[1]) == 3
        with pytest.raises(ImproperlyConfigured, match=r"A.*WORKER\.B.*WORKER\.CONCURRENCY"):
            conf.get()


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("TASKQUEUE__REDIS_ALIAS", "queue", lambda s: s.redis_alias == "queue"),
        ("TASKQUEUE__WORKER__CONCURRENCY", "7", lambda s: s.worker.concurrency == 7),
        ("TASKQUEUE__RETRY__BASE_SECONDS", "0.5", lambda s: s.retry.base_seconds == 0.5),
        ("TASKQUEUE__EVENTS__MAX_LENGTH", "0", lambda s: s.events.max_length == 0),
        ("TASKQUEUE__REQUESTS__ENABLED", "yes", lambda s: s.requests.enabled),
        ("TASKQUEUE__TASK_MODULES", "tasks, jobs", lambda s: s.task_modules == ["tasks", "jobs"]),
    ],
)
def test_the_environment_comes_first(monkeypatch, name, text, read):
    monkeypatch.setenv(name, text)
    with override_settings(TASKQUEUE={"REDIS_ALIAS": "other", "WORKER": {"CONCURRENCY": 2, "GRACE_SECONDS": 3}}):
        settings = conf.get()
    assert read(settings)
    assert settings.worker.grace_seconds == 3, "the rest of the section stays"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TASKQUEUE__WORKER__CONCURRENCY", "many"),
        ("TASKQUEUE__WORKER__CONCURRENCY", "1.5"),
        ("TASKQUEUE__WORKER__CONCURRENCY", ""),
        ("TASKQUEUE__WORKER__CONCURENCY", "1"),
        ("TASKQUEUE__WORKER__A__B", "1"),
        ("TASKQUEUE__RETRY__BASE_SECONDS", "nan"),
        ("TASKQUEUE__WORKER", "1"),
        ("TASKQUEUE__", "1"),
    ],
)
def test_a_mistake_in_the_environment_is_a_problem_too(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with override_settings(TASKQUEUE={}):
        assert len(conf.load()[1]) == 1
