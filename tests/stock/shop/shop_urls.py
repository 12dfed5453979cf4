"""The addresses of the queue."""

from django.urls import include, path

urlpatterns = [path("", include("queue_app.urls"))]
