"""What answers hold, as JSON Schema. An answer is declared once, beside the attributes from which it is made.

``accepts`` names the answer of each method, and ``queue_app.api.schema`` writes all of them into the OpenAPI document.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

from django.db import models

from queue_app.api.serializers.base import Schema, component, described
from queue_app.api.serializers.kinds import TIME, UUID, column
from queue_app.core.priorities import BAND_NAMES
from queue_app.core.states import Status
from queue_app.models.fields import NamesField


def enum(values: Iterable[str]) -> Schema:
    """Return the schema of one of these words."""
    return {"type": "string", "enum": [str(value) for value in values]}


def ref(name: str) -> Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def maybe(schema: Schema) -> Schema:
    """Return a schema that allows null as well."""
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def named(schema: Schema) -> Schema:
    """Return the schema of an object whose names are not known beforehand."""
    return {"type": "object", "additionalProperties": schema}


def record(properties: dict[str, Schema], *, optional: Iterable[str] = ()) -> Schema:
    """Return the schema of an object; all but the optional properties are always there."""
    required = [name for name in properties if name not in set(optional)]
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def answer(name: str, properties: dict[str, Schema], *, optional: Iterable[str] = ()) -> Schema:
    """Name the schema of an object, and return a reference to it."""
    return component(name, record(properties, optional=optional))


def page(name: str, **former: Schema) -> Schema:
    """Return a reference to the schema of a page of the component ``name``."""
    found = {"results": listed(ref(name)), "next_cursor": maybe(TEXT), "next": maybe(TEXT)}
    return answer(f"{name}Page", found | former, optional=former)


TEXT: Final[Schema] = {"type": "string"}
#: Beside the schema of a former name of a field.
FORMER: Final[Schema] = {"deprecated": True}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
ANYTHING: Final[Schema] = {}
STATUS: Final = enum(Status)
BAND: Final = enum(BAND_NAMES)
_COLUMNS: Final[tuple[tuple[Any, Schema], ...]] = (
    (models.UUIDField, UUID),
    (models.DateTimeField, TIME),
    (models.BooleanField, FLAG),
    (models.IntegerField, COUNT),
    (models.FloatField, NUMBER),
    ((models.CharField, models.TextField), TEXT),
    (NamesField, listed(TEXT)),
)


class Shape:
    """Attributes of a row as a dictionary, and the schema of each, which follows from the column of the model.

    ``others`` name an attribute that is called otherwise, or a schema that does not follow, or both as a pair.
    """

    def __init__(self, model: Any, *names: str, **others: str | Schema | tuple[str, Schema]) -> None:
        pairs = {name: _pair(name, other) for name, other in others.items()}
        self.names = names
        self._read = attrgetter(*(pairs[name][0] if name in pairs else name for name in names))
        self.schemas = {name: _schema(model, *pairs.get(name, (name, None))) for name in names}

    def __call__(self, row: Any) -> dict[str, Any]:
        return dict(zip(self.names, self._read(row), strict=True))


def _pair(name: str, other: str | Schema | tuple[str, Schema]) -> tuple[str, Schema | None]:
    if isinstance(other, tuple):
        return other
    return (other, None) if isinstance(other, str) else (name, other)


def _schema(model: Any, source: str, schema: Schema | None) -> Schema:
    if schema is not None:
        return schema
    if source.endswith(".label"):
        return BAND
    field: Any = model._meta.get_field(source.rpartition(".")[2])  # noqa: SLF001 - Django's way to a model's fields
    schema = next(schema for kind, schema in _COLUMNS if isinstance(field, kind))
    if field.choices:
        schema = enum(value for value, _ in field.choices)
    return maybe(schema) if field.null else schema


def editable(model: type[models.Model], names: Iterable[str]) -> dict[str, Schema]:
    """Return the schemas of columns that requests may set, with what requests learn about them."""
    return {name: described(column(model, name)) for name in names}
