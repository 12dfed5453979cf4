"""``manage.py taskqueue VERB``: operate the queue from a terminal or from cron."""

import os
import sys
from argparse import SUPPRESS, RawDescriptionHelpFormatter
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import InterfaceError, OperationalError

from queue_app import registry
from queue_app.core.reasons import Level
from queue_app.exceptions import IndexNotReady, IndexUnavailable, InvalidTaskData, TaskQueueError, in_one_line
from queue_app.index import hide_password
from queue_app.management import verbs
from queue_app.management.servers import ServerCommand, check_postgresql, check_redis
from queue_app.management.verbs import Needs


class Command(ServerCommand):
    """Check the servers that the verb needs, run it, and turn each error into one line and an exit code."""

    help = "Operate the task queue. Help for one verb: manage.py taskqueue VERB --help"

    def add_arguments(self, parser: CommandParser) -> None:
        chosen = parser.add_subparsers(dest="verb", metavar="VERB", required=True, title="verbs")
        for name in verbs.names():
            verb = verbs.load(name)
            sub = chosen.add_parser(
                name,
                help=verbs.summary(verb),
                description=verbs.summary(verb),
                epilog=f"example:\n  manage.py {verb.EXAMPLE}\n\nexit codes: {verbs.EXIT_CODES}",
                formatter_class=RawDescriptionHelpFormatter,  # keeps the lines of the example
            )
            verb.add_arguments(sub)
            _add_common(sub)

    def handle(self, **options: Any) -> None:
        verb = verbs.load(options["verb"])
        try:
            if options.get("new_key") is None:  # a key is made before the settings that need it are right
                self._prepare(verb.NEEDS)
            code = verb.run(verbs.Call(options, self.stdout, self.stderr, self.style))  # type: ignore[arg-type]
        except (InvalidTaskData, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=verbs.USAGE) from None
        except (IndexUnavailable, IndexNotReady) as error:
            raise CommandError(str(error), returncode=verbs.UNREACHABLE) from None
        except TaskQueueError as error:
            raise CommandError(str(error), returncode=verbs.REFUSED) from None
        except (OperationalError, InterfaceError) as error:
            reason = hide_password(in_one_line(error))
            raise CommandError(f"PostgreSQL failed: {reason}", returncode=verbs.UNREACHABLE) from None
        except BrokenPipeError:  # the reader, such as `head` or a pager, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = verbs.OK
        except KeyboardInterrupt:
            code = 130
        if code:
            self.stdout.flush()
            sys.exit(code)

    def _prepare(self, needs: Needs) -> None:
        if needs:
            self.check_settings()
        if Needs.DATABASE in needs:
            check_postgresql()
        if Needs.READABLE in needs:
            _check_locks()
        if Needs.INDEX in needs:
            check_redis()
        if Needs.TASKS in needs:
            registry.discover()


def _check_locks() -> None:
    """Raise ``CommandError`` for a lock beside which the verb would stand still."""
    from queue_app.diagnose.servers import check_locks  # noqa: PLC0415 - few verbs need the doctor

    found = next((found for found in check_locks() if found.level is Level.FAIL), None)
    if found:
        raise CommandError(f"{found.message}. {found.hint}", returncode=verbs.UNREACHABLE)


def _add_common(parser: CommandParser) -> None:
    """Accept Django's own options after the verb too."""
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, default=SUPPRESS, help=SUPPRESS)
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], default=SUPPRESS, help=SUPPRESS)
    for name in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(name, action="store_true", default=SUPPRESS, help=SUPPRESS)
