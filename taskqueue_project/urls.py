"""URLs of the reference project: the admin and the task queue."""

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.utils.functional import lazy
from django.utils.html import format_html
from django.views.generic import RedirectView

#: A wrong Host is refused before a view is found; the API answers it with a problem document too.
handler400 = "queue_app.api.errors.bad_request"
#: While PostgreSQL is away, every page of the admin says so, the overview too.
handler500 = "queue_app.admin.unavailable.handler500"


def _header() -> str:
    return format_html(
        '<img class="tq-brand" src="{}" alt="" width="26" height="26"> Task queue', static("queue_app/icon.svg")
    )


admin.site.site_header = lazy(_header, str)()
admin.site.site_title = "Task queue"

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("queue_app.compat.urls")),
    path("", include("queue_app.urls")),
    path("", RedirectView.as_view(pattern_name="admin:index")),
    # Django's login page names no icon, so browsers look here.
    path("favicon.ico", RedirectView.as_view(url=lazy(static, str)("queue_app/icon.svg"))),
]
