"""The rights in Redis that docs/how-to/own-servers.md names are enough."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from queue_app.core.states import Status
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.server import server_facts
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.repair.reconcile import Reconciler
from tests.support.engine import done, put, put_many, row, take
from tests.support.index_state import client_of

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "own-servers.md"


@pytest.fixture
def as_user(index, settings):
    """Return a function that lets the process connect as a user with the documented rights on the keys of a pattern."""
    client, own = client_of(index), settings.TASKQUEUE
    made = []

    def connect(pattern: str):
        [rules] = re.findall(r"^ACL SETUSER taskqueue (.*)$", PAGE.read_text(), re.MULTILINE)
        assert "~{taskqueue}*" in rules
        name = f"user{len(made)}-{own['KEY_PREFIX']}"
        rules = rules.replace("~{taskqueue}*", f"~{pattern}").replace("PASSWORD", "secret")
        client.execute_command("ACL", "SETUSER", name, *rules.split())
        made.append(name)
        at = urlsplit(settings.CACHES["default"]["LOCATION"])
        location = f"redis://{name}:secret@{at.netloc.rpartition('@')[2]}{at.path}"
        settings.CACHES = {**settings.CACHES, name: {**settings.CACHES["default"], "LOCATION": location}}
        settings.TASKQUEUE = {**own, "REDIS_ALIAS": name}
        return get_index()

    yield connect
    for name in made:
        client.execute_command("ACL", "DELUSER", name)


def test_the_documented_rights_are_enough(engine, index, as_user):
    limited = as_user(f"{index.keys.prefix}*")
    assert client_of(limited).execute_command("ACL", "WHOAMI") != b"default"
    assert rebuild() is not None
    hand = engine.worker()
    first, second, third = put_many(3)
    last = put(priority="low")
    cancel(second)
    tasks = take(hand, 2)
    assert [task.id for task in tasks] == [first, third]
    finish([done(task) for task in tasks])
    assert [row(task_id).status for task_id in (first, last)] == [Status.COMPLETED, Status.QUEUED]
    Reconciler().run_once()
    assert server_facts(limited).policy
    assert limited.stats() is not None


def test_a_pattern_with_the_colon_is_refused(engine, index, as_user):
    as_user(f"{index.keys.prefix}:*")
    with pytest.raises(IndexUnavailable, match=r"(?i)no permissions"):
        rebuild()
