"""Serializers that are the only declaration of what a request may hold.

A serializer reads a body or a query string, and the OpenAPI document shows its schema. Unlike the framework's own,
these coerce nothing, refuse unknown names, and report all errors of a request together, as ``InvalidTaskData`` with a
stable code and the path of the value. A field is optional unless it says ``required=True``.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, ClassVar, Final, cast

from django.http import QueryDict
from rest_framework import serializers
from rest_framework.fields import empty
from rest_framework.settings import api_settings

from queue_app.api.errors import MAX_ERRORS, InvalidInput, causes
from queue_app.api.serializers.rules import Rule
from queue_app.exceptions import InvalidTaskData, TaskQueueError, near_matches

type Schema = dict[str, Any]
type Check = Callable[[Any, str], Any]

NAME_LENGTH: Final = 255
#: The schemas of answers and of bodies by their names in the OpenAPI document: generated clients have a class for each.
COMPONENTS: Final[dict[str, Schema]] = {}


class Field(serializers.Field[Any, Any, Any, Any]):
    """A value that ``check`` accepts and ``schema`` describes; ``parse`` reads it from a query string first.

    A check takes the value and its name, and returns the value or raises ``InvalidTaskData``.
    """

    def __init__(
        self, check: Check, schema: Schema, parse: Check | None = None, *, required: bool = False, **options: Any
    ) -> None:
        super().__init__(required=required, **options)
        self._check, self._parse, self._schema = check, parse, schema

    def bind(self, field_name: str, parent: Any) -> None:
        """Learn the name in messages; the items of a list have the name of the list."""
        super().bind(field_name, parent)
        self.subject = field_name or parent.subject

    def run_validation(self, data: Any = empty) -> Any:
        """Return the checked value; its errors name paths below this field."""
        if data is None and self.allow_null:
            return None
        try:
            return self._check(data, self.subject)
        except InvalidTaskData as error:
            error.field = error.field.removeprefix(self.subject) if error.field.startswith(self.subject) else ""
            raise

    def read_texts(self, texts: list[str]) -> Any:
        """Return the checked value of a parameter in a query string, which may be given only once."""
        if len(texts) != 1:
            raise InvalidTaskData("", f"{self.subject:.80} may be given only once.", code="repeated_parameter")
        try:
            return self.run_validation(texts[0] if self._parse is None else self._parse(texts[0], self.subject))
        except InvalidTaskData as error:
            error.field = ""
            raise

    def schema(self) -> Schema:
        return self._schema


class ListOf(Field):
    """A list of values of one field; in a query string, repeated or separated by commas."""

    def __init__(  # noqa: PLR0913 - by name
        self,
        child: Any,
        most: int,
        *,
        least: int = 0,
        code: str = "too_many",
        into: Callable[[list[Any]], Any] = list,
        unique: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(self._items, {}, **options)
        self._child, self._most, self._least, self._code, self._into = child, most, least, code, into
        self._unique = unique  # said by the schema; ``into`` checks it

    def bind(self, field_name: str, parent: Any) -> None:
        super().bind(field_name, parent)
        self._child.bind("", self)

    def read_texts(self, texts: list[str]) -> Any:
        """Return the checked items of a parameter, which may be repeated or hold several items with commas."""
        try:
            return self.run_validation([part for text in texts for part in text.split(",")])
        except TaskQueueError as error:
            for cause in causes(error):
                cause.field = ""  # the position in the list means nothing in a query string
            raise

    def run_validation(self, data: Any = empty) -> Any:
        """Return the checked items; their errors name positions."""
        return None if data is None and self.allow_null else self._items(data, self.subject)

    def _items(self, value: Any, name: str) -> Any:
        if not isinstance(value, list):
            raise InvalidTaskData("", f"{name} must be a list.", code="list_expected")
        if len(value) < self._least:
            raise InvalidTaskData("", f"{name} must not be empty.", code="blank")
        if len(value) > self._most:
            message = f"{name} has {len(value)} items; the limit is {self._most}."
            raise InvalidTaskData("", message, code=self._code, limit=self._most)
        items: list[Any] = []
        errors: list[InvalidTaskData] = []
        for position, item in enumerate(value):
            try:
                items.append(self._child.run_validation(item))
            except TaskQueueError as error:
                errors += _placed(f"[{position}]", error)
                if len(errors) >= MAX_ERRORS:
                    break
        _refuse(errors[:MAX_ERRORS])
        try:
            return self._into(items)
        except InvalidTaskData as error:
            error.field = ""
            raise

    def schema(self) -> Schema:
        bounds = ({"minItems": self._least} if self._least else {}) | {"maxItems": self._most}
        unique = {"uniqueItems": True} if self._unique else {}
        return {"type": "array", "items": _inner(self._child)} | bounds | unique


class OneOrSeveral(ListOf):
    """A list that a body may also give as its only item."""

    def run_validation(self, data: Any = empty) -> Any:
        return super().run_validation(data if isinstance(data, list) else [data])

    def body_schema(self) -> Schema:
        return {"anyOf": [_inner(self._child), self.schema()]}


class Body(serializers.Serializer[Any]):
    """A JSON object."""

    #: Answers whose other names requests must not have, because the queue sets them.
    answers: ClassVar[tuple[str, ...]] = ()
    #: What to send instead of some of them.
    read_only_hints: ClassVar[Mapping[str, str]] = {}
    rules: ClassVar[tuple[Rule, ...]] = ()
    example: ClassVar[Any] = None  # for the OpenAPI document
    into: ClassVar[type | None] = None  # what is made of the values
    unknown_code: ClassVar[str] = "unknown_field"
    #: Former names that requests may still use -> the fields' names.
    aliases: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def read(cls, data: Any) -> dict[str, Any]:
        """Return the values of the fields that ``data`` gives or that have a default; raise all errors together."""
        return cast("dict[str, Any]", shared(cls).run_validation(data))

    def __init__(self, *args: Any, required: bool = False, **options: Any) -> None:
        super().__init__(*args, required=required, **options)

    @property
    def subject(self) -> str:
        return self.field_name or str(getattr(self.parent, "subject", "The body"))

    def run_validation(self, data: Any = empty) -> Any:
        """Return the checked values by the sources of their fields."""
        if data is None and self.allow_null:
            return None
        if not isinstance(data, dict):
            raise InvalidTaskData("", f"{self.subject} must be an object with string keys.", code="object_expected")
        known, plan = self._plan
        errors: list[InvalidTaskData] = []
        if not data.keys() <= known:
            data, errors = self._renamed(data)
            errors += self._refused(data)
        values: dict[str, Any] = {}
        for name, field, source in plan:
            if name in data:
                try:
                    values[source] = self.value_of(field, data[name])
                except TaskQueueError as error:
                    errors += _placed(name, error)
            elif field.required:
                errors.append(InvalidTaskData(name, f"{name} is required.", code="required"))
            elif field.default is not empty:
                values[source] = field.default
        errors = errors or [found for rule in self.rules if (found := rule.check(values)) is not None]
        if errors:
            _refuse(errors)
        return values if self.into is None else self.into(**values)

    @cached_property
    def _plan(self) -> tuple[frozenset[str], list[tuple[str, Any, str]]]:
        """The names, and each with its field and the name of its value."""
        fields = self.fields
        return frozenset(fields), [(name, field, str(field.source)) for name, field in fields.items()]

    def value_of(self, field: Any, data: Any) -> Any:
        return field.run_validation(data)

    def _renamed(self, data: Mapping[str, Any]) -> tuple[dict[str, Any], list[InvalidTaskData]]:
        """Return the data with former names replaced, and an error for each field that is given under two names."""
        renamed = {self.aliases.get(name, name): value for name, value in data.items()}
        twice = [name for name in data if self.aliases.get(name, name) != name and self.aliases[name] in data]
        text = "Give {} or its former name {}, not both."
        return renamed, [
            InvalidTaskData(name, text.format(self.aliases[name], name), code="conflicting_fields") for name in twice
        ]

    def _refused(self, data: Mapping[str, Any]) -> Iterator[InvalidTaskData]:
        fields = self.fields
        for name in [name for name in data if name not in fields][:MAX_ERRORS]:
            if any(name in COMPONENTS[answer]["properties"] for answer in self.answers):
                text = self.read_only_hints.get(name, f"{name} is set by the queue, not by callers.")
                yield InvalidTaskData(name, text, code="read_only_field")
                continue
            matches = [repr(match) for match in near_matches(name[:NAME_LENGTH], fields)]
            known = f"Known: {', '.join(sorted(fields))}." if fields else "Nothing is known here; leave it out."
            hint = f" Did you mean {' or '.join(matches)}?" if matches else f" {known}"
            yield InvalidTaskData(name, f"{name!r:.80} is not known here.{hint}", code=self.unknown_code)

    @cached_property
    def is_demanded(self) -> bool:
        """Whether an empty body is an error."""
        return bool(self.rules) or any(field.required for field in self.fields.values())

    def schema(self) -> Schema:
        fields = shared(type(self)).fields
        found: Schema = {"type": "object", "properties": properties(type(self)), "additionalProperties": False}
        required = [name for name, field in fields.items() if field.required]
        found |= {"required": required} if required else {}
        rest: list[Schema] = []
        for rule in [each.schema for each in self.rules] + [
            {"not": {"required": [name, old]}} for old, name in self.aliases.items()
        ]:
            if found.keys().isdisjoint(rule):
                found |= rule
            else:
                rest.append(rule)
        return found | ({"allOf": rest} if rest else {})


class Query(Body):
    """A query string."""

    unknown_code = "unknown_parameter"

    @classmethod
    def read(cls, data: QueryDict) -> dict[str, Any]:
        """Return the values; the parameter that selects the renderer is ignored unless it is a field."""
        fields = shared(cls).fields
        ignored = {api_settings.URL_FORMAT_OVERRIDE} - set(fields)
        return super().read({name: data.getlist(name) for name in data if name not in ignored})

    def value_of(self, field: Any, data: Any) -> Any:
        return field.read_texts(data)


class InBody(Query):
    """The filters of a query string, in a body."""

    unknown_code = "unknown_field"

    def value_of(self, field: Any, data: Any) -> Any:
        return field.run_validation(data)


@cache
def shared[B: Body](cls: type[B]) -> B:
    """Return the one instance of a serializer: it keeps nothing of a request, and making one is slow."""
    return cls()


def _refuse(errors: list[InvalidTaskData]) -> None:
    if errors:
        raise errors[0] if len(errors) == 1 else InvalidInput(errors)


def _placed(place: str, error: TaskQueueError) -> list[InvalidTaskData]:
    """Return the errors of a value with their full paths."""
    found = list(causes(error))
    if not found:
        raise error
    for cause in found:
        rest = cause.field
        cause.field = place + (rest if not rest or rest[0] in ".[" else f".{rest}")
    return found


def component(name: str, schema: Schema) -> Schema:
    """Name a schema, and return a reference to it."""
    COMPONENTS[name] = schema
    return {"$ref": f"#/components/schemas/{name}"}


def properties(serializer: type[Body], *, in_body: bool = True) -> dict[str, Schema]:
    """Return the schemas of the fields by their names and their former names."""
    found = {name: described(field, in_body=in_body) for name, field in shared(serializer).fields.items()}
    former = {"deprecated": True}
    return found | {
        # Without the default: a generated client would send it beside the other name.
        old: {key: value for key, value in found[name].items() if key != "default"}
        | former
        | {"description": f"Former name of {name}."}
        for old, name in serializer.aliases.items()
    }


def _inner(field: Any) -> Schema:
    """Return the schema of a field inside of another one; that of an object is a reference to a named component."""
    return component(type(field).__name__, field.schema()) if isinstance(field, Body) else dict(field.schema())


def described(field: Any, *, in_body: bool = True) -> Schema:
    """Return the schema of a named field, with its default, its description and null if it is allowed."""
    found: Schema = field.body_schema() if in_body and isinstance(field, OneOrSeveral) else _inner(field)
    if field.allow_null:
        found = {"anyOf": [found, {"type": "null"}]}
    if field.default not in (empty, None, ()):
        found = found | {"default": field.default}
    return found | ({"description": str(field.help_text)} if field.help_text else {})
