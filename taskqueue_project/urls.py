"""URLs of the reference project: the admin and the task queue."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("queue_app.urls")),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
