"""What requests about tasks may hold: submissions, filters, lists, and actions on many."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar, Final

from queue_app import conf
from queue_app.api.headers import KEY_HEADER
from queue_app.api.serializers import kinds
from queue_app.api.serializers.base import Body, Check, Field, InBody, ListOf, Query
from queue_app.api.serializers.rules import Rule, in_order, not_both, one_of
from queue_app.core.options import FORMER_NAMES, KEY_LENGTH, Door
from queue_app.core.payload import dump_json
from queue_app.core.records import NewTask
from queue_app.core.states import OTHER_NAMES, PENDING_NAME, Status
from queue_app.exceptions import InvalidTaskData
from queue_app.models.fields import TYPE_LENGTH, USER_LENGTH
from queue_app.models.operation import OperationKind
from queue_app.services.enqueue.store import check_whole
from queue_app.services.enqueue.validate import MAX_DELAY, check_signal_name, check_text
from queue_app.services.operations.request import OPTIONS, ORDERS, STATES, Action, OperationOptions
from queue_app.services.read.search import meanings, nested
from queue_app.services.read.task_filter import TIMES, TaskFilter, seeks_hidden

MAX_TASKS: Final = 1000
MAX_IDS: Final = 1000
PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 200
MAX_WAIT: Final = 60
#: Former names of parameters of two lists -> their names.
FORMER_PAGE: Final = {"before": "cursor", "limit": "page_size"}
FORMATS: Final = ("ndjson", "csv")
#: What a list says about a task; the parameter ``fields`` selects from it.
SUMMARY_FIELDS: Final = (
    "id", "task_id", "task_type", "queue", "status", "priority", "effective_priority", "required_capabilities", "user",
    "workflow_id", "attempt", "retry_count", "assigned_worker_id", "created_at", "run_after", "queued_at", "started_at",
    "deadline", "completed_at", "cancel_requested_at", "trace_id",
)  # fmt: skip
ACTIONS: Final = tuple(kind.value for kind in STATES)
#: Former names of fields in answers -> their names.
FORMER_FIELDS: Final = {
    "capabilities": "required_capabilities",
    "failures": "retry_count",
    "finished_at": "completed_at",
    "worker_id": "assigned_worker_id",
}
STATUS_NAMES: Final = (PENDING_NAME, *(status.value for status in Status), *OTHER_NAMES)
NEEDS: Final = "For tasks of other users it needs queue_app.view_payload, else the status is 403."


class Submission(Body):
    """A task to store; the services check it again, because Python code enqueues without the API."""

    aliases: ClassVar[Mapping[str, str]] = FORMER_NAMES
    example: ClassVar[Any] = {
        "task_type": "shop.tasks.send_receipt", "parameters": {"order_id": 42}, "priority": "high",
    }  # fmt: skip
    read_only_hints: ClassVar[Mapping[str, str]] = {"args": "Name the arguments in `parameters`; args are for Python."}
    answers = ("TaskDetail", "Submitted")
    task_type = kinds.text(TYPE_LENGTH, required=True)
    parameters = kinds.payload_object()
    queue = kinds.name(allow_null=True)
    priority = kinds.band(allow_null=True)
    vars().update(kinds.options_at(Door.API, nullable=True))
    run_after = kinds.moment(allow_null=True)
    delay = kinds.number(
        0, MAX_DELAY.total_seconds(), allow_null=True, help_text="Seconds from now; use it instead of run_after."
    )

    rules = (not_both("run_after", "delay"),)


class Submissions(Body):
    example: ClassVar[Any] = {"tasks": [Submission.example, Submission.example | {"parameters": {"order_id": 43}}]}
    tasks = ListOf(Submission(), MAX_TASKS, least=1, code="batch_too_large", required=True)


def new_task(values: dict[str, Any], user: str, key_header: str | None) -> NewTask:
    """Return the task of a submission, whose key may be in the header."""
    if key_header is not None:
        if values.get("idempotency_key") not in (None, key_header):
            message = f"The body and the header {KEY_HEADER} differ."
            raise InvalidTaskData("idempotency_key", message, code="conflicting_fields")
        values["idempotency_key"] = key_header
    return NewTask(user=user, **values)


def new_tasks(values: dict[str, Any], user: str, key_header: str | None) -> list[NewTask]:
    """Return the tasks of many submissions.

    A key in the header covers the whole request: each task without its own key gets a key derived from it. Raises
    ``IdempotencyConflict`` if the header was used for fewer or more tasks.
    """
    if key_header is not None:
        base = hashlib.sha256(check_text(key_header, "idempotency_key", KEY_LENGTH).encode()).hexdigest()[:48]
        derived = {f"{base}-{at}": task for at, task in enumerate(values["tasks"]) if not task.get("idempotency_key")}
        check_whole(user, list(derived), f"{base}-{len(values['tasks'])}")
        for key, task in derived.items():
            task["idempotency_key"] = key
    return [NewTask(user=user, **task) for task in values["tasks"]]


class NewSignal(Body):
    example: ClassVar[Any] = {"name": "approved", "payload": {"approved": True}}
    name = Field(lambda value, _: check_signal_name(value), kinds.NAME, required=True)
    payload = Field(lambda value, _: value, {}, allow_null=True, default=None)  # the service checks it
    reason = kinds.reason(default="")


class PriorityChange(Body):
    example: ClassVar[Any] = {"priority": "high"}
    priority = kinds.band(required=True, source="band")


class TaskFilters(Query):
    """The filters of tasks, in the query of a list and in the body of an action on many."""

    aliases: ClassVar[Mapping[str, str]] = {f"finished_{end}": f"completed_{end}" for end in ("after", "before")}

    status = kinds.several(
        kinds.word(STATUS_NAMES, "unknown_status"), source="statuses", help_text="pending: not ended."
    )
    priority = kinds.several(kinds.band(), source="bands", help_text="The band of the task itself.")
    effective_priority = kinds.several(
        kinds.band(), source="effective_bands", help_text="The band to which the task has been promoted by now."
    )
    queue = kinds.several(kinds.name(), source="queues")
    task_type = kinds.several(kinds.text(TYPE_LENGTH), source="task_types")
    capability = kinds.several(kinds.name(), source="capabilities", help_text="A capability that the task requires.")
    vars().update(kinds.option_filters())
    user = kinds.text(USER_LENGTH, help_text="For callers who may see the tasks of all users.")
    worker = kinds.identifier(source="worker_id", help_text="The worker that runs the task or ran it last.")
    workflow = kinds.several(kinds.identifier(), source="workflow_ids", help_text="The workflow of the task.")
    error = kinds.text(200, help_text=f"Text in the error of an attempt. {NEEDS}")
    created_after = kinds.moment(help_text="At or after.")
    created_before = kinds.moment(help_text="Before.")
    queued_after = kinds.moment()
    queued_before = kinds.moment()
    started_after = kinds.moment()
    started_before = kinds.moment()
    completed_after = kinds.moment(source="finished_after")
    completed_before = kinds.moment(source="finished_before")
    run_after = kinds.moment()
    run_before = kinds.moment()
    rules = tuple(in_order(time, {"finished": "completed"}.get(time, time)) for time in TIMES)


MAX_PARAMETERS: Final = 5
MAX_PATH: Final = 5
PARAMETERS_PREFIX: Final = "parameters__"


class TaskQuery(TaskFilters):
    """Filters in a query string, also by parameters: ``parameters__customer__id=7``."""

    def run_validation(self, data: Any = None) -> Any:
        """Return the values, with ``parameters`` as groups of alternatives."""
        searched = [one for one in data if one.startswith(PARAMETERS_PREFIX)]
        values = super().run_validation({one: texts for one, texts in data.items() if one not in searched})
        if len(searched) > MAX_PARAMETERS:
            message = f"At most {MAX_PARAMETERS} parameters can be searched at once."
            raise InvalidTaskData("parameters", message, code="too_many", limit=MAX_PARAMETERS)
        if searched:
            types = values.get("task_types", ())
            values["parameters"] = [_searched(one, data[one], types) for one in searched]
        return values


def _searched(parameter: str, texts: list[str], task_types: Sequence[str]) -> list[dict[str, Any]]:
    """Return the alternatives, one of which the parameters must contain: the text itself, and its value as JSON."""
    path = parameter.removeprefix(PARAMETERS_PREFIX).split("__")
    if len(path) > MAX_PATH or not all(path):
        message = f"Name 1 to {MAX_PATH} keys, like parameters__customer__id=7."
        raise InvalidTaskData(parameter, message, code="unknown_parameter")
    if len(texts) != 1:
        raise InvalidTaskData(parameter, f"{parameter:.80} may be given only once.", code="repeated_parameter")
    text = parameter + texts[0]
    if "\x00" in text or text.encode(errors="replace") != text.encode(errors="surrogatepass"):
        raise InvalidTaskData(parameter, "Names and values must be text without NUL.", code="invalid_characters")
    found = [nested(path, value) for value in meanings(texts[0])]
    _refuse_hidden(found[0], task_types, parameter)
    return found


def _refuse_hidden(contained: dict[str, Any], task_types: Sequence[str], parameter: str) -> None:
    """Refuse to search for a value that is never displayed: a caller could find a secret by trying values."""
    if seeks_hidden(contained, task_types):
        message = f"{parameter:.80}: this value is hidden, so it cannot be searched for."
        raise InvalidTaskData(parameter, message, code="sensitive_parameter")


def _contained(value: Any, field: str) -> dict[str, Any]:
    dump_json(kinds.json_object(value, field), field=field, limits=conf.get().payload)
    contained: dict[str, Any] = value
    return contained


class BodyFilter(InBody, TaskFilters):
    """Filters in a body; ``parameters`` is an object that the parameters of a task must contain."""

    parameters = Field(_contained, {"type": "object"})

    def run_validation(self, data: Any = None) -> Any:
        values = super().run_validation(data)
        if "parameters" in values:
            _refuse_hidden(values["parameters"], values.get("task_types", ()), "parameters")
            values["parameters"] = [[values["parameters"]]]
        return TaskFilter(**values)


def cursor(check: Check) -> Field:
    """Where a page begins: an opaque text, in which ``check`` reads the column by which the list is ordered."""

    def read(value: Any, field: str) -> Any:
        try:
            return check(value, field)
        except InvalidTaskData:
            raise bad_cursor(field) from None

    return Field(read, {"type": "string"}, help_text="next_cursor of the previous page.")


def bad_cursor(field: str) -> InvalidTaskData:
    """Return the error of a cursor that no list has given."""
    return InvalidTaskData(field, "This is not a cursor; use next_cursor of the previous page.", code="invalid_cursor")


def page_size(default: int = PAGE_SIZE) -> Field:
    """The number of rows in a page."""
    return kinds.whole(1, MAX_PAGE_SIZE, default=default, help_text="Number of rows in a page.")


class IdPage(Query):
    """A page of a list by UUID."""

    page_size = page_size()
    cursor = cursor(kinds.uuid_of)


class WorkerPage(IdPage):
    page_size = page_size(MAX_PAGE_SIZE)


class NamePage(Query):
    """A page of a list by name."""

    page_size = page_size(MAX_PAGE_SIZE)
    cursor = cursor(partial(check_text, limit=kinds.TEXT_LENGTH))


class NumberPage(Query):
    """A page of a list by number."""

    page_size = page_size(MAX_PAGE_SIZE)
    cursor = cursor(kinds.digits)


def _fields() -> ListOf:
    help_text = "Names of fields to return, separated by commas."
    known = kinds.word((*SUMMARY_FIELDS, *FORMER_FIELDS), "unknown_field")
    return ListOf(
        known, len(SUMMARY_FIELDS), least=1, help_text=help_text,
        into=lambda names: [FORMER_FIELDS.get(name, name) for name in names],
    )  # fmt: skip


class TaskListQuery(TaskQuery):
    fields = _fields()  # type: ignore[assignment]  # the framework takes declared fields out of the class
    page_size = page_size()
    cursor = cursor(kinds.uuid_of)


class TaskCountQuery(TaskQuery):
    exact = kinds.flag(default=False, help_text="true: count beyond 10 000 tasks as well.")


class TaskExportQuery(TaskQuery):
    fields = _fields()  # type: ignore[assignment]  # the framework takes declared fields out of the class
    format = kinds.word(FORMATS, "unknown_format", default=FORMATS[0])


class WaitQuery(Query):
    wait = kinds.whole(0, MAX_WAIT, help_text="Maximum seconds to wait for the end.")


class TaskDeleteQuery(Query):
    delete = kinds.flag(default=False, help_text="true: delete the task, which must have ended.")


def operation_option(name: str) -> Field:
    """An option of operations, as ``OPTIONS`` declares it."""
    kind, lowest, highest, about = OPTIONS[name]
    if kind is int:
        return kinds.whole(int(lowest), highest, help_text=about)
    return kinds.number(lowest, highest, help_text=about)


def order() -> Field:
    """Which rows an action on many takes first."""
    return kinds.word(ORDERS, help_text="Which come first, if there is a limit or a rate.")


class Selection(Body):
    """Which rows an action on many applies to, and how it proceeds."""

    rules: ClassVar[tuple[Rule, ...]] = (one_of("ids", "filter", "Give ids or a filter; an empty filter selects all."),)
    ids = ListOf(kinds.identifier(), MAX_IDS)
    limit = operation_option("limit")
    reason = kinds.reason(default="")
    dry_run = kinds.flag(default=False, help_text="Only count.")


def _band_of_action(values: Mapping[str, Any]) -> InvalidTaskData | None:
    """Demand a band for reprioritise, and only for it."""
    try:
        Action(kind=values["action"], band=values.get("priority"))
    except InvalidTaskData as error:
        return error
    return None


class TaskSelection(Selection):
    example: ClassVar[Any] = {"action": "reprioritise", "priority": "high", "filter": {"parameters": {"order_id": 42}}}
    rules = (
        *Selection.rules,
        Rule(
            _band_of_action,
            {
                "if": {"properties": {"action": {"const": str(OperationKind.REPRIORITISE)}}},
                "then": {"required": ["priority"]},
                "else": {"not": {"required": ["priority"]}},
            },
        ),
    )
    action = Field(
        lambda value, field: OperationKind(kinds.choice(ACTIONS, "unknown_action")(value, field)),
        {"type": "string", "enum": list(ACTIONS)},
        required=True,
    )
    priority = kinds.band(help_text="For reprioritise, and only for it.")
    filter = BodyFilter(help_text=f"The same names as in the query of a list; parameters is an object. {NEEDS}")
    rate = operation_option("rate")
    order = order()


def options_of[O: OperationOptions](kind: type[O], values: Mapping[str, Any]) -> O:
    """Return the options of an operation that a selection gives."""
    return kind(**{each.name: values[each.name] for each in fields(kind) if each.name in values})
