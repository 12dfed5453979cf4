"""When a schedule is worth a person's attention; the alert rules have the same limits."""

from typing import Final

#: Seconds after which a schedule that was due, and has not run, is reported.
OVERDUE_SECONDS: Final = 60.0
#: Failures in a row from which a schedule is reported.
MANY_FAILURES: Final = 3
