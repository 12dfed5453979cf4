"""The page on which staff edit the parameters of a task before it runs again."""

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from queue_app.admin.forms import EditForm
from queue_app.admin.mixins import QueueAppAdmin
from queue_app.admin.task_detail import pretty
from queue_app.exceptions import InvalidTaskData, TaskQueueError
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.read.dead_letters import displayed_parameters
from queue_app.sql.database import atomic


class EditParametersMixin[M: Model](QueueAppAdmin[M]):
    """A page with a task's parameters, secrets masked; a mask that stays keeps its value."""

    def edit_parameters(  # noqa: PLR0913 - the page, and its texts
        self,
        request: HttpRequest,
        pk: uuid.UUID,
        found: M | None,
        task_id: uuid.UUID | None,
        act: Callable[[M, dict[str, Any], str], tuple[str, uuid.UUID]],
        *,
        title: str,
        submit: str,
        explanation: str,
    ) -> HttpResponse:
        """Show the form; once posted, call ``act(object, parameters, reason)`` in a transaction.

        ``act`` returns a message and the id of the page to go to.
        """
        displayed = displayed_parameters(task_id) if task_id is not None else None
        if found is None or displayed is None:
            return self.gone(request, pk)
        args, parameters = displayed
        form = EditForm(request.POST or None, initial={"parameters": pretty(parameters)})
        if form.is_valid():
            try:
                with atomic():
                    reason = check_reason(form.cleaned_data["reason"], REASON_LENGTH)
                    done, target = act(found, form.cleaned_data["parameters"], reason)
            except InvalidTaskData as error:
                form.add_error("reason" if error.field == "reason" else "parameters", error.message)
            except TaskQueueError as error:
                self.message_user(request, str(error), messages.ERROR)
                return HttpResponseRedirect(self.url_of("change", pk))
            else:
                self.message_user(request, done, messages.SUCCESS)
                return HttpResponseRedirect(self.url_of("change", target))
        context = {"original": found, "form": form, "submit": submit, "explanation": explanation}
        return self.own_page(request, "deadletter/edit.html", title, args=pretty(args) if args else "", **context)
