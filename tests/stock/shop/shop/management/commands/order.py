"""A short command of the shop: it enqueues some tasks and ends at once."""

import time
from datetime import timedelta

from django.core.management.base import BaseCommand
from django.tasks import default_task_backend
from django.utils import timezone

from shop.tasks import add, store


class Command(BaseCommand):
    """Enqueue one by one, slowly, all at once, or for later."""

    def add_arguments(self, parser):
        """Take the way and the number."""
        parser.add_argument("way", choices=["quick", "slow", "bulk", "later"])
        parser.add_argument("count", type=int)

    def handle(self, way, count, **_):
        """Enqueue."""
        if way == "bulk":
            default_task_backend.enqueue_many(store, [((number,), {}) for number in range(count)])
            return
        for number in range(count):
            if way == "slow":
                time.sleep(0.1)
            soon = add.using(run_after=timezone.now() + timedelta(seconds=1)) if way == "later" else add
            soon.enqueue(number, 1)
