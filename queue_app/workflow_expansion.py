"""The task behind ``Workflow.map``: it adds a call for each item of a list to its workflow."""

from typing import Any

from asgiref.sync import sync_to_async

from queue_app.core.records import NewTask
from queue_app.exceptions import Discard
from queue_app.tasks import task


@task(takes_context=True, encrypted=None)
async def expand(context: Any, options: dict[str, Any], items: Any) -> int:
    """Add a call of the stored task for each item; return how many."""
    if not isinstance(items, list):
        raise Discard(f"map() needs a list, and the result is {'null' if items is None else type(items).__name__}.")
    if items:
        new = NewTask(**options)
        await sync_to_async(context.workflow.add_stored)(new, [((item,), {}) for item in items])
    return len(items)
