"""The demo's rows in the admin, read-only."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin

from .models import DemoRun, DocumentIndex, RollUp

if TYPE_CHECKING:
    from django.http import HttpRequest

    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(ModelAdmin):
    """Show rows that only tasks write."""

    def has_add_permission(self, request: "HttpRequest") -> bool:
        """Forbid adding."""
        return False

    def has_change_permission(self, request: "HttpRequest", obj: object = None) -> bool:
        """Forbid changes."""
        return False


@admin.register(DemoRun)
class DemoRunAdmin(ReadOnlyAdmin):
    """The runs."""

    list_display = ("id", "folder", "started_at", "skipped")


@admin.register(DocumentIndex)
class DocumentIndexAdmin(ReadOnlyAdmin):
    """The files."""

    list_display = ("path", "words", "lines", "size", "digest", "run")
    list_filter = ("run",)
    list_select_related = ("run",)
    search_fields = ("path", "digest")


@admin.register(RollUp)
class RollUpAdmin(ReadOnlyAdmin):
    """The totals."""

    list_display = ("run", "documents", "words", "lines", "size", "created_at")
    list_select_related = ("run",)
