"""Tasks with steps, for the tests of steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from queue_app import task
from queue_app.exceptions import SignalTimeout
from queue_app.models import AuditEntry, Queue

calls: list[str] = []
#: Called inside steps, by their name: to fail, or to let something else happen meanwhile.
during: dict[str, Callable[[], object]] = {}
#: Name of the step -> what it is called now.
renamed: dict[str, str] = {}


def work(name: str, result: Any = None) -> Any:
    """Remember the call."""
    calls.append(name)
    during.get(name, lambda: None)()
    return name if result is None else result


def store(name: str) -> str:
    """Write a row, and remember the call."""
    Queue.objects.create(name=name)
    return work(name)


async def awork(name: str) -> str:
    """Do the same as ``work`` in a coroutine."""
    await asyncio.sleep(0)
    return work(name)


@task(takes_context=True, max_retries=5, retry_delay=1)
def order(context, names: list[str], *, atomic: bool = False) -> list[Any]:
    """Run steps in order; ``after`` is called between the last step and the end."""
    found = [context.step(renamed.get(n, n), store if atomic else work, n, atomic=atomic) for n in names]
    work("end")
    return found


@task(takes_context=True)
def shapes(context) -> list[Any]:
    """Return results as the task gets them: from its first attempt, or as stored."""
    found = [context.step("tuple", work, "tuple", (1, (2,))), context.step("none", calls.append, "none")]
    during.get("shapes", lambda: None)()
    return found


@task(takes_context=True)
def naps(context) -> str:
    """Sleep between two steps."""
    context.step("before", work, "before")
    context.sleep(timedelta(days=3))
    context.sleep(60)
    return context.step("after", work, "after")


@task(takes_context=True)
def deaf(context) -> str:
    """Swallow everything, and go on."""
    for _ in range(2):
        with suppress(BaseException):
            context.sleep(3600)
    return work("end")


@task(takes_context=True)
def far(context, how: str) -> None:
    """Suspend until the last year of a datetime."""
    until = datetime(9999, 12, 31, tzinfo=UTC)
    try:
        context.sleep(until) if how == "sleep" else context.wait_for("go", timeout=until)
    except ValueError as error:
        work(str(error))


@task(takes_context=True)
def wrapped(context, *, child: bool = False) -> None:
    """Call a step inside a transaction, or run a task there."""
    with transaction.atomic():
        if child:
            context.run(plain)
        context.step("inside", work, "inside")


@task(takes_context=True)
def plain(context) -> int:
    """Use the context without steps."""
    work("plain")
    return context.attempt


@task(takes_context=True, max_retries=5, retry_delay=1)
async def coroutine(context, *, nap: bool = False) -> list[Any]:
    """Run steps of both kinds, and two at once."""
    found = [await context.step("one", awork, "one"), await context.step("two", work, "two")]
    found += await asyncio.gather(context.step("left", awork, "left"), context.step("right", awork, "right"))
    if nap:
        await context.sleep(timezone.now() + timedelta(hours=1))
    work("end")
    return found


@task(takes_context=True)
async def bad_atomic(context) -> None:
    """Ask for a transaction in a coroutine."""
    await context.step("one", awork, "one", atomic=True)


@task(takes_context=True)
def unstorable(context, kind: str) -> None:
    """Return what JSON cannot hold."""
    context.step(kind, work, kind, {"set": {1}, "nan": float("nan")}[kind])


@task(takes_context=True)
def refund(context, *, timeout: float | None = None) -> Any:
    """Wait for an approval between two steps."""
    context.step("before", work, "before")
    try:
        answer = context.wait_for("approved", timeout=timeout, schema={"ok": bool, "note": {"required": False}})
    except SignalTimeout:
        answer = "late"
    return context.step("after", work, "after", answer)


@task(takes_context=True)
def collect(context, count: int) -> list[Any]:
    """Take several signals of one name."""
    return [context.wait_for("item") for _ in range(count)]


@task(takes_context=True)
async def acollect(context, count: int) -> list[Any]:
    """Do the same in a coroutine."""
    return [await context.wait_for("item") for _ in range(count)]


#: Called before the function of a step does anything, with its name.
before: Callable[[str], object] = lambda _name: None  # noqa: E731


def effect(name: str, task_id: str) -> str:
    """Leave a row."""
    before(name)
    AuditEntry.objects.create(at=timezone.now(), action="effect", target=name, target_id=task_id, via="command")
    return name


@task(takes_context=True, max_retries=0)
def killable(context, *, atomic: bool) -> list[Any]:
    """Leave rows in steps, and wait for a signal between them."""
    task_id = context.task_result.id
    found = [context.step(name, effect, name, task_id, atomic=atomic) for name in ("one", "two")]
    context.sleep(0)
    found.append(context.wait_for("go"))
    return [*found, context.step("three", effect, "three", task_id, atomic=atomic)]


@task(takes_context=True, signals={"approved": {"ok": {"type": "boolean", "title": "Ship it?"}, "size": ["S", "L"]}})
def declared(context: Any) -> Any:
    """Wait for a signal whose fields the decorator names."""
    return context.wait_for("approved")
