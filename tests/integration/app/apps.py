"""What processes of tests do differently."""

import os

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """Let a proposal be given up sooner where a test says so: a claim that died is then repaired sooner too."""

    name = "tests.integration.app"

    def ready(self) -> None:
        """Set the seconds."""
        seconds = os.environ.get("TEST_PROPOSAL_SECONDS")
        if seconds:
            from queue_app.services.lifecycle import claim  # noqa: PLC0415 - needs the apps
            from queue_app.services.repair import reconcile  # noqa: PLC0415 - needs the apps

            claim.PROPOSAL_SECONDS = float(seconds)
            reconcile.ABANDONED_SECONDS = float(seconds) + 2
