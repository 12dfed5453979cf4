"""Tasks that get a canary and leave it wherever a task can leave something.

The encryption of the test covers ``sealed_*``. The others declare the parameter that holds the canary as sensitive.
"""

import logging

from queue_app import task

MASKED, SEALED = "canary-masked-71c4", "canary-sealed-80be"
#: Text that people may read with the permission: without it the audit would pass on empty pages.
VISIBLE = "visible-9d2a"
_log = logging.getLogger("shop")


def _spread(context, card, note):
    """Leave the canary in a step, in the progress and in a log line; return it twice."""
    _log.warning("charging %s", card)
    context.step("charge", lambda: {"card": card})
    context.progress(0.5, "charging" if card == SEALED else f"charging {card}")  # encryption leaves it as it is
    return {"card": card, "said": f"took {card}", "note": note}


@task(sensitive=["card"], takes_context=True)
def masked_done(context, card, note=""):
    return _spread(context, card, note)


@task(sensitive=["card"], takes_context=True, max_retries=0)
def masked_fails(context, card, note=""):
    _spread(context, card, note)
    raise ValueError(f"declined {card}")


@task(sensitive=["card"], takes_context=True)
def masked_waits(context, card, note=""):
    return context.wait_for("answer")


@task(takes_context=True)
def sealed_done(context, card, note=""):
    return _spread(context, card, note)


@task(takes_context=True, max_retries=0)
def sealed_fails(context, card, note=""):
    _spread(context, card, note)
    raise ValueError(f"declined {card}")


@task(takes_context=True)
def sealed_waits(context, card, note=""):
    return context.wait_for("answer")
