"""The overview: the banner says once what is wrong, with a remedy; then the numbers, and the queues with the rest."""

from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

from django.utils.translation import gettext as _

from queue_app.core.shared import Shared
from queue_app.dashboard.reasons import (
    LENGTHS,
    NAMED,
    NO_WORKER,
    OLDEST,
    UNSERVED,
    OverviewReason,
    of_schedules,
    reasons,
)
from queue_app.dashboard.translation import translate
from queue_app.diagnose.live import current
from queue_app.services.control.advice import Advice, advice

#: Seconds for which viewers share the suggestions, which are made of snapshots of a minute.
FRESH_ADVICE: Final = 60.0
#: Code of the reason that no worker of a queue offers what its tasks require.
LACKING: Final = "no_worker_with_capabilities"


def overview_context(user: Any) -> dict[str, Any]:
    """Return the overview, without queues and workers that the user may not see."""
    if not user.has_perm("queue_app.view_queue"):
        return {"live": None}
    now = current()
    by_queue: dict[str, list[OverviewReason]] = {}
    for reason in reasons(now):
        by_queue.setdefault(reason.queue, []).append(reason)
    general = by_queue.pop("", [])
    if not now.active_workers:  # the banner says so once, not of each queue
        by_queue = {name: [each for each in found if each.code != NO_WORKER] for name, found in by_queue.items()}
    severe = [reason for found in by_queue.values() for reason in found if reason.severe and reason.count]
    stuck = sorted(_merged(severe), key=lambda reason: -reason.seconds)[:NAMED]
    in_banner = {(each.queue, each.text) for each in stuck if not each.queues}
    unserved = {name for each in stuck for name in each.queues}
    in_banner |= {(name, each.text) for name in unserved for each in by_queue[name] if each.code == NO_WORKER}
    rows = []
    for row in now.queues:  # what the banner says of a queue is not repeated in its row
        found = by_queue.get(row.queue.name, [])
        others = [each for each in found if (each.queue, each.text) not in in_banner]
        rows.append((row, others, sum(each.count for each in found if each not in others)))
    suggested = _advice.get() if user.has_perm("queue_app.view_queuestats") else []
    stuck, suggested = _with_hints(stuck, suggested)
    return {
        "live": now,
        "general": general,
        "stuck": stuck,
        "late": list(of_schedules(now)) if user.has_perm("queue_app.view_schedule") else [],
        "rows": rows,
        "held": now.held if user.has_perm("queue_app.view_workflow") else [],
        "advice": suggested,
        "lengths": LENGTHS,
    }


def _merged(stuck: list[OverviewReason]) -> list[OverviewReason]:
    """Make one message of the many that say of one queue each that no worker serves it."""
    unserved = [each for each in stuck if each.code == NO_WORKER]
    if not unserved:
        return stuck
    names = tuple(each.queue for each in unserved)
    shown = ", ".join(names[:NAMED])
    if more := len(names[NAMED:]):
        shown = _("%(names)s and %(count)d more") % {"names": shown, "count": more}
    query = unserved[0].query if len(names) == 1 else urlencode({"status": "queued", "wait": UNSERVED, **OLDEST})
    merged = replace(
        unserved[0],
        text=unserved[0].text if len(names) == 1 else _("No active worker serves them."),
        queue=shown,
        queues=names,
        count=sum(each.count for each in unserved),
        seconds=max(each.seconds for each in unserved),
        query=query,
        hint=_("Start manage.py runworker --queues %(names)s, or one without --queues.") % {"names": ",".join(names)},
    )
    return [*(each for each in stuck if each.code != NO_WORKER), merged]


def _with_hints(stuck: list[OverviewReason], suggested: list[Advice]) -> tuple[list[OverviewReason], list[Advice]]:
    """Let the banner say what to do about missing capabilities; return the suggestions that say something else."""
    lacking = {each.queue: each for each in suggested if each.key.startswith("capabilities:")}
    hinted = [
        replace(each, hint=translate(lacking[each.queue].hint))
        if each.code == LACKING and each.queue in lacking
        else each
        for each in stuck
    ]
    hints = {each.hint for each in hinted}
    others = [each for each in suggested if translate(each.hint) not in hints]
    return hinted, [replace(each, text=translate(each.text), hint=translate(each.hint)) for each in others]


_advice: Final = Shared(lambda _: advice(), lambda _: FRESH_ADVICE)
