"""The addresses and the texts of the admin's pages."""

from typing import Any

from django.db.models import Model
from django.urls import reverse


def url(model: type[Model], view: str, *args: Any) -> str:
    """Return the address of a page of a model."""
    return reverse(f"admin:queue_app_{model._meta.model_name}_{view}", args=args)


def text_of(response: Any) -> str:
    """Return the HTML of an answer, which must be 200."""
    assert response.status_code == 200
    return response.content.decode()
