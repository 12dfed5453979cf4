"""Tasks that get a canary and leave it wherever a task can leave something.

The encryption of the test covers ``sealed_*``. The others declare the parameter that holds the canary as sensitive; no
parameter of an encrypted one has this name, by which it would be masked as well.
"""

import logging

from queue_app import task

MASKED, SEALED = "canary-masked-71c4", "canary-sealed-80be"
#: Text that people may read with the permission: without it the audit would pass on empty pages.
VISIBLE = "visible-9d2a"
_log = logging.getLogger("shop")


def _spread(context, name, value, note):
    """Leave the canary in a step, in the progress and in a log line; return it twice."""
    _log.warning("charging %s", value)
    context.step("charge", lambda: {name: value})
    context.progress(0.5, "charging" if value == SEALED else f"charging {value}")  # encryption leaves it as it is
    return {name: value, "said": f"took {value}", "note": note}


@task(sensitive=["card"], takes_context=True)
def masked_done(context, card, note=""):
    return _spread(context, "card", card, note)


@task(sensitive=["card"], takes_context=True, max_retries=0)
def masked_fails(context, card, note=""):
    _spread(context, "card", card, note)
    raise ValueError(f"declined {card}")


@task(sensitive=["card"], takes_context=True)
def masked_waits(context, card, note=""):
    return context.wait_for("answer")


@task(takes_context=True)
def sealed_done(context, account, note=""):
    return _spread(context, "account", account, note)


@task(takes_context=True, max_retries=0)
def sealed_fails(context, account, note=""):
    _spread(context, "account", account, note)
    raise ValueError(f"declined {account}")


@task(takes_context=True)
def sealed_waits(context, account, note=""):
    return context.wait_for("answer")
