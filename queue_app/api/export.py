"""Stream tasks as lines of NDJSON or CSV, one page of rows at a time."""

import csv
import io
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.http import HttpRequest, StreamingHttpResponse
from rest_framework.utils.encoders import JSONEncoder

from queue_app.api.representation import summary
from queue_app.api.waiting import limited
from queue_app.models import Task

CONTENT_TYPES: Final = {"ndjson": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
#: First characters that make a spreadsheet treat a cell as a formula.
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_encode: Final = JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def response(request: HttpRequest, pages: Iterator[list[Task]], fields: Sequence[str], name: str) -> Any:
    """Return the pages as a streamed answer in the format ``name``; each page is read when it is sent."""
    head, lines = ([",".join(fields) + "\r\n"], _csv) if name == "csv" else ([], _ndjson)
    texts = chain(head, (lines(tasks, fields) for tasks in pages))
    # Under ASGI Django reads a plain iterator into memory before it sends anything.
    content = _asynchronously(texts) if hasattr(request, "scope") else texts
    headers = {"Content-Disposition": f'attachment; filename="tasks.{name}"', "X-Accel-Buffering": "no"}
    return StreamingHttpResponse(content, content_type=CONTENT_TYPES[name], headers=headers)


async def _asynchronously(texts: Iterator[str]) -> AsyncIterator[str]:
    following = sync_to_async(lambda: _next(texts))
    while (text := await following()) is not None:
        yield text


def _next(texts: Iterator[str]) -> str | None:
    with limited():
        return next(texts, None)


def _ndjson(tasks: Sequence[Task], fields: Sequence[str]) -> str:
    return "".join(f"{_encode({name: row[name] for name in fields})}\n" for row in map(summary, tasks))


def _csv(tasks: Sequence[Task], fields: Sequence[str]) -> str:
    target = io.StringIO()
    csv.writer(target).writerows([_cell(row[name]) for name in fields] for row in map(summary, tasks))
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
