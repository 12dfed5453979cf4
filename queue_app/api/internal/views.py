"""Endpoints for workers without access to PostgreSQL and Redis; only worker tokens open them."""

from __future__ import annotations

import uuid
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from queue_app import conf
from queue_app.api.base import ApiView
from queue_app.api.fields import task_id
from queue_app.api.internal import parsing
from queue_app.exceptions import InvalidTaskData, TokenRefused, WorkerNotFound
from queue_app.models import WorkerToken
from queue_app.services.repair import remote, tokens


class WorkerView(ApiView):
    """An endpoint for the bearer of a worker token; users, whoever they are, have no business here."""

    authentication_classes = ()
    permission_classes = ()
    token: WorkerToken

    def get_authenticators(self) -> list[Any]:
        """Return none: the token is no user."""
        return []

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse whoever has no token in force, before anything else is read."""
        scheme, _, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            raise TokenRefused("This needs a worker token: Authorization: Bearer tqw_….")
        self.token = tokens.authenticate(secret.strip())
        super().initial(request, *args, **kwargs)

    def worker(self, text: str) -> uuid.UUID:
        """Return the worker's id in the address."""
        try:
            return task_id(text, "worker_id")
        except InvalidTaskData:
            raise WorkerNotFound("This token has no such worker.") from None


class RegisterView(WorkerView):
    """Make a worker known."""

    def post(self, request: Request) -> Response:
        """Return the id under which it works, and how often it shall say that it lives."""
        worker = remote.register(self.token, parsing.registration(self.json_body(request)))
        return Response(
            {
                "worker_id": worker.id,
                "queues": worker.queues,
                "capabilities": worker.capabilities,
                "heartbeat_seconds": worker.heartbeat_seconds,
                "missed_heartbeats": conf.get().worker.missed_heartbeats,
            },
            status=201,
        )


class PollView(WorkerView):
    """Give a worker tasks."""

    def post(self, request: Request, worker_id: str) -> Response:
        """Return up to ``want`` tasks; wait up to ``wait`` seconds for the first."""
        want, wait, holding = parsing.polling(self.json_body(request, required=False))
        tasks = remote.poll(self.token, self.worker(worker_id), want=want, wait=wait, holding=holding)
        return Response({"tasks": [parsing.task(task) for task in tasks]})


class WaitView(WorkerView):
    """Let a worker that claims by itself sleep."""

    def post(self, request: Request, worker_id: str) -> Response:
        """Return whether it was called within ``wait`` seconds."""
        seconds = parsing.seconds_to_wait(self.json_body(request))
        return Response({"called": remote.wait_for_call(self.token, self.worker(worker_id), seconds)})


class ResultView(WorkerView):
    """Take how attempts ended."""

    def post(self, request: Request, worker_id: str) -> Response:
        """Record one outcome (409 when the attempt holds nothing), or ``results``, each answered for itself."""
        worker = self.worker(worker_id)
        body = self.json_body(request)
        reported = {(item["task_id"], item["attempt"]): item for item in reversed(parsing.results(body))}
        held = {(task.id, task.attempt): task for task in remote.held(self.token, worker, list(reported))}
        back = [task for key, task in held.items() if reported[key]["status"] == "released"]
        ended = [task for task in held.values() if task not in back]
        accepted = remote.report([parsing.outcome(task, reported[task.id, task.attempt]) for task in ended])
        remote.release(back)
        accepted |= {task.id for task in back}
        if "results" not in body:
            (only, _attempt) = next(iter(reported))
            if only not in accepted:
                raise remote.stale(only, worker)
            return Response({"accepted": True})
        return Response(
            {
                "accepted": [key[0] for key in reported if key[0] in accepted],
                "refused": [
                    {"task_id": key[0], "attempt": key[1], "code": "stale_lease"}
                    for key in reported
                    if key[0] not in accepted
                ],
            }
        )


class HeartbeatView(WorkerView):
    """Hear that a worker lives."""

    def post(self, request: Request, worker_id: str) -> Response:
        """Return which tasks it shall stop, which are not its own any more, and whether it shall leave."""
        worker = self.worker(worker_id)
        body = self.json_body(request, required=False)
        notes, draining, done = parsing.pulse(body, worker)
        types = parsing.learnt(body)
        if types is not None:
            remote.change_task_types(self.token, worker, types)
        found = remote.heartbeat(self.token, worker, notes, draining=draining, tasks_done=done)
        return Response(
            {
                "status": "ok",
                "cancel": found.cancel,
                "cancel_requested": bool(found.cancel),
                "lost": found.lost,
                "drain": found.drain,
                "unserved": found.unserved,
            }
        )


class DeregisterView(WorkerView):
    """Let a worker leave."""

    def post(self, request: Request, worker_id: str) -> Response:
        """Give back what it still holds."""
        _, _, done = parsing.pulse(self.json_body(request, required=False), self.worker(worker_id))
        remote.deregister(self.token, self.worker(worker_id), tasks_done=done)
        return Response({"status": "ok"})
