"""`manage.py makemessages`: collect the translatable texts of the app and its templates, and of its sentences."""

from typing import Any

from django.core.management.commands import makemessages

#: Functions, and the places of their templates. ``Kind`` has a sentence.
KEYWORDS = ("_lazy", "_noop", "sentence", "sentence_n:1,2", "sentence_as:2", "Kind:2")
ELSEWHERE = (".*", "docs", "taskqueue_project", "tests", "workers")


class Command(makemessages.Command):
    """Collect the texts of the app only."""

    xgettext_options = [  # noqa: RUF012 - as Django has it
        *makemessages.Command.xgettext_options,
        *(f"--keyword={name}" for name in KEYWORDS),
    ]

    def handle(self, *args: Any, **options: Any) -> None:
        """Ignore folders outside the app; omit line numbers, which change with every edit, and texts no longer used."""
        options["ignore_patterns"] = [*options["ignore_patterns"], *ELSEWHERE]
        options["no_wrap"] = options["no_location"] = options["no_obsolete"] = True
        super().handle(*args, **options)
