"""`manage.py compilemessages`: compile the catalogues of the app only."""

from typing import Any

from django.core.management.commands import compilemessages

from taskqueue_project.management.commands.makemessages import ELSEWHERE


class Command(compilemessages.Command):
    """Compile the texts of the app, and not those of packages in .venv or .nox."""

    def handle(self, **options: Any) -> None:
        """Ignore the folders that ``makemessages`` ignores."""
        super().handle(**options | {"ignore_patterns": [*options["ignore_patterns"], *ELSEWHERE]})
