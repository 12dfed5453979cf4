"""What doctor and metrics say about the place in which claims find tasks, and how idle workers are called."""

import pytest
from django.db import connections

from queue_app.diagnose.doctor import examine
from queue_app.diagnose.health import check, collect
from queue_app.metrics.exposition import families, render

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def without_redis(settings):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "INDEX": "rows"}


def wake_ups():
    return [finding.message for finding in examine() if finding.check == "wake-ups"]


def test_the_doctor_says_how_idle_workers_are_called(without_redis, monkeypatch):
    [found] = wake_ups()
    assert "LISTEN" in found
    monkeypatch.setitem(connections["default"].settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    [found] = wake_ups()
    assert "once a second" in found


def test_with_redis_the_doctor_says_nothing_of_it():
    assert wake_ups() == []


@pytest.mark.parametrize("way", ["redis", "rows"])
def test_the_metrics_say_where_claims_find_tasks(settings, way):
    settings.TASKQUEUE = {**settings.TASKQUEUE, "INDEX": way}
    assert f'index_way{{way="{way}"}} 1' in render(families(collect())).decode()


def test_a_database_that_is_away_is_named_and_redis_is_not(without_redis, monkeypatch):
    monkeypatch.setitem(connections["default"].settings_dict, "PORT", "1")
    connections["default"].close()
    found = [str(each) for each in check(within=30).reasons.values()]
    found += [finding.message for finding in examine()]
    assert any("database does not answer" in each for each in found)
    assert not [each for each in found if "Redis" in each or "check failed" in each]
