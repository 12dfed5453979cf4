"""Submit tasks by the names of their types: for the API, the command line, Celery and the request stream.

The type is only looked up among the registered tasks, and options that the caller leaves open
are those of the registered task.
"""

from collections.abc import Sequence
from dataclasses import replace

from queue_app import codecs, conf, registry
from queue_app.core.records import Enqueued, NewTask, TaskRow
from queue_app.core.signatures import check_arguments
from queue_app.core.states import Status
from queue_app.exceptions import IdempotencyConflict, InvalidTaskData, UnknownQueue
from queue_app.models import Queue, Task
from queue_app.services.enqueue.store import BeforePush, store_many, store_one
from queue_app.services.enqueue.validate import check_call, check_spec, check_task_type
from queue_app.services.read.inspect import get_task, position_of
from queue_app.sql.admission import taken_keys
from queue_app.sql.inspection import traces
from queue_app.typed import check_types


def submit(new: NewTask, *, before_push: BeforePush | None = None) -> Enqueued:
    """Store a task by the name of its type, and return it with its position in the queue.

    A replayed task is described as it is now; it may wait in another queue than the caller asked for.
    With ``before_push`` the caller writes the event that the task was accepted. Raises ``InvalidTaskData`` for a
    task that must not be stored (``WrongArguments`` with a signature, ``UnknownTaskType`` and ``UnknownQueue`` with
    near matches), and the other errors of ``enqueue``.
    """
    row = _row(new, set())
    stored = store_one(row, outside=True, before_push=before_push, locate=True)
    if stored.created:
        return stored
    task = get_task(Task.objects.all(), stored.id)
    spec = replace(row.spec, queue=task.queue, priority=task.priority, capabilities=tuple(task.capabilities))
    position, sent = position_of(task), traces([task.id]).get(task.id)
    return stored._replace(spec=spec, status=Status(task.status), queue_position=position, sent_trace=sent)


def submit_many(tasks: Sequence[NewTask]) -> list[Enqueued]:
    """Store many tasks by the names of their types, all or nothing; return them in order.

    Raises the same errors as ``submit``; an ``InvalidTaskData`` names the item, such as ``tasks[3].priority``.
    """
    rows: list[TaskRow] = []
    keys: set[str] = set()
    queues: set[str] = set()
    for position, new in enumerate(tasks):
        try:
            rows.append(_row(new, queues))
            _check_repetition(rows[-1].spec.idempotency_key, keys)
        except InvalidTaskData as error:
            error.field = f"tasks[{position}].{error.field}"
            raise
    return store_many(rows, outside=True)


def _row(new: NewTask, queues: set[str]) -> TaskRow:
    """Return the checked task; refuse a queue that neither staff nor the task itself have named.

    ``queues`` collects the queues that exist, so that each is looked up once.
    """
    registered = registry.get_for_caller(check_task_type(new.task_type))
    spec = check_spec(new, registered)
    if spec.queue != registered.queue_name and spec.queue not in queues:
        if not Queue.objects.filter(pk=spec.queue).exists():
            names = Queue.objects.values_list("name", flat=True)[:1000]
            raise UnknownQueue(spec.queue, {registered.queue_name, *names})
        queues.add(spec.queue)
    row, settings = check_call(spec, new.args, new.parameters), conf.get()
    if settings.codecs:
        codecs.check_forms([*new.args], "args")
        for name, value in new.parameters.items():
            codecs.check_forms(value, f"parameters.{name}")
    check_arguments(registered, new.args, new.parameters)
    if settings.typed_arguments:
        check_types(registered, *codecs.decode_call([*new.args], new.parameters))
    return row


def check_whole(user: str, keys: Sequence[str], following: str) -> None:
    """Raise ``IdempotencyConflict`` if the keys of one request were used for a request with fewer or more tasks.

    ``following`` is the key that one more task would have.
    """
    pairs = [(user, key) for key in (*keys, following)]
    taken = taken_keys(pairs, conf.get().retention.idempotency_seconds)
    if taken and taken != set(pairs[:-1]):
        raise IdempotencyConflict("The idempotency key was used for a request with other tasks.")


def _check_repetition(key: str | None, keys: set[str]) -> None:
    if key is None:
        return
    if key in keys:
        raise InvalidTaskData(
            "idempotency_key", "Another task of this request has the same key.", code="duplicate_in_batch"
        )
    keys.add(key)
