"""Hooks that write down what they see, and tasks with them."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from django.utils import timezone, translation

from queue_app import task
from queue_app.exceptions import Retry, Veto
from queue_app.hooks import Hook, HookCall

seen: list[Any] = []
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


class Tenant(Hook):
    """Stores the tenant, and restores it."""

    def enqueue(self, call: HookCall) -> None:
        if call.parameters.get("word") == "forbidden":
            raise Veto("the tenant has no plan for this")
        call.metadata["tenant"] = tenant.get()

    @contextmanager
    def run(self, call: HookCall):
        token = tenant.set(call.metadata["tenant"])
        seen.append(("in", "tenant", call.attempt))
        try:
            yield
        finally:
            tenant.reset(token)
            seen.append(("out", "tenant"))

    def succeeded(self, call: HookCall) -> None:
        seen.append(("succeeded", call.metadata))

    def retried(self, call: HookCall, failure, seconds: float) -> None:
        seen.append(("retried", failure.message, seconds))

    def failed(self, call: HookCall, failure) -> None:
        seen.append(("failed", failure.message))

    def died(self, call: HookCall, failure) -> None:
        seen.append(("died", failure.message))


class Asynchronous(Hook):
    """The same with coroutine functions."""

    async def enqueue(self, call: HookCall) -> None:
        call.metadata["from"] = "a coroutine"

    @asynccontextmanager
    async def arun(self, call: HookCall):
        seen.append(("in", "asynchronous"))
        yield
        seen.append(("out", "asynchronous"))

    async def succeeded(self, call: HookCall) -> None:
        seen.append("told")
        raise RuntimeError("a hook that fails")


class Guard(Hook):
    """Ends tasks that must not run."""

    @contextmanager
    def run(self, call: HookCall):
        raise Veto("not on a Sunday")
        yield


@task(hooks=[Tenant()])
def say(word: str, fail: str = "") -> str:
    if fail == "retry":
        raise Retry(fail, after=30)
    if fail:
        raise ValueError(fail)
    return f"{word} {tenant.get()} {translation.get_language()} {timezone.get_current_timezone_name()}"


@task(hooks=[Tenant, "tests.workers.hooked.Asynchronous"])
async def hum(word: str) -> str:
    return f"{word} {tenant.get()}"


@task(hooks=[Guard])
def guarded() -> None:
    seen.append("ran")


@task
def plain(word: str) -> str:
    return f"{word} {translation.get_language()} {timezone.get_current_timezone_name()}"


class Much(Hook):
    """Stores more than fits."""

    def enqueue(self, call: HookCall) -> None:
        call.metadata["text"] = "x" * 9000


class Objects(Hook):
    """Stores what JSON cannot hold."""

    def enqueue(self, call: HookCall) -> None:
        call.metadata["when"] = object()


@task(hooks=[Much])
def stores_much() -> None: ...


@task(hooks=[Objects])
def stores_objects() -> None: ...
