"""A claim in one round trip: one function picks tasks, and one statement grants them.

``sql/claim_1.sql`` stands in line behind the lock that a rebuild takes, so one claim at a time looks at rows and gates.
Both statements are one transaction: a crash in between leaves nothing picked and nothing granted. The commit does not
wait for the disk, as in ``queue_app.sql.claim``.
"""

import json
import time
import uuid
from typing import Final

from queue_app import conf
from queue_app.core.records import ClaimedTask, Proposal
from queue_app.exceptions import IndexNotReady
from queue_app.index import MAX_CLAIM, Profile
from queue_app.sql.claim import GRANT
from queue_app.sql.database import BY_KEYS_ONLY, fetch_prepared

# The function passes over rows that another transaction has locked, so the grant waits for none.
_PICK: Final = f"""
SELECT set_config('synchronous_commit', 'off', true), {BY_KEYS_ONLY},
    queue_app_pick_1(%s::uuid, %s::text[], %s::text[], %s::text[], %s::int, %s::int, %s::bool)
"""
_ANSWER: Final = "current_setting('taskqueue.pick')"
_STAMP: Final = f"({_ANSWER}::jsonb ->> 'stamp')::bigint"
_GENERATION: Final = f"({_ANSWER}::jsonb ->> 'generation')::bigint"
_IDS: Final = f"ARRAY(SELECT jsonb_array_elements_text({_ANSWER}::jsonb -> 'ids')::uuid)"


#: Grants what was picked, and records whether slots are left; the first column is the answer of the pick, once.
_GRANT: Final = f"""
WITH granted AS ({GRANT % ("%s", _STAMP, "%s", _IDS, _IDS, _STAMP, _GENERATION, "%s")})
SELECT CASE WHEN row_number() OVER () = 1 THEN pick.answer END, granted.*
FROM (
    SELECT {_ANSWER} AS answer, queue_app_claimed_1(%s, (SELECT COALESCE(sum(weight), 0) FROM granted) < %s)
) AS pick LEFT JOIN granted ON true
"""
#: Slots of a worker that runs tasks of any weight.
_ANY_WEIGHT: Final = 2**15 - 1


def claim(profile: Profile, worker_id: uuid.UUID, want: int, *, reserve: bool) -> Proposal:
    """Grant tasks for up to ``want`` slots of a worker; the proposal has them.

    Raises ``IndexNotReady`` until a rebuild has finished, and database errors.
    """
    asked_at = time.monotonic()
    names = [list(profile.task_types), list(profile.queues) or None, list(profile.capabilities)]
    slots, want = profile.slots or _ANY_WEIGHT, min(want, MAX_CLAIM)
    pick = (_PICK, [worker_id, *names, slots, want, reserve])
    rows = fetch_prepared(pick, (_GRANT, [worker_id, conf.get().retry.timeout_factor, worker_id, worker_id, want]))
    answer = json.loads(next(text for text, *_ in rows if text is not None))
    if answer["state"] != "ready":
        raise IndexNotReady("The tables of the index are being rebuilt from the tasks.")
    ids = [uuid.UUID(task_id) for task_id in answer["ids"]]
    granted = {row[1]: ClaimedTask.from_row(row[1:]) for row in rows if row[1] is not None}
    return Proposal(
        answer["generation"],
        answer["stamp"],
        tuple((task_id, "") for task_id in ids),
        answer["wait"],
        paced=frozenset(map(uuid.UUID, answer["paced"])),
        asked_at=asked_at,
        granted=tuple(granted[task_id] for task_id in ids if task_id in granted),
    )
