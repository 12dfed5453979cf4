"""Refusals of schemathesis' requests whose reason no schema can say; everything else fails the run."""

from typing import Any, Final

import schemathesis
from schemathesis.core.failures import Failure
from schemathesis.openapi.checks import RejectedPositiveData

#: Code of a field's error -> why JSON Schema and OpenAPI cannot say it.
UNSPEAKABLE: Final = {
    # a text that only the answers of a list give
    "invalid_cursor": "the place in a list",
    # what is stored or registered in this project
    "unknown_task_type": "registered functions",
    "wrong_arguments": "signatures of functions",
    "unknown_queue": "rows",
    "masked_value": "the stored value",
    "changed_meanwhile": "the ETag of a row",
    "sensitive_parameter": "settings of the project",
    # a format of its own
    "unknown_zone": "time zones of the server",
    "invalid_cron": "the grammar of cron",
    # Python and PostgreSQL refuse more characters than a portable regular expression can name
    "invalid_characters": "Unicode categories",
    "blank": "white space alone, of any kind",
    "nul_not_allowed": "NUL anywhere in a value of any shape",
    "invalid_unicode": "surrogates anywhere in a value of any shape",
    # bounds over a whole value
    "number_out_of_range": "numbers anywhere in a value of any shape",
    "number_too_long": "digits of a number",
    "too_deep": "depth",
    "too_many_nodes": "number of all values",
    "payload_too_large": "bytes",
    "too_many": "a parameter's items, which commas inside of an item separate again",
    # relations between values
    "date_out_of_range": "bounds that depend on today",
    "reversed_range": "one time after another",
    "duplicate_in_batch": "one key of each item",
    "invalid": "limits of a row that exclude each other, such as a delay and a rate; a second row of limits",
    "invalid_workflow": "cycles, names that refer to others",
}
#: Two parameters, or a header and a field: a schema describes one of them.
ELSEWHERE: Final = "conflicting_fields"


@schemathesis.hook
def filter_failure(context: Any, failure: Failure, case: Any, response: Any) -> bool:
    """Return whether a failure counts."""
    if not isinstance(failure, RejectedPositiveData) or "json" not in response.headers.get("content-type", [""])[0]:
        return True
    problem = response.json()
    codes = {error["code"] for error in problem.get("errors", ())} or {problem.get("code")}
    beside = case.query or "Idempotency-Key" in (case.headers or {})
    return not codes <= UNSPEAKABLE.keys() | ({ELSEWHERE} if beside else set())
