"""/metrics: who may read it, and that it works without a server."""

import pytest

from queue_app import conf
from queue_app.core.probe import Probe
from queue_app.diagnose import health as metrics

ELSEWHERE = {"REMOTE_ADDR": "203.0.113.9"}


@pytest.fixture
def access(settings):
    """Set who may read."""

    def allow(**options: str) -> None:
        settings.TASKQUEUE = {**settings.TASKQUEUE, "METRICS": {name.upper(): value for name, value in options.items()}}

    return allow


def test_this_machine_may_read(anonymous):
    for path in ("/metrics", "/metrics/"):
        response = anonymous.http.get(path, headers={"Accept": "application/openmetrics-text"})
        assert response.status_code == 200
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert b'\nup{component="redis"} 1.0\n' in response.content
        assert b"# TYPE django_http_requests_before_middlewares_total counter" in response.content


@pytest.mark.parametrize(
    "extra", [ELSEWHERE, {"HTTP_X_FORWARDED_FOR": "127.0.0.1"}, {"HTTP_FORWARDED": "for=127.0.0.1"}]
)
def test_remote_callers_must_authenticate(anonymous, extra):
    assert anonymous.http.get("/metrics", **extra).status_code == 401


def test_staff_may_read_from_anywhere_and_users_may_not(admin_client, client, django_user_model):
    assert admin_client.get("/metrics", **ELSEWHERE).status_code == 200
    client.force_login(django_user_model.objects.create_user("somebody"))
    assert client.get("/metrics", **ELSEWHERE).status_code == 403


def test_a_token(anonymous, access):
    access(access="token", token="sesame")
    right, wrong = ({"HTTP_AUTHORIZATION": f"Bearer {token}"} for token in ("sesame", "sesam"))
    assert anonymous.http.get("/metrics", **ELSEWHERE, **right).status_code == 200
    assert anonymous.http.get("/metrics", **ELSEWHERE, **wrong).status_code == 401
    assert anonymous.http.get("/metrics").status_code == 401  # a local address is not enough


def test_without_a_configured_token_every_token_is_refused(anonymous, access):
    access(access="token")
    assert anonymous.http.get("/metrics", HTTP_AUTHORIZATION="Bearer ").status_code == 401


def test_open(anonymous, access):
    access(access="open")
    assert anonymous.http.get("/metrics", **ELSEWHERE).status_code == 200


def test_an_unavailable_redis_is_reported(anonymous, monkeypatch):
    monkeypatch.setitem(metrics._stats, conf.REDIS, Probe(lambda: 1 / 0))
    content = anonymous.http.get("/metrics").content
    assert b'up{component="redis"} 0.0' in content
    assert b'up{component="postgresql"} 1.0' in content
