"""The status page of one task for the end user who waits for it.

``redirect(result)`` leads to it. Its address is signed. A task with a ``user`` is shown to that user only; one without
is shown to everyone who has the address.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.signing import BadSignature
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views import View

from queue_app import registry
from queue_app.backend.results import address_of, status_signer
from queue_app.codecs import real_result
from queue_app.core.redaction import redact
from queue_app.core.states import TERMINAL, Status
from queue_app.encryption import opened_if
from queue_app.encryption.displayed import displayed_payload
from queue_app.exceptions import InvalidTransition, TaskQueueError
from queue_app.models import Task, TaskPayload, TaskProgress, TaskResult
from queue_app.services import cancel
from queue_app.services.control.audit import API, record
from queue_app.sql.database import alias, atomic


def status_of(task: Task, request: HttpRequest | None = None) -> dict[str, Any]:
    """Return what the status page of a task shows, as the context of ``queue_app/status_fragment.html``."""
    function = registry.known(task.task_type)
    name = task.task_type.rpartition(".")[2] if function is None else function.func.__name__
    progress = None
    if task.status == Status.EXECUTING:
        progress = TaskProgress.objects.using(alias()).filter(pk=task.pk).first()
    if progress is not None:
        payload = TaskPayload.objects.using(alias()).filter(pk=task.pk).first()
        progress.message = redact(progress.message, displayed_payload(task.task_type, payload)[0])
    is_owner = bool(task.user) and request is not None and task.user == request.user.get_username()
    return {
        "task": task,
        "title": name.replace("_", " ").capitalize(),
        "url": address_of(task.pk),
        "has_ended": task.status in TERMINAL,
        "progress": progress,
        "result_url": _result_url(task, request),
        "may_cancel": is_owner and task.status not in TERMINAL and task.cancel_requested_at is None,
    }


def _result_url(task: Task, request: HttpRequest | None) -> str:
    """Return the address that the function returned, as text or as ``{"url": …}``, if it is one of this site."""
    if task.status != Status.COMPLETED:
        return ""
    stored = TaskResult.objects.using(alias()).filter(pk=task.pk).first()
    try:
        found = None if stored is None else real_result(opened_if(stored.value, task.task_type))
    except TaskQueueError:
        return ""
    url = found.get("url") if isinstance(found, dict) else found
    hosts = {request.get_host()} if request is not None else set()
    return url if isinstance(url, str) and "/" in url and url_has_allowed_host_and_scheme(url, hosts) else ""


class StatusView(View):
    """The status page; with ``?part`` only the part that changes, for the script of the page."""

    http_method_names = ("get", "head", "post")

    def get(self, request: HttpRequest, key: str) -> HttpResponse:
        """Show the status page of a task."""
        task = _find(request, key)
        if isinstance(task, HttpResponse):
            return task
        template = "queue_app/status_fragment.html" if "part" in request.GET else "queue_app/status.html"
        response = render(request, template, status_of(task, request))
        response["Cache-Control"] = "no-store"
        response["Referrer-Policy"] = "same-origin"
        response["X-Task-Ended"] = "1" if task.status in TERMINAL else "0"
        return response

    def post(self, request: HttpRequest, key: str) -> HttpResponse:
        """Cancel the task of a status page."""
        task = _find(request, key)
        if isinstance(task, HttpResponse):
            return task
        if status_of(task, request)["may_cancel"]:
            with suppress(InvalidTransition), atomic():  # it ended a moment ago, as the page shows
                cancel(task.pk)
                record("task.cancel", "task", [task.pk], by=request.user.get_username(), via=API)
        return HttpResponseRedirect(address_of(task.pk))


def _find(request: HttpRequest, key: str) -> Task | HttpResponse:
    try:
        task_id = status_signer().unsign(key)
    except BadSignature:
        raise Http404 from None
    task: Task | None = Task.objects.using(alias()).filter(pk=task_id).first()
    if task is None:
        raise Http404
    if task.user and not request.user.is_authenticated:
        return redirect_to_login(request.get_full_path())
    if task.user and task.user != request.user.get_username():
        raise Http404
    return task
