"""Saved views: filtered lists that staff keep under a name, for themselves or for all staff."""

import uuid
from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q
from django.forms import modelform_factory
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from queue_app.admin.mixins import QueueAppAdmin, page
from queue_app.models import SavedView
from queue_app.models.operation import MAX_QUERY
from queue_app.services.control.audit import ADMIN, record
from queue_app.sql.database import atomic

#: Parameters of the address that do not change which rows the list contains.
_PLACE = ("p", "e", "_changelist_filters", "_facets")
MAX_VIEWS = 50


ViewForm = modelform_factory(SavedView, fields=("name", "query", "shared"))


class SavedViewsMixin[M: Model](QueueAppAdmin[M]):
    """A list with its saved views above it, and a form that saves another."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        user = request.user.get_username()
        query = _narrowing(request.GET.urlencode())
        views = SavedView.objects.filter(Q(user=user) | Q(shared=True), of=self.opts.model_name)[:MAX_VIEWS]
        context = {
            "saved_views": [
                {
                    "view": view,
                    "current": view.query == query,
                    "may_delete": view.user == user or request.user.has_perm("queue_app.delete_savedview"),
                }
                for view in views
            ],
            "view_query": query,
            "save_view_url": self.url_of("save_view"),
            "model_name": self.opts.model_name,
        }
        return super().changelist_view(request, context | (extra_context or {}))

    @page("views/save/", "save_view", post=True)
    def save_view(self, request: HttpRequest) -> HttpResponse:
        """Save the list's filters under the posted name; replace the user's own view of this name."""
        if not (request.user.has_perm("queue_app.add_savedview") and self.has_view_permission(request)):
            raise PermissionDenied
        query = _narrowing(request.POST.get("query", "")[:MAX_QUERY])
        user, name = request.user.get_username(), request.POST.get("name", "").strip()
        known = SavedView.objects.filter(user=user, of=self.opts.model_name, name=name).first()
        instance = known or SavedView(user=user, of=str(self.opts.model_name))
        form = ViewForm({"name": name, "query": query, "shared": request.POST.get("shared")}, instance=instance)
        if form.is_valid():
            with atomic():
                view = form.save()
                record(
                    "savedview.save", "savedview", [view.pk], by=user, via=ADMIN, after={"name": name, "query": query}
                )
            self.message_user(request, _("Saved as “%(name)s”.") % {"name": name}, messages.SUCCESS)
        else:
            problems = "; ".join(f"{field}: {' '.join(map(str, text))}" for field, text in form.errors.items())
            self.message_user(request, _("Not saved. %(problems)s") % {"problems": problems}, messages.ERROR)
        return HttpResponseRedirect(f"{self.url_of('changelist')}?{query}")

    @page("views/<uuid:view_id>/delete/", "delete_view", post=True)
    def delete_saved_view(self, request: HttpRequest, view_id: uuid.UUID) -> HttpResponse:
        """Delete the user's own view, or with the permission any view."""
        view = SavedView.objects.filter(pk=view_id).first()
        user = request.user.get_username()
        if view is not None:
            if view.user != user and not request.user.has_perm("queue_app.delete_savedview"):
                raise PermissionDenied
            with atomic():
                record("savedview.delete", "savedview", [view.pk], by=user, via=ADMIN, before={"name": view.name})
                view.delete()
            self.message_user(request, _("The view is deleted."), messages.SUCCESS)
        return HttpResponseRedirect(self.url_of("changelist"))


def _narrowing(query: str) -> str:
    """Return a query without the position in the list, sorted, so that equal filters give equal texts."""
    return urlencode(sorted(pair for pair in parse_qsl(query) if pair[0] not in _PLACE))
