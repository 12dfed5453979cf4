"""Tasks for ``test_encryption``, which encrypts all but ``plain``; each gets or makes the canary."""

import logging

from queue_app import Unique, task

CANARY = "canary-3f9d"
seen: list[object] = []


@task
def echo(*args: object, **kwargs: object) -> object:
    seen.append((args, kwargs))
    return {"got": kwargs.get("text")}


@task(max_retries=0)
def fail(text: str) -> None:
    logging.getLogger("shop").warning("about to fail with %s", text)
    raise ValueError(text)


@task(unique=Unique())
def once(text: str) -> None:
    seen.append(text)


@task(unique=Unique(by=(), on_conflict="replace"))
def newest(text: str) -> None:
    seen.append(text)


@task(takes_context=True)
def waits(context, text: str) -> object:
    context.step("remember", lambda: text)
    return context.wait_for("answer")


@task(takes_context=True, max_retries=0)
def passes_on(context) -> int:
    found = context.run(echo, text=CANARY)["got"]
    context.sleep(3600)
    return len(found)


@task
def plain(text: str = "") -> str:
    return text
