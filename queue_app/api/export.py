"""Tasks as a stream of lines, NDJSON or CSV, a page of rows at a time."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.http import HttpRequest, StreamingHttpResponse
from rest_framework.utils.encoders import JSONEncoder

from queue_app.api.representation import summary
from queue_app.models import Task

CONTENT_TYPES: Final = {"ndjson": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
#: A cell that begins so is a formula to programs for tables.
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_encode: Final = JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def response(request: HttpRequest, pages: Iterator[list[Task]], fields: Sequence[str], name: str) -> Any:
    """Return the pages as a streamed answer in the format ``name``; nothing is read before it is sent."""
    lines: Callable[[Sequence[Task], Sequence[str]], str] = _csv if name == "csv" else _ndjson
    head = ",".join(fields) + "\r\n" if name == "csv" else ""
    texts = _texts(pages, lambda tasks: lines(tasks, fields), head)
    # Django gathers a plain iterator in memory before it serves it under ASGI.
    content = _asynchronously(texts) if hasattr(request, "scope") else texts
    headers = {"Content-Disposition": f'attachment; filename="tasks.{name}"', "X-Accel-Buffering": "no"}
    return StreamingHttpResponse(content, content_type=CONTENT_TYPES[name], headers=headers)


def _texts(pages: Iterator[list[Task]], lines: Callable[[Sequence[Task]], str], head: str) -> Iterator[str]:
    if head:
        yield head
    for tasks in pages:
        yield lines(tasks)


async def _asynchronously(texts: Iterator[str]) -> AsyncIterator[str]:
    following = sync_to_async(lambda: next(texts, None))
    while (text := await following()) is not None:
        yield text


def _ndjson(tasks: Sequence[Task], fields: Sequence[str]) -> str:
    shown = (summary(task) for task in tasks)
    return "".join(f"{_encode({name: row[name] for name in fields})}\n" for row in shown)


def _csv(tasks: Sequence[Task], fields: Sequence[str]) -> str:
    target = io.StringIO()
    writer = csv.writer(target)
    for task in tasks:
        row = summary(task)
        writer.writerow([_cell(row[name]) for name in fields])
    return target.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        text = " ".join(value)
    else:
        encoded = json.loads(_encode(value))
        text = encoded if isinstance(encoded, str) else str(encoded)
    return f"'{text}" if text.startswith(FORMULA) else text
