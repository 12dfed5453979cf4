"""Checks of webhooks."""

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error

from queue_app import webhooks
from queue_app.checks import check


@check("taskqueue")
def check_endpoints(**_: Any) -> Iterator[CheckMessage]:
    """Report endpoints that cannot be used (E019)."""
    yield from (Error(text, id="queue_app.E019") for text in webhooks.problems())
