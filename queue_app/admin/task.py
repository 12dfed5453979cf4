"""The pages of tasks. Staff never edit a task by hand; they cancel, reprioritise or run it again."""

import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, cast

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.forms.widgets import Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app.admin import filters
from queue_app.admin.arguments import EditForm, NewTaskForm
from queue_app.admin.bulk import TaskBulkMixin, priority_changed
from queue_app.admin.forms import column, permission, posted_reason, two_lines
from queue_app.admin.mixins import (
    NO_STORE,
    RECENT,
    QueueAppAdmin,
    ReadOnlyAdmin,
    action_page,
    object_page,
    page,
    with_workers,
)
from queue_app.admin.saved_views import SavedViewsMixin
from queue_app.admin.signals import TaskSignalMixin
from queue_app.admin.task_detail import in_short, load_detail, pretty, progress_and_logs
from queue_app.core.options import FILTERS
from queue_app.core.priorities import Band, parse_band
from queue_app.core.records import NewTask
from queue_app.core.redaction import is_sealed
from queue_app.core.states import PENDING, WAITING, Status
from queue_app.dashboard import labels
from queue_app.encryption import hides, is_on
from queue_app.encryption.displayed import displayed_payload
from queue_app.exceptions import TaskQueueError
from queue_app.models import AuditEntry, DeadLetter, Task, TaskPayload, TaskStack, Workflow
from queue_app.models.dead_letter import OPEN_NAME
from queue_app.models.querysets import TaskQuerySet
from queue_app.services import cancel, reprioritise
from queue_app.services.control.encrypted import decrypt
from queue_app.services.enqueue.store import submit
from queue_app.services.lifecycle import stacks
from queue_app.services.lifecycle.actions import RETRIABLE, retry, run_again, run_now
from queue_app.services.read.dead_letters import displayed_parameters
from queue_app.services.read.inspect import set_effective_bands
from queue_app.services.read.search import named

# The page on which staff edit the parameters of a task before it runs again.


class EditParametersMixin[M: Task | DeadLetter](QueueAppAdmin[M]):
    """A page with a task's parameters, secrets masked; a mask that stays keeps its value."""

    def edit_parameters(  # noqa: PLR0913 - the page, and its texts
        self,
        request: HttpRequest,
        found: M,
        task_id: uuid.UUID,
        act: Callable[[dict[str, Any], str], tuple[str, uuid.UUID]],
        *,
        title: str,
        submit: str,
        explanation: str,
    ) -> HttpResponse:
        """Show the form; once posted, call ``act(edited, reason)`` in a transaction.

        ``edited`` has ``parameters`` and ``args``, as the services take them. ``act`` returns a message and the id of
        the page to go to.
        """
        displayed = displayed_parameters(task_id)
        if displayed is None:
            return self.gone(request, str(found.pk))
        args, parameters = displayed
        form = EditForm(request.POST or None, found.task_type, args, parameters)

        def edit(values: dict[str, Any]) -> HttpResponse:
            done, target = act({name: values.get(name) for name in ("parameters", "args")}, values["reason"])
            self.message_user(request, done, messages.SUCCESS)
            return HttpResponseRedirect(self.url_of("change", target))

        context = {"original": found, "form": form, "submit": submit, "explanation": explanation}
        page = self.own_page(request, "deadletter/edit.html", title, **context)
        return self.act_by_form(request, form, edit, "parameters") or page


# Actions on one task, from its page.

REPLAY_PERMISSION: Final = "queue_app.replay_deadletter"


