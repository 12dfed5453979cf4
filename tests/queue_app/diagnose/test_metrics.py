"""The connection for the metrics is kept, and replaced when it has broken."""

import threading

import pytest
from django.db import connections
from django.db.backends.signals import connection_created

from queue_app.core.probe import Probe
from queue_app.diagnose import health as metrics
from queue_app.sql.database import fetch_all
from queue_app.workers import sessions

LIMIT = 60.0


@pytest.fixture
def probe(rows, override, monkeypatch):
    """A probe that records the server process of each answer."""
    monkeypatch.setattr(metrics, "_is_for_tests", lambda database: False)
    override(connections.settings["default"], CONN_MAX_AGE=300)
    gone, pids = threading.Event(), []

    def ask():
        read = metrics._read_rows()
        raw = connections["default"].connection
        pids.append(raw.info.backend_pid if raw else None)
        return read

    def leave():
        connections["default"].close()
        gone.set()

    probe = Probe(ask, linger=LIMIT, on_end=leave)
    probe.pids = pids
    yield probe
    probe._linger = probe._asker._linger = 0.0
    probe.ask().result(LIMIT)
    assert gone.wait(LIMIT)


def test_the_connection_is_kept(probe):
    assert None not in [probe.ask().result(LIMIT) for _ in range(3)]
    assert len(set(probe.pids)) == 1


@pytest.mark.parametrize("checked", [True, False])
def test_a_broken_connection_is_replaced(probe, override, checked):
    override(connections.settings["default"], CONN_HEALTH_CHECKS=checked)
    assert probe.ask().result(LIMIT) is not None
    assert fetch_all("SELECT pg_terminate_backend(%s, 5000)", [probe.pids[0]]) == [(True,)]
    assert probe.ask().result(LIMIT) is not None
    assert probe.pids[1] not in (None, probe.pids[0])


def test_conn_max_age_applies(probe, override, request):
    if connection_created.disconnect(dispatch_uid=sessions.__name__):  # workers of other tests keep their sessions
        request.addfinalizer(sessions.watch_sessions)
    override(connections.settings["default"], CONN_MAX_AGE=0)
    assert probe.ask().result(LIMIT) is not None
    assert probe.pids == [None]


def test_the_answer_is_none_when_a_new_connection_fails_too(probe, monkeypatch):
    assert probe.ask().result(LIMIT) is not None
    fetch_all("SELECT pg_terminate_backend(%s, 5000)", [probe.pids[0]])
    monkeypatch.setattr(metrics.row_stats, "read", lambda: fetch_all("SELECT pg_terminate_backend(pg_backend_pid())"))
    assert probe.ask().result(LIMIT) is None


def test_the_connection_to_a_test_database_is_closed(rows):
    found = []
    assert Probe(lambda: (metrics._read_rows(), found.append(connections["default"].connection))).ask().result(LIMIT)
    assert found == [None]
