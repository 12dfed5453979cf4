"""Tasks of the workflows that tests run."""

from typing import Any

from queue_app import task
from queue_app.exceptions import Discard

#: What ran, in order: (name, arguments).
ran: list[tuple[str, Any]] = []
#: Names of calls that fail, and how often they still do.
failing: dict[str, int] = {}


def _run(name: str, *given: Any) -> None:
    ran.append((name, given[0] if len(given) == 1 else given))
    if failing.get(name, 0) > 0:
        failing[name] -= 1
        raise ValueError(f"{name} failed")


@task(max_retries=0)
def node(name: str, *given: Any) -> str:
    _run(name, *given)
    return name


@task(max_retries=0)
def charge(order: int) -> dict[str, Any]:
    _run("charge", order)
    return {"id": f"pay-{order}", "address": {"city": "Riga"}}


@task
def refund(order: int, result: dict[str, Any]) -> None:
    _run("refund", order, result["id"])


@task(max_retries=0)
def label(*, address: Any) -> str:
    _run("label", address)
    return f"label to {address['city']}"


@task
def undo(name: str, *_given: Any) -> None:
    _run(f"undo {name}", name)


@task(max_retries=0)
def undo_once(name: str, *_given: Any) -> None:
    _run(f"undo {name}", name)


@task
def numbers(count: int) -> list[int]:
    ran.append(("numbers", count))
    return list(range(count))


@task
def square(number: int) -> int:
    ran.append(("square", number))
    return number * number


@task
def total(parts: list[int]) -> int:
    ran.append(("total", list(parts)))
    return sum(parts)


@task(max_retries=0)
def large(size: int) -> str:
    return "x" * size


@task(max_retries=0)
def lengths(parts: list[str]) -> list[int]:
    return [len(part) for part in parts]


@task
def refuse(name: str) -> None:
    ran.append((name, "refused"))
    raise Discard("never")


@task(takes_context=True, max_retries=3, retry_delay=1)
def grow(context: Any, name: str, children: list[str]) -> str:
    for child in children:
        context.workflow.add(node, child)
    _run(name, context.attempt)
    return name
