"""The demo's workflows: four orders of a shop, each of which goes another way, and the photos of its catalogue.

| workflow | how it goes |
|---|---|
| order 1001 | is paid, packed, labelled and shipped |
| order 1002 | waits for a person who allows the shipment |
| order 1003 | is held: the carrier refuses the parcel, until a person retries it |
| order 1004 | cannot be packed, so its payment is refunded |
| catalogue photos | one task for each photo of a list that is known only at run time |
"""

import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from queue_app import Workflow, task
from queue_app.models import Task as TaskRow, Workflow as WorkflowRow

ORDERS = "orders"
PHOTOS = 120
WORK_SECONDS = 0.4


@task(queue_name=ORDERS)
def take_payment(order: int, euros: float) -> dict[str, Any]:
    """Charge the customer's card."""
    time.sleep(WORK_SECONDS)
    return {"receipt": f"R-{order}", "paid": euros, "address": {"street": "Brivibas iela 1", "city": "Riga"}}


@task(queue_name=ORDERS)
def refund_payment(order: int, euros: float, result: dict[str, Any]) -> str:
    """Undo the payment."""
    time.sleep(WORK_SECONDS)
    return f"refunded {euros} for {result['receipt']} of order {order}"


@task(queue_name=ORDERS, max_retries=0)
def pack_item(order: int, item: str) -> str:
    """Put one item into the parcel."""
    time.sleep(WORK_SECONDS)
    if item == "sold out":
        raise LookupError(f"Order {order}: the item is sold out.")
    return item


@task(queue_name=ORDERS)
def print_label(*, address: dict[str, str]) -> str:
    """Print the label with the address that the payment knows."""
    time.sleep(2 * WORK_SECONDS)
    return f"{address['street']}, {address['city']}"


@task(queue_name=ORDERS, takes_context=True)
def allow_shipment(context: Any, order: int) -> bool:
    """Wait until a person has looked at an expensive order."""
    answer = context.wait_for(
        "checked",
        schema={
            "ship": {"type": "boolean", "title": f"Ship order {order}, which costs 900 euros?"},
            "note": {"required": False, "description": "For the customer."},
        },
    )
    if not answer["ship"]:
        raise ValueError("A person refused the shipment.")
    return True


@task(queue_name=ORDERS, takes_context=True, max_retries=0)
def ship_parcel(context: Any, order: int, items: list[str], label: str) -> str:
    """Hand the parcel to the carrier, who refuses that of order 1003 at first."""
    time.sleep(WORK_SECONDS)
    if order == REFUSED and context.attempt == 1:
        raise ConnectionError("The carrier refused the parcel: no van is free. Retry the workflow to try again.")
    return f"parcel of order {order} with {len(items)} items to {label}"


@task(queue_name=ORDERS)
def thank_customer(parcel: str) -> str:
    """Send a message."""
    return f"Your {parcel} is on its way."


@task(queue_name=ORDERS)
def list_photos() -> list[int]:
    """Return the photos of the catalogue."""
    return list(range(PHOTOS))


@task(queue_name=ORDERS)
def resize_photo(number: int) -> int:
    """Make a photo smaller."""
    time.sleep(WORK_SECONDS / 8)
    return 1000 + number


@task(queue_name=ORDERS)
def publish_catalogue(sizes: list[int]) -> str:
    """Publish the photos."""
    return f"{len(sizes)} photos, {sum(sizes):,} bytes"


SHIPPED, CHECKED, REFUSED, SOLD_OUT = 1001, 1002, 1003, 1004
#: What a visitor of the demo finds in the end, by workflow.
EXPECTED = {
    SHIPPED: "completed",
    CHECKED: "waits for a person",
    REFUSED: "held",
    SOLD_OUT: "compensated",
    "catalogue photos": "completed",
}


@dataclass(frozen=True)
class Flow:
    """A workflow of the demo, and its expected end if no person acts."""

    id: UUID
    name: str
    expected: str

    @property
    def standing(self) -> str:
        row = WorkflowRow.objects.get(pk=self.id)
        if row.finished_at is None and row.held_at is not None:
            return "held"
        tasks = TaskRow.objects.filter(workflow_id=self.id)
        if tasks.filter(status="blocked", steps__done_at__isnull=True, steps__isnull=False).exists():
            return "waits for a person"
        return row.state


def enqueue_orders() -> list[Flow]:
    """Store the workflows."""
    flows = [_order(number) for number in (SHIPPED, CHECKED, REFUSED, SOLD_OUT)]
    catalogue = Workflow("catalogue photos", max_concurrent=4)
    photos = catalogue.add(list_photos)
    small = catalogue.map(resize_photo, over=photos.result)
    catalogue.add(publish_catalogue, small.result, after=[small])
    catalogue.enqueue()
    flows.append(Flow(catalogue.id, catalogue.name, EXPECTED[catalogue.name]))
    return flows


def _order(number: int) -> Flow:
    flow = Workflow(f"order {number}", user="ina", on_failure="cancel" if number == SOLD_OUT else "hold")
    euros = 900.0 if number == CHECKED else 30.0
    pay = flow.add(take_payment, number, euros, compensate=refund_payment)
    items = ["book", "pen", "sold out" if number == SOLD_OUT else "lamp"]
    pack = flow.add_many(pack_item, [((number, item), {}) for item in items], after=[pay])
    label = flow.add(print_label, after=[pay], address=pay.result["address"])
    before = [pack, label, flow.add(allow_shipment, number, after=[pay])] if number == CHECKED else [pack, label]
    ship = flow.add(ship_parcel, number, pack.result, label.result, after=before)
    flow.add(thank_customer, ship.result, after=[ship])
    flow.enqueue()
    return Flow(flow.id, flow.name, EXPECTED[number])
