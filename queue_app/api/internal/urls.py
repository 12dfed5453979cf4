"""Addresses for remote workers; each with or without a slash at its end."""

from __future__ import annotations

from django.urls import URLPattern, re_path

from queue_app.api.base import NotFoundView
from queue_app.api.internal import views

_WORKER = r"^internal/workers/(?P<worker_id>[^/]+)"
patterns: list[URLPattern] = [
    re_path(r"^internal/workers/register/?\Z", views.RegisterView.as_view(), name="worker-register"),
    re_path(rf"{_WORKER}/poll/?\Z", views.PollView.as_view(), name="worker-poll"),
    re_path(rf"{_WORKER}/wait/?\Z", views.WaitView.as_view(), name="worker-wait"),
    re_path(rf"{_WORKER}/result/?\Z", views.ResultView.as_view(), name="worker-result"),
    re_path(rf"{_WORKER}/heartbeat/?\Z", views.HeartbeatView.as_view(), name="worker-heartbeat"),
    re_path(rf"{_WORKER}/deregister/?\Z", views.DeregisterView.as_view(), name="worker-deregister"),
    re_path(r"^internal/workers/", NotFoundView.as_view(), name="worker-missing"),
]
