"""URLs of a project with pages of its own that show tasks of the signed-in user."""

from django.http import HttpRequest, HttpResponse
from django.template import RequestContext, Template
from django.urls import path

from queue_app.models import Task
from taskqueue_project import urls

_PAGE = Template(
    "{% load taskqueue %}<!DOCTYPE html><html lang='en'><head><meta name='viewport' content='width=device-width'>"
    "<title>Mine</title></head><body><main><h1>Mine</h1>"
    "{% for task in tasks %}<section>{% task_status task %}</section>{% endfor %}</main></body></html>"
)


def mine(request: HttpRequest) -> HttpResponse:
    """Show all tasks, of which the tag leaves out those of other users."""
    return HttpResponse(_PAGE.render(RequestContext(request, {"tasks": Task.objects.order_by("id")})))


urlpatterns = [path("mine/", mine), *urls.urlpatterns]