class TaskActionsMixin(EditParametersMixin[Task], TaskBulkMixin):
    """Actions that call the services; staff never edit the rows themselves."""

    has_decrypt_permission = permission("view_encrypted")
    has_submit_permission = permission("add_task")  # of the API, too

    def _of_cancel(self, _request: HttpRequest, task: Task) -> list[Any]:
        if task.workflow_id is None or task.status not in PENDING:
            return []
        running = [_("Its worker is asked to stop it.")] if task.status == Status.EXECUTING else []
        return [*running, _("It belongs to a workflow: tasks that wait for it do not run.")]

    @action_page("cancel", "cancel", label=_lazy("Cancel task"), consequences=_of_cancel)
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
            request, task, task.pk, act, title=_("Run again with edited arguments"), submit=_("Run again"),
            explanation=_("A new task of this type, queue and priority will run with these arguments."),
        )  # fmt: skip

    has_stack_permission = permission("view_stack")

    @action_page("stack", "stack")
    def stack_view(self, request: HttpRequest, task: Task, reason: str) -> str:
        stacks.ask(task.pk)
        self.audit(request, [task], "Asked for its stack.", action="stack", reason=reason)
        return _("The worker was asked where the task is now.")

    def stack_of(self, request: HttpRequest, task: Task) -> TaskStack | None:
        """Return the stack that staff have asked for, for those who may see it."""
        return stacks.read(task) if self.has_stack_permission(request) else None

    def may_follow(self, request: HttpRequest) -> bool:
        """Return whether the user may see a part of what the page shows of a running task."""
        return self.may_view_payload(request) or self.has_stack_permission(request)

    @page("new/", "new", permission="submit")
    def new_view(self, request: HttpRequest) -> HttpResponse:
        form = NewTaskForm(request.POST or None, request.GET.dict(), request.user)

        def act(values: dict[str, Any]) -> HttpResponse:
            new = NewTask(
                task_type=values["task_type"], parameters=values["parameters"], queue=values["queue"] or None,
                priority=values["priority"] or None, user=request.user.get_username(),
            )  # fmt: skip
            task = Task.objects.get(pk=submit(new).id)
            self.audit(request, [task], "Submitted.", action="submit", reason=values["reason"])
            self.message_user(request, _("The task is enqueued. This is its page."), messages.SUCCESS)
            return HttpResponseRedirect(self.url_of("change", task.pk))

        hint = _("It is enqueued at once, for you. Its page then shows why it waits, and what becomes of it.")
        page = self.own_page(request, "form_page.html", _("New task"), form=form, submit=_("Enqueue"), hint=hint)
        return self.act_by_form(request, form, act) or page

    @object_page("decrypt", "decrypt", post=True)
    def decrypt_view(self, request: HttpRequest, task: Task) -> HttpResponse:
        """Show the data of an encrypted task once; the audit log says who has seen them."""
        try:
            reason = posted_reason(request)
            record = partial(self.audit, request, [task], "Decrypted.", action="decrypt", reason=reason)
            shown = decrypt(task.pk, record)
        except TaskQueueError as error:
            self.message_user(request, labels.translate_error(error), messages.ERROR)
            return HttpResponseRedirect(self.url_of("change", task.pk))
        parts = [(name, pretty(value)) for name, value in shown.items() if value not in ([], {}, None)]
        return self.own_page(request, "task/decrypted.html", _("Decrypted data"), original=task, parts=parts)

    def buttons(self, request: HttpRequest, task: Task, letter: DeadLetter | None) -> dict[str, Any]:
        """Return which buttons a task's page has. Those that replay its dead letter stand for others that run it."""
        may_retry = self.has_retry_permission(request)
        may_replay = letter is not None and letter.state == OPEN_NAME and request.user.has_perm(REPLAY_PERMISSION)
        return {
            "may_cancel": task.status in PENDING
            and task.cancel_requested_at is None
            and self.has_cancel_permission(request),
            "may_reprioritise": task.status in WAITING and self.has_reprioritise_permission(request),
            "may_ask_stack": task.status == Status.EXECUTING and self.has_stack_permission(request),
            "may_run_now": task.status == Status.SCHEDULED and may_retry,
            "may_retry": task.status in RETRIABLE and may_retry and not may_replay,
            "may_decrypt": is_on() and self.has_decrypt_permission(request) and _has_secrets(task),
            "may_run_again": self.has_run_again_permission(request) and not may_replay,
        }


def _has_secrets(task: Task) -> bool:
    """Return whether data of a task are encrypted, also if its type no longer is."""
    stored = TaskPayload.objects.filter(pk=task.pk).values_list("args", flat=True)
    return hides(task.task_type) or is_sealed(stored.first())


#: Parameters of the list's address that may leave few tasks, for whose ended ones there are indexes.
NARROW: Final = frozenset({"queue", "task_type", "worker_id", *FILTERS, "q"}) - {"user"}
#: Maximum number of suggestions of the search.
SUGGESTED: Final = 20


