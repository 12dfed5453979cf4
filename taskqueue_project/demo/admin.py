"""The demo's rows in the admin, read-only."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin

from .models import DemoRun, DocumentIndex, RollUp

if TYPE_CHECKING:
    from django.http import HttpRequest

    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


@admin.register(DemoRun, RollUp)
class ReadOnlyAdmin(ModelAdmin):
    """Rows that only tasks write, with all columns."""

    def get_list_display(self, request: "HttpRequest") -> Any:
        return [field.name for field in self.opts.concrete_fields]

    def has_add_permission(self, request: "HttpRequest") -> bool:
        return False

    def has_change_permission(self, request: "HttpRequest", obj: object = None) -> bool:
        return False


@admin.register(DocumentIndex)
class DocumentIndexAdmin(ReadOnlyAdmin):
    """The files of all runs."""

    list_filter = ("run",)
    search_fields = ("path", "digest")
