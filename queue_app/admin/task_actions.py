"""Actions on one task, from its page."""

import uuid
from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from queue_app.admin.bulk import TaskBulkMixin, priority_changed
from queue_app.admin.columns import permission
from queue_app.admin.edit_parameters import EditParametersMixin
from queue_app.admin.forms import posted_reason
from queue_app.admin.mixins import action_page, object_page
from queue_app.admin.task_detail import pretty
from queue_app.core.priorities import parse_band
from queue_app.core.redaction import is_sealed
from queue_app.core.states import PENDING, WAITING, Status
from queue_app.dashboard.translation import translate_error
from queue_app.encryption import hides, is_on
from queue_app.exceptions import TaskQueueError
from queue_app.models import DeadLetter, Task, TaskPayload
from queue_app.models.dead_letter import OPEN_NAME
from queue_app.services import cancel, reprioritise
from queue_app.services.control.encrypted import decrypt
from queue_app.services.lifecycle.actions import RETRIABLE, retry, run_again, run_now

REPLAY_PERMISSION: Final = "queue_app.replay_deadletter"


class TaskActionsMixin(EditParametersMixin[Task], TaskBulkMixin):
    """Actions that call the services; staff never edit the rows themselves."""

    has_decrypt_permission = permission("view_encrypted")

    @action_page("cancel", "cancel")
    def cancel_view(self, request: HttpRequest, task: Task, reason: str) -> str:
        running = cancel(task.pk) is Status.EXECUTING
        logged = "Asked to stop while executing." if running else "Cancelled."
        self.audit(request, [task], logged, action="cancel", before={"status": task.status}, reason=reason)
        return _("The task is running; its worker was asked to stop it.") if running else _("The task is cancelled.")

    @action_page("priority", "reprioritise")
    def priority_view(self, request: HttpRequest, task: Task, reason: str) -> str:
        band = parse_band(request.POST.get("priority"))
        old, new = task.band.label, band.label
        reprioritise(task.pk, band)
        self.audit(
            request, [task], priority_changed(old, new), action="reprioritise", reason=reason,
            before={"priority": old}, after={"priority": new},
        )  # fmt: skip
        return _("The priority is now %(band)s.") % {"band": new}

    @action_page("retry", "retry")
    def retry_view(self, request: HttpRequest, task: Task, reason: str) -> str:
        retry(task.pk, by=request.user.get_username())
        self.audit(
            request, [task], "Queued again.", action="retry", reason=reason,
            before={"status": task.status}, after={"status": "queued"},
        )  # fmt: skip
        return _("The task is queued again, with all its retries.")

    @action_page("run_now", "retry")
    def run_now_view(self, request: HttpRequest, task: Task, reason: str) -> str:
        run_now(task.pk)
        self.audit(
            request, [task], "Queued before its time.", action="run_now", reason=reason,
            before={"run_after": str(task.run_after)}, after={"status": "queued"},
        )  # fmt: skip
        return _("The task is queued now.")

    def has_run_again_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may see parameters, and run tasks with others."""
        return self.has_retry_permission(request) and self.may_view_payload(request)

    @object_page("run_again", "run_again")
    def run_again_view(self, request: HttpRequest, task: Task) -> HttpResponse:

        def act(edited: dict[str, Any], reason: str) -> tuple[str, uuid.UUID]:
            new = run_again(task.pk, **edited)
            self.audit(
                request, [task], f"Run again as {new.id}.", action="run_again", reason=reason,
                after={"task": str(new.id)},
            )  # fmt: skip
            return _("A copy of the task is enqueued. This is its page."), new.id

        return self.edit_parameters(
            request, task, task.pk, act, title=_("Run again with edited parameters"), submit=_("Run again"),
            explanation=_("A new task of this type, queue and priority will run with these parameters."),
        )  # fmt: skip

    @object_page("decrypt", "decrypt", post=True)
    def decrypt_view(self, request: HttpRequest, task: Task) -> HttpResponse:
        """Show the data of an encrypted task once; the audit log says who has seen them."""
        try:
            reason = posted_reason(request)
            record = partial(self.audit, request, [task], "Decrypted.", action="decrypt", reason=reason)
            shown = decrypt(task.pk, record)
        except TaskQueueError as error:
            self.message_user(request, translate_error(error), messages.ERROR)
            return HttpResponseRedirect(self.url_of("change", task.pk))
        parts = [(name, pretty(value)) for name, value in shown.items() if value not in ([], {}, None)]
        return self.own_page(request, "task/decrypted.html", _("Decrypted data"), original=task, parts=parts)

    def buttons(self, request: HttpRequest, task: Task, letter: DeadLetter | None) -> dict[str, Any]:
        """Return which buttons a task's page has. A button that replays the dead letter makes one to retry needless."""
        may_retry = self.has_retry_permission(request)
        may_replay = letter is not None and letter.state == OPEN_NAME and request.user.has_perm(REPLAY_PERMISSION)
        return {
            "may_cancel": task.status in PENDING
            and task.cancel_requested_at is None
            and self.has_cancel_permission(request),
            "may_reprioritise": task.status in WAITING and self.has_reprioritise_permission(request),
            "may_run_now": task.status == Status.SCHEDULED and may_retry,
            "may_retry": task.status in RETRIABLE and may_retry and not may_replay,
            "may_decrypt": is_on() and self.has_decrypt_permission(request) and _has_secrets(task),
            "may_run_again": self.has_run_again_permission(request),
        }


def _has_secrets(task: Task) -> bool:
    """Return whether data of a task are encrypted, also if its type no longer is."""
    stored = TaskPayload.objects.filter(pk=task.pk).values_list("args", flat=True)
    return hides(task.task_type) or is_sealed(stored.first())
