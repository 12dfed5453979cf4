"""Endpoints for workers without access to PostgreSQL and Redis; they require a worker token."""

import math
import uuid
from functools import partial
from typing import Any, Final

from django.utils import timezone
from rest_framework.request import Request

from queue_app import conf
from queue_app.api.base import ApiView, accepts, parse_id, route
from queue_app.api.waiting import Database
from queue_app.core.records import AttemptKey, ClaimedTask, Outcome, ProgressReport, Usage
from queue_app.exceptions import InvalidTaskData, TokenRefused, WorkerNotFound
from queue_app.index import WorkerMessage
from queue_app.models import WorkerToken
from queue_app.models.worker import WorkerStatus
from queue_app.remote import serializers, tokens, workers as remote
from queue_app.services.lifecycle.claim import give_back

#: Status of a result -> the field of its body that counts.
_PARTS: Final = {"completed": "result", "failed": "error", "snoozed": "snooze", "throttled": "throttle"}


#: Time between two polls of a worker that does not wait in them.
POLL_INTERVAL_MS: Final = 1000


class WorkerView(ApiView):
    """An endpoint for the bearer of a worker token; users cannot call it."""

    authentication_classes = ()
    permission_classes = ()
    security_scheme = "workerToken"
    token: WorkerToken

    def get_authenticators(self) -> list[Any]:
        """Return none: a worker token does not belong to a user."""
        return []

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse a request without a valid token before reading anything else."""
        self.database = Database(request._request)  # noqa: SLF001 - the wrapped request of Django
        scheme, _, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            raise TokenRefused("This needs a worker token: Authorization: Bearer tqw_….")
        self.token = tokens.authenticate(secret.strip())
        super().initial(request, *args, **kwargs)

    def worker(self, text: str) -> uuid.UUID:
        """Return the worker's id in the address."""
        return parse_id(text, WorkerNotFound("This token has no such worker."))

    def idle(self, request: Request) -> remote.Waiting:
        """Return what makes the block in which a request of this token waits."""
        return partial(self.waiting, request, str(self.token.id))


class RegisterView(WorkerView):
    @accepts(body=serializers.WorkerRegistration, id="register_worker", answer="RegisteredWorker", status=201)
    def post(self, request: Request) -> dict[str, Any]:
        """Register a worker.

        The answer holds the worker's id, the interval of its heartbeats, and the waiting task types that it lacks.
        """
        worker = remote.register(self.token, remote.Registration(**self.read_body(request)))
        missed = conf.get().worker.missed_heartbeats
        answer = {
            "missed_heartbeats": missed,
            "poll_interval_ms": POLL_INTERVAL_MS,
            "unserved": remote.unserved(worker),
        }
        return serializers.REGISTERED(worker) | answer


class PollView(WorkerView):
    @accepts(body=serializers.Poll, id="poll", answer="ClaimedTasks", problems=(409,))
    def post(self, request: Request, worker_id: str) -> dict[str, Any]:
        """Claim tasks for a worker.

        Returns up to ``available_capacity`` tasks. If there is none, the request waits up to ``wait`` seconds for the
        first one, unless too many requests wait already, in this process (503) or with this token (429). A worker that
        does not wait polls again after ``poll_interval_ms``. If the worker should drain, ``drain`` is true, and it gets
        no task. ``notified`` asks for a heartbeat now: a task was cancelled, or the worker should drain. If more tasks
        can start after a known time, because a rate then allows it, this worker polls again after ``next_start_ms``.
        While a rebuild loads tasks that the poll may have missed, ``loading`` is true. A task with ``start_within_ms``
        passed a rate or a minimum delay: start it within this time after you sent the poll, else report it as
        ``released``.
        """
        found = remote.poll(self.token, self.worker(worker_id), **self.read_body(request), waiting=self.idle(request))
        tasks = [serializers.claimed(task, found.began) for task in found.tasks]
        next_start = None if found.next_start is None else math.ceil(found.next_start * 1000)
        news = {"drain": found.drain, "notified": found.notified, "next_start_ms": next_start, "loading": found.loading}
        return {"tasks": tasks, "poll_interval_ms": POLL_INTERVAL_MS} | news


class WaitView(WorkerView):
    @accepts(body=serializers.WakeRequest, id="wait_for_call", answer="WorkerCall", problems=(409,))
    def post(self, request: Request, worker_id: str) -> dict[str, Any]:
        """Wait until there may be work for a worker.

        Returns whether the queue woke the worker within ``wait`` seconds, and whether it was ``notified``: then a
        heartbeat brings news, such as a cancelled task. Too many waiting requests are refused as in a poll.
        """
        seconds = self.read_body(request)["wait"]
        call = remote.wait_for_call(self.token, self.worker(worker_id), seconds, self.idle(request))
        return {"called": call is not None, "notified": call is WorkerMessage.NOTIFICATION}


