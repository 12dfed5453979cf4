"""A new task by a form: its type, its parameters in fields, and where it waits."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app.admin.arguments import argument_fields
from queue_app.admin.forms import ReasonField, permission
from queue_app.admin.mixins import QueueAppAdmin, page
from queue_app.admin.pickers import Picker
from queue_app.core.priorities import Band
from queue_app.core.records import NewTask
from queue_app.dashboard.labels import translate_error
from queue_app.exceptions import InvalidTaskData, TaskQueueError
from queue_app.models import Task
from queue_app.services.enqueue.store import submit
from queue_app.sql.database import atomic


class NewTaskForm(forms.Form):
    task_type = forms.CharField(label=_lazy("Task type"), help_text=_lazy("Each of its arguments gets a field."))
    queue = forms.CharField(label=_lazy("Queue"), required=False, help_text=_lazy("Empty: that of the task type."))
    priority = forms.ChoiceField(
        label=_lazy("Priority"), required=False,
        choices=[("", _lazy("that of the task type")), *((band.label, _lazy(band.label)) for band in Band)],
    )  # fmt: skip
    reason = ReasonField()
    field_order = ("task_type", "parameters", "queue", "priority", "reason")

    def __init__(self, data: Any, initial: dict[str, str], user: Any) -> None:
        super().__init__(data, initial=initial)
        for name in ("task_type", "queue"):
            self.fields[name].widget = Picker(user, name)
        self.fields["task_type"].widget.attrs["data-tq-again"] = ""
        task_type = (data or initial).get("task_type", "")
        self.fields["parameters"] = argument_fields(task_type, [], {})["parameters"]
        self.order_fields(self.field_order)


class NewTaskMixin(QueueAppAdmin[Task]):
    """The page of a new task, for who may submit tasks over the API."""

    has_submit_permission = permission("add_task")

    @page("new/", "new", permission="submit")
    def new_view(self, request: HttpRequest) -> HttpResponse:
        form = NewTaskForm(request.POST or None, request.GET.dict(), request.user)
        if form.is_valid():
            values, by = form.cleaned_data, request.user.get_username()
            new = NewTask(
                task_type=values["task_type"], parameters=values["parameters"], queue=values["queue"] or None,
                priority=values["priority"] or None, user=by,
            )  # fmt: skip
            try:
                with atomic():
                    task = Task.objects.get(pk=submit(new).id)
                    self.audit(request, [task], "Submitted.", action="submit", reason=values["reason"])
            except InvalidTaskData as error:
                root = error.field.partition(".")[0]
                form.add_error(root if root in form.fields else None, error.message)
            except TaskQueueError as error:
                form.add_error(None, translate_error(error))
            else:
                self.message_user(request, _("The task is enqueued. This is its page."), messages.SUCCESS)
                return HttpResponseRedirect(self.url_of("change", task.pk))
        hint = _("It is enqueued at once, for you. Its page then shows why it waits, and what becomes of it.")
        return self.own_page(request, "form_page.html", _("New task"), form=form, submit=_("Enqueue"), hint=hint)
