"""Failures of schemathesis that are no differences between document and server; all others fail the run."""

from typing import Any

import schemathesis
from schemathesis.core.failures import Failure, ServerError
from schemathesis.openapi.checks import MissingHeaderNotRejected, RejectedPositiveData

#: Codes of refusals whose reason a JSON Schema cannot say.
MEANING = {
    "unknown_task_type",
    "unknown_queue",
    "unknown_zone",
    "invalid_cron",
    "too_many",  # in a query string: a comma in a value separates two
    "wrong_arguments",
    "conflicting_fields",
    "reversed_range",
    "date_out_of_range",
    "invalid_characters",
    "nul_not_allowed",
    "invalid_unicode",
    "number_out_of_range",
    "number_too_long",
    "too_deep",
    "too_many_nodes",
    "duplicate_in_batch",
    "sensitive_parameter",
    "changed_meanwhile",
    "masked_value",
    "invalid",
    "invalid_workflow",  # a cycle, a name that is used twice or unknown, a deadline that has passed
    "payload_too_large",
}


@schemathesis.hook
def filter_failure(context: Any, failure: Failure, case: Any, response: Any) -> bool:
    """Return whether a failure counts."""
    code = response.json().get("code") if "json" in response.headers.get("content-type", [""])[0] else None
    if isinstance(failure, RejectedPositiveData):
        return code not in MEANING
    if isinstance(failure, MissingHeaderNotRejected):
        return response.status_code != 428  # RFC 6585: the header is missing
    if isinstance(failure, ServerError):
        return code != "asgi_required"  # event streams; this server is WSGI
    return True