class TaskChangeList(ChangeList):
    """A page of tasks with their effective bands."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        """Sort as asked, and add the bands that promotion gives the tasks."""
        found = cast("TaskQuerySet", super().get_queryset(request, *args, **kwargs))
        if not NARROW.isdisjoint(request.GET):
            found = found.pending_or_ended()
        if order := filters.SORTED.get(request.GET.get("sort", "")):
            found = cast("TaskQuerySet", order(found))
        return found.with_effective_priority()


class TaskAdmin(SavedViewsMixin[Task], TaskActionsMixin, TaskSignalMixin, ReadOnlyAdmin[Task]):
    empty_text = _lazy("No task yet. Code enqueues tasks with .enqueue(), other programs with the API.")
    actions = ("cancel_selected", "retry_selected", "run_now_selected", "reprioritise_selected")
    exact_lookups = ("worker_id", *FILTERS)
    list_display = ("short_id", "type", "state", "band", "when", "where")
    list_display_links = ("short_id",)
    list_filter = filters.OF_TASKS
    quick_views = (
        ("status=queued", _lazy("Queued")), ("status=executing", _lazy("Running")),
        ("status=failed_any", _lazy("Failed")), ("wait=waits_for_a_person", _lazy("Waits for a person")),
    )  # fmt: skip
    suggestions = True
    ordering = ("-id",)  # ids are UUIDv7: the primary key alone sorts them, newest first
    search_fields = ("id", "task_type", "user")  # shows the box; ``search`` searches
    search_help_text = filters.SEARCH_HELP
    search = staticmethod(filters.search_tasks)

    band = column(_lazy("priority"), labels.priority_label)

    class Media:
        js = (
            Script("queue_app/task_live.js", defer=True),
            Script("queue_app/morph.js", defer=True),
            Script("queue_app/lists.js", defer=True),
        )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return TaskChangeList

    def annotate_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        rows = with_workers(request, list(rows))
        flows: dict[uuid.UUID, str] = {}
        if request.user.has_perm("queue_app.view_workflow"):
            ids = {task.workflow_id for task in rows if task.workflow_id is not None}
            flows = dict(Workflow.objects.filter(pk__in=ids).values_list("pk", "name")) if ids else {}
        may_view = self.may_view_payload(request)
        payloads = TaskPayload.objects.in_bulk([task.pk for task in rows]) if may_view else {}
        for task in rows:
            task.workflow_name = flows.get(task.workflow_id)
            task.arguments = in_short(task.task_type, payloads.get(task.pk))

    @admin.display(description=_lazy("task type, arguments"))
    def type(self, task: Any) -> SafeString:
        """Return the function's name as a link to the task, above the arguments."""
        return labels.type_label(task.task_type, task.arguments, self.url_of("change", task.pk))

    @admin.display(description=_lazy("queue, user, workflow"))
    def where(self, task: Any) -> SafeString:
        name: str | None = getattr(task, "workflow_name", None)
        return self.place_of(task, [(self.url_of_model("workflow", "change", task.workflow_id), name)] if name else [])

    @admin.display(description=_lazy("id"))
    def short_id(self, task: Task) -> SafeString:
        """Return the end of the id; the beginning is the same for tasks of about the same time."""
        return format_html('<code title="{}">{}</code>', task.id, labels.short_id(task.id))

    @admin.display(description=_lazy("status, attempt"))
    def state(self, task: Task) -> SafeString:
        label = labels.status_label(task)
        if 0 < task.failures < task.attempt:
            attempt = _("attempt %(n)d, %(failed)d counted as failed") % {"n": task.attempt, "failed": task.failures}
        elif task.failures or task.attempt > 1:
            attempt = _("attempt %(n)d") % {"n": task.attempt}
        else:
            return label
        return two_lines(label, attempt)

    @admin.display(description=_lazy("time, worker"))
    def when(self, task: Task) -> SafeString:
        text = labels.when(task, timezone.now())
        name: str | None = getattr(task, "worker_name", None)
        if name is None:
            return text
        url = self.url_of_model("worker", "change", task.worker_id)
        return two_lines(text, format_html('<a href="{}">{}</a>', url, name))

    def page_context(self, request: HttpRequest, found: Task) -> dict[str, Any]:
        set_effective_bands([found])
        letter_id = labels.id_of(request.GET.get("letter", ""))
        may_view = self.may_view_payload(request)
        detail = load_detail(found, timezone.now(), may_view_payload=may_view, letter_id=letter_id)
        detail["stack"] = self.stack_of(request, found)
        of_letter = Q(target="deadletter", target_id=str(detail["letter"].pk)) if detail["letter"] else Q(pk__in=())
        changes = AuditEntry.objects.filter(Q(target="task", target_id=str(found.pk)) | of_letter)[:RECENT]
        may_view_audit = request.user.has_perm("queue_app.view_auditentry")
        return {
            "title": _("Task"),
            "may_follow": self.may_follow(request),
            "detail": detail,
            "history": self.history_of(changes) if may_view_audit else [],
            "bands": [(band.label, band.value == found.priority) for band in Band],
            **self.buttons(request, found, detail["letter"]),
        }

    @page("suggest/", "suggest", permission="view")
    def suggest_view(self, request: HttpRequest) -> HttpResponse:
        text = request.GET.get("q", "").strip()[:100]
        found = named(text) if text and "\x00" not in text else {}
        names = [name for each in found.values() for name in each][:SUGGESTED]
        return JsonResponse({"names": names}, headers=NO_STORE)

    @page("<uuid:pk>/live/", "live", permission="view")
    def live_view(self, request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
        """Return a task's progress, log lines and stack as HTML, and its status in a header, for the page's script."""
        if not self.may_follow(request):
            raise PermissionDenied
        task = self.get_object(request, str(pk))
        if task is None:
            raise Http404
        detail: dict[str, Any] = {"stack": self.stack_of(request, task)}
        if self.may_view_payload(request):
            secrets = displayed_payload(task.task_type, TaskPayload.objects.filter(pk=task.pk).first())[0]
            detail["progress"], detail["logs"] = progress_and_logs(task, secrets)
        headers = NO_STORE | {"X-Task-Status": task.status}
        return TemplateResponse(
            request, "admin/queue_app/includes/task_progress.html", {"detail": detail}, headers=headers
        )
