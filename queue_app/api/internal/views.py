"""Endpoints for workers without access to PostgreSQL and Redis; they require a worker token."""

import uuid
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from queue_app import conf
from queue_app.api.base import ApiView, parse_id
from queue_app.api.internal import parsing
from queue_app.exceptions import TokenRefused, WorkerNotFound
from queue_app.models import WorkerToken
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.repair import remote, tokens


class WorkerView(ApiView):
    """An endpoint for the bearer of a worker token; users cannot call it."""

    authentication_classes = ()
    permission_classes = ()
    token: WorkerToken

    def get_authenticators(self) -> list[Any]:
        """Return none: a worker token does not belong to a user."""
        return []

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse a request without a valid token before reading anything else."""
        scheme, _, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            raise TokenRefused("This needs a worker token: Authorization: Bearer tqw_….")
        self.token = tokens.authenticate(secret.strip())
        super().initial(request, *args, **kwargs)

    def worker(self, text: str) -> uuid.UUID:
        """Return the worker's id in the address."""
        return parse_id(text, WorkerNotFound("This token has no such worker."))


class RegisterView(WorkerView):
    """Register a worker."""

    def post(self, request: Request) -> Response:
        """Register a worker.

        The answer holds the worker's id and the interval of its heartbeats.
        """
        worker = remote.register(self.token, parsing.registration(self.json_body()))
        missed = conf.get().worker.missed_heartbeats
        return Response(parsing.REGISTERED(worker) | {"missed_heartbeats": missed}, status=201)


class PollView(WorkerView):
    """Claim tasks for a worker."""

    def post(self, request: Request, worker_id: str) -> Response:
        """Claim tasks for a worker.

        Returns up to ``want`` tasks. If there is none, the request waits up to ``wait`` seconds for the first one.
        """
        want, wait, holding = parsing.polling(self.json_body(required=False))
        tasks = remote.poll(self.token, self.worker(worker_id), want=want, wait=wait, holding=holding)
        return Response({"tasks": [parsing.task(task) for task in tasks]})


class WaitView(WorkerView):
    """Wait until there may be work for a worker."""

    def post(self, request: Request, worker_id: str) -> Response:
        """Wait until there may be work for a worker.

        Returns whether the queue woke the worker within ``wait`` seconds.
        """
        seconds = parsing.seconds_to_wait(self.json_body())
        return Response({"called": remote.wait_for_call(self.token, self.worker(worker_id), seconds)})


class ResultView(WorkerView):
    """Report how attempts ended."""

    def post(self, request: Request, worker_id: str) -> Response:
        """Report how attempts ended.

        The body holds one outcome, or many in ``results``. A single outcome whose attempt no longer holds the task
        is answered with 409; of many, the answer lists which were accepted and which were refused.
        """
        worker = self.worker(worker_id)
        body = self.json_body()
        reported = {(item["task_id"], item["attempt"]): item for item in reversed(parsing.results(body))}
        held = {(task.id, task.attempt): task for task in remote.held(self.token, worker, list(reported))}
        released = [task for key, task in held.items() if reported[key]["status"] == "released"]
        ended = [task for task in held.values() if task not in released]
        accepted = remote.report([parsing.outcome(task, reported[task.id, task.attempt]) for task in ended])
        accepted |= give_back(released)
        if "results" not in body:
            (only, _attempt) = next(iter(reported))
            if only not in accepted:
                raise remote.stale_lease(only, worker)
            return Response({"accepted": True})
        return Response(
            {
                "accepted": [task_id for task_id, _ in reported if task_id in accepted],
                "refused": [
                    {"task_id": task_id, "attempt": attempt, "code": "stale_lease"}
                    for task_id, attempt in reported
                    if task_id not in accepted
                ],
            }
        )


class HeartbeatView(WorkerView):
    """Receive the heartbeat of a worker."""

    def post(self, request: Request, worker_id: str) -> Response:
        """Send the heartbeat of a worker.

        The body may report the progress of running tasks. The answer names the tasks to stop, the tasks that the
        worker has lost, and whether it should drain.
        """
        worker = self.worker(worker_id)
        body = self.json_body(required=False)
        reports, draining, done = parsing.heartbeat(body, worker)
        types = parsing.served_types(body)
        if types is not None:
            remote.change_task_types(self.token, worker, types)
        found = remote.heartbeat(self.token, worker, reports, draining=draining, tasks_done=done)
        status = {"status": "ok", "cancel_requested": bool(found.cancel)}
        return Response(status | parsing.HEARTBEAT_REPLY(found))


class DeregisterView(WorkerView):
    """Deregister a worker."""

    def post(self, request: Request, worker_id: str) -> Response:
        """Deregister a worker.

        Tasks that the worker still holds return to the queue.
        """
        worker = self.worker(worker_id)
        _, _, done = parsing.heartbeat(self.json_body(required=False), worker)
        remote.deregister(self.token, worker, tasks_done=done)
        return Response({"status": "ok"})
