"""The addresses, the texts and the actions of the admin's pages, and who looks at them."""

import html
import re
from collections.abc import Iterable
from typing import Any

from django.contrib.messages import get_messages
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from tests.support.factories import StaffFactory

#: What the page that confirms an action adds to the form.
CONFIRMED = {"confirmed": "yes", "reason": "because"}


def url(model: type[Model], view: str, *args: Any) -> str:
    """Return the address of a page of a model."""
    return reverse(f"admin:queue_app_{model._meta.model_name}_{view}", args=args)


def text_of(response: Any) -> str:
    """Return the HTML of an answer, which must be 200."""
    assert response.status_code == 200
    return response.content.decode()


def words_of(response: Any) -> str:
    """Return the words of an answer without its tags, each run of spaces as one."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def messages_of(response: Any) -> list[str]:
    """Return the messages that an action left for its user."""
    return [str(message) for message in get_messages(response.wsgi_request)]


def select(client: Client, path: str, action: str, objects: Iterable[Model], **data: Any) -> Any:
    """Choose objects of a list, and confirm an action on them."""
    chosen = {"action": action, "index": "0", "_selected_action": [str(o.pk) for o in objects]}
    return client.post(path, chosen | CONFIRMED | data)


def log_in(*permissions: str, **options: Any) -> Client:
    """Return the browser of a member of staff with these permissions."""
    client = Client(**options)
    client.force_login(StaffFactory(permissions=list(permissions)))
    return client
