"""URLs of the reference project: the admin and the task queue."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

#: A wrong Host is refused before a view is found; the API answers it with a problem document too.
handler400 = "queue_app.api.errors.bad_request"
#: While PostgreSQL is away, every page of the admin says so, the overview too.
handler500 = "queue_app.admin.away.handler500"

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("queue_app.urls")),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
