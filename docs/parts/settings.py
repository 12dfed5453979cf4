"""The tables of settings."""

import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Mapping

from parts.markdown import code, summary_of, table
from queue_app import conf


def comments_of(kind: type) -> dict[str, str]:
    """Return the comment beside each field of a dataclass."""
    found = re.findall(r"^    (\w+): .*?  # (.+)$", textwrap.dedent(inspect.getsource(kind)), re.MULTILINE)
    return dict(found)


def setting_table(kind: type) -> str:
    """Return the table of the settings of a dataclass, without its sections."""
    hints = typing.get_type_hints(kind)
    comments = comments_of(kind)
    rows = []
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            continue
        name = field.name.upper()
        default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
        meaning = comments.get(field.name, "")
        rows.append((code(name), type_name(hints[field.name]), literal(default), meaning))
    return table(("key", "type", "default", "meaning"), rows)


def type_name(hint: object) -> str:
    """Return the type of a setting in words."""
    names = {str: "text", bool: "boolean", int: "integer", float: "number"}
    container = "dict" if typing.get_origin(hint) in (dict, Mapping) else "list"
    return names.get(typing.cast("type", hint), container)


def literal(value: object) -> str:
    """Return a default as Python code; whole floats without a fraction."""
    return code(int(value) if isinstance(value, float) and value.is_integer() else repr(value).replace("'", '"'))


def settings() -> str:
    """Return the tables of all settings."""
    parts = [setting_table(conf.TaskQueueSettings)]
    for name, kind in typing.get_type_hints(conf.TaskQueueSettings).items():
        if dataclasses.is_dataclass(kind):
            head = f"## {code(name.upper())}\n\n{summary_of(kind)}"
            parts.append(f"{head}\n\n{setting_table(typing.cast('type', kind))}")
    return "\n\n".join(parts)