class ResultView(WorkerView):
    @accepts(body=serializers.Report, id="report", answer="ReportedResults", problems=(409,))
    def post(self, request: Request, worker_id: str) -> dict[str, Any]:
        """Report how attempts ended.

        The body holds one outcome, or many in ``results``. An outcome without ``attempt`` belongs to the attempt under
        which the worker holds the task; a worker that may hold a task twice sends the number. A single outcome whose
        attempt no longer holds the task is answered with 409; of many, the answer lists which were accepted and which
        were refused. A repetition of the same outcome is accepted and says ``replayed``: the first answer may have been
        lost.
        """
        worker = self.worker(worker_id)
        items = self.read_body(request)
        unnumbered = [item["task_id"] for item in items if item["attempt"] is None]
        known = remote.attempts_of(worker, unnumbered) if unnumbered else {}
        reported = {
            (item["task_id"], item["attempt"] or known.get(item["task_id"], 0), item["leased_at"]): item
            for item in items[::-1]
        }
        held = remote.held(self.token, worker, list(reported))
        released = [key for key in held if reported[key]["status"] == "released"]
        ended = [key for key in held if key not in released]
        accepted = remote.report([_outcome(held[key], reported[key]) for key in ended])
        accepted |= give_back([held[key] for key in released])
        replayed = [key for key, item in reported.items() if key[0] not in accepted and _is_repeated(worker, key, item)]
        if "results" not in self._content:
            only = next(iter(reported))
            if only[0] not in accepted and not replayed:
                raise remote.stale_lease(only[0], worker)
            return {"accepted": True} | ({"replayed": True} if replayed else {})
        return {
            "accepted": [key[0] for key in reported if key[0] in accepted or key in replayed],
            "replayed": [task_id for task_id, *_ in replayed],
            "refused": [
                {"task_id": task_id, "attempt": attempt, "code": "stale_lease"}
                for task_id, attempt, stamp in reported
                if task_id not in accepted and (task_id, attempt, stamp) not in replayed
            ],
        }


class StepView(WorkerView):
    @accepts(body=serializers.StepCall, id="steps", answer="StoredSteps", problems=(409,))
    def post(self, request: Request, worker_id: str) -> dict[str, Any]:
        """Read or store the steps of a running task, or let it wait for a signal.

        The answer lists the steps that were read, or the step as it was stored. If the worker waits for a signal and
        the step is not done, the worker ends the attempt with the status ``waiting``.
        """
        body = self.read_body(request)
        found = remote.steps(
            self.token, self.worker(worker_id), (body["task_id"], body["attempt"], body["leased_at"]), body["action"],
            body.get("step"), body.get("payload_fields"),
        )  # fmt: skip
        return {"steps": [serializers.step(one) for one in found]}


class HeartbeatView(WorkerView):
    @accepts(body=serializers.WorkerHeartbeat, id="heartbeat", answer="HeartbeatReply", problems=(409,))
    def post(self, request: Request, worker_id: str) -> dict[str, Any]:
        """Send the heartbeat of a worker.

        ``running`` names all tasks that the worker holds, and may report their progress. The answer names the tasks to
        stop, the tasks that the worker has lost, and whether it should drain. If PostgreSQL has restarted since the
        last heartbeat, ``again`` asks for another one at once. Tasks of the worker that PostgreSQL had forgotten then
        belong to it again. ``stacks`` names tasks whose ``stack``, where they are now, the next heartbeat may report.
        """
        worker = self.worker(worker_id)
        body = self.read_body(request)
        running = body.pop("running")
        types = body.pop("task_types", None)
        body["draining"] |= body.pop("status", "") == WorkerStatus.DRAINING
        if types is not None:
            remote.change_task_types(self.token, worker, types)
        keeps_lines = conf.get().task_logs.max_lines
        reports = [
            ProgressReport(worker_id=worker, **report | ({} if keeps_lines else {"lines": None})) for report in running
        ]
        usage = Usage(**{name: body.pop(name, None) for name in Usage._fields})
        found = remote.heartbeat(self.token, worker, reports, usage=usage, **body)
        status = {"acknowledged": True, "status": "ok", "cancel_requested": bool(found.cancel)}
        return status | serializers.HEARTBEAT_REPLY(found)


class DeregisterView(WorkerView):
    @accepts(body=serializers.Deregistration, id="deregister_worker", answer="Acknowledgement", problems=(409,))
    def post(self, request: Request, worker_id: str) -> dict[str, Any]:
        """Deregister a worker.

        Tasks that the worker still holds return to the queue.
        """
        worker = self.worker(worker_id)
        remote.deregister(self.token, worker, tasks_done=self.read_body(request)["tasks_done"])
        return {"status": "ok"}


def _is_repeated(worker: uuid.UUID, key: AttemptKey, reported: dict[str, Any]) -> bool:
    match reported["status"]:
        case "completed":
            return remote.is_repeated(worker, key, result=reported.get("result"))
        case "failed":
            return remote.is_repeated(worker, key, failure=reported["error"])
    return False


def _outcome(claimed: ClaimedTask, reported: dict[str, Any]) -> Outcome:
    """Return the outcome that a worker reported; raise ``InvalidTaskData`` for a throttle by key without a key."""
    given = {name: reported.get(name) if reported["status"] == status else None for status, name in _PARTS.items()}
    if given["throttle"] is not None and given["throttle"].scope == "key" and not claimed.concurrency_key:
        message = f"Task {claimed.id} has no concurrency_key: throttle its type or its queue."
        raise InvalidTaskData("throttle", message, code="required")
    return Outcome(
        claimed, claimed.started_at, timezone.now(), given["result"],
        failure=given["error"], snooze=given["snooze"], throttle=given["throttle"],
        waits=reported["status"] == "waiting",
    )  # fmt: skip


#: What ``queue_app.urls`` gets.
ADDRESSES: Final = (
    route("internal/workers/register", RegisterView, "worker-register"),
    route("internal/workers/<worker_id>/poll", PollView, "worker-poll"),
    route("internal/workers/<worker_id>/wait", WaitView, "worker-wait"),
    route("internal/workers/<worker_id>/result", ResultView, "worker-result"),
    route("internal/workers/<worker_id>/steps", StepView, "worker-steps"),
    route("internal/workers/<worker_id>/heartbeat", HeartbeatView, "worker-heartbeat"),
    route("internal/workers/<worker_id>/deregister", DeregisterView, "worker-deregister"),
)
