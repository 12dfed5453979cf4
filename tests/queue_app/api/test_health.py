"""Health: public, in time, and without details."""

from __future__ import annotations

import socket
import threading
import time
from datetime import datetime, timedelta

import pytest
from django.core.cache import caches
from django.utils import timezone

from queue_app.core.probe import Probe
from queue_app.core.reasons import say
from queue_app.diagnose import health
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.upkeep.jobs import take_lead
from queue_app.sql import snapshot
from tests.support.engine import leave_redis

LIMIT = 30.0


@pytest.fixture(autouse=True)
def fresh_probes(monkeypatch):
    """Give each test probes of its own."""
    monkeypatch.setattr(health, "database", Probe(health.database._question))
    monkeypatch.setattr(health, "index", {way: Probe(probe._question) for way, probe in health.index.items()})


@pytest.fixture
def silent_port():
    """Listen on a port, accept connections, and send nothing."""
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            while True:
                try:
                    accepted.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
    for connection in accepted:
        connection.close()


def test_live(anonymous):
    for path in ("/healthz", "/healthz/"):
        assert anonymous.get(path).data == {"status": "ok"}


def test_ready(anonymous, rebuilt):
    take_lead("me", 15)
    for path in ("/readyz", "/readyz/", "/readyz?require=index,scheduler"):
        response = anonymous.get(path)
        assert response.status_code == 200
        assert response.data == {
            "status": "ok", "database": "ok", "index": "ok", "scheduler": "ok",
            "index_way": {"way": "redis", "since": None, "redis_is_away": False}, "reasons": [],
        }  # fmt: skip
        assert response.headers["Cache-Control"] == "no-store"


def test_ready_without_the_index(anonymous, index_away):
    response = anonymous.get("/readyz")
    assert response.status_code == 200
    assert (response.data["status"], response.data["index"]) == ("ok", "not ok")
    assert response.data["reasons"] == [say("index_unreachable"), say("no_scheduler")]


def test_ready_while_claims_read_the_rows(anonymous, rebuilt, index_away):
    take_lead("me", 15)
    leave_redis()
    response = anonymous.get("/readyz?require=index,scheduler")
    assert (response.status_code, response.data["index"], response.data["reasons"]) == (200, "ok", [])
    way = response.data["index_way"]
    assert (way["way"], way["redis_is_away"]) == ("rows", True)
    assert timezone.now() - datetime.fromisoformat(way["since"]) < timedelta(minutes=1)
    assert "cache" not in str(response.data), "addresses are not public"


def test_required_parts_must_work(anonymous, rebuilt):
    response = anonymous.http.get("/readyz?require=index,scheduler")
    assert response.status_code == 503
    assert response.json()["reasons"] == [say("no_scheduler")]
    take_lead("me", 15)
    snapshot.raise_generation()
    response = anonymous.http.get("/readyz?require=index")
    assert response.status_code == 503
    assert "of another generation than the rows" in response.json()["reasons"][0]
    assert anonymous.http.get("/readyz").status_code == 200


@pytest.fixture
def rebuilt(transactional_db):
    """Commit the rows: the probes use connections of their own."""
    assert rebuild() is not None


def test_an_index_that_hangs_does_not_hang_the_answer(anonymous, settings, silent_port):
    location = f"redis://127.0.0.1:{silent_port}/0"
    settings.CACHES = {
        **settings.CACHES,
        "silent": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": location,
            "OPTIONS": {"SOCKET_TIMEOUT": 2 * LIMIT},
        },
    }
    settings.TASKQUEUE = {**settings.TASKQUEUE, "REDIS_ALIAS": "silent"}
    began = time.monotonic()
    response = anonymous.get("/readyz")
    assert time.monotonic() - began < LIMIT
    assert (response.data["status"], response.data["database"], response.data["index"]) == ("ok", "ok", "not ok")
    caches["silent"].close()


def test_a_database_that_hangs_is_not_ready(anonymous, settings, silent_port, databases):
    databases["silent"] = databases["default"] | {"HOST": "127.0.0.1", "PORT": str(silent_port)}
    settings.TASKQUEUE = {**settings.TASKQUEUE, "DATABASE_ALIAS": "silent"}
    began = time.monotonic()
    response = anonymous.http.get("/readyz")
    assert time.monotonic() - began < LIMIT
    assert (response.status_code, response.json()["database"]) == (503, "not ok")
    assert response.json()["reasons"][0] == "The database does not answer, or its tables are missing."
