"""A client of the API, made from its OpenAPI document when it starts; it needs nothing but Python.

    queue = Client("https://tasks.example.com", "tq_…")
    task = queue.submit_task({"task_type": "shop.tasks.send_receipt", "parameters": {"order_id": 42}})
    done = queue.get_task(task_id=task["task_id"], wait=20)
    for task in queue.list_tasks(status="failed", page_size=10)["results"]: ...

Each operation of the document is a method: a body, if it takes one, then parameters by name.
"""

import json
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen


class ApiError(Exception):
    """The API refused: ``problem`` is its problem document, and its ``code`` is stable."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(f"{problem['code']}: {problem['detail']}")
        self.problem = problem


class Client:
    """Calls the operations of one task queue."""

    def __init__(self, address: str, key: str, timeout: float = 90) -> None:
        self.address, self.key, self.timeout = address.rstrip("/"), key, timeout
        document = self._send("GET", "/api/schema")
        self._operations = {
            operation["operationId"]: (method.upper(), path)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the operation of this name as a function."""
        if name.startswith("_") or name not in self._operations:
            raise AttributeError(name)
        method, path = self._operations[name]

        def call(body: Any = None, **given: Any) -> Any:
            inside = {key: quote(str(given.pop(key)), safe="") for key in list(given) if f"{{{key}}}" in path}
            address = path.format(**inside) + ("?" + urlencode(given) if given else "")
            return self._send(method, address, body)

        return call

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        headers = {
            "Authorization": f"Bearer {self.key}",
            "Accept": "application/json",
            "Content-Type": "application/json",
        }
        data = None if body is None else json.dumps(body).encode()
        try:
            request = Request(self.address + path, data, headers, method=method)  # noqa: S310 - the address is yours
            with urlopen(request, timeout=self.timeout) as answer:  # noqa: S310
                return json.load(answer)
        except HTTPError as error:
            raise ApiError(json.load(error)) from None
