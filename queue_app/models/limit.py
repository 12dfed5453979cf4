"""Limits by task type or concurrency key, which staff edit; the index has a copy for claims."""

import unicodedata
from typing import ClassVar, Final

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _lazy

from queue_app.core.limit_values import Gate, Scope
from queue_app.core.options import CONCURRENCY_KEY_LENGTH
from queue_app.models.columns import TYPE_LENGTH, choices_of
from queue_app.models.limit_columns import Capped, Paced, Pausable, constraints_of

#: Scopes that have limits here; a queue's limits are columns of the queue.
SCOPES: Final = (Scope.TYPE, Scope.KEY)
#: A key whose row has one of these has a limit of its own; that of its family does not hold for it.
HAS_OWN: Final = Q(max_concurrent__isnull=False) | Q(rate_count__isnull=False) | Q(min_delay_seconds__isnull=False)


class Limit(Capped, Paced, Pausable):
    """The limits of one task type, or of one concurrency key or family of keys.

    With the scope ``key``, a name without a colon, such as ``customer``, is also the limit of
    every key ``customer:…`` without a limit of its own. Each key has its own count.
    """

    scope = models.CharField(max_length=4, choices=choices_of(SCOPES))
    name = models.CharField(
        max_length=TYPE_LENGTH,
        help_text=_lazy(
            "A task type or a concurrency key. A key without a colon also limits each key that begins"
            " with it and a colon."
        ),
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["scope", "name"]
        constraints: ClassVar = [
            *constraints_of(Capped, Paced, Pausable),
            models.UniqueConstraint(
                fields=["scope", "name"],
                name="taskqueue_limit_once",
                violation_error_message="This task type or key already has limits: edit those.",
            ),
            models.CheckConstraint(condition=Q(scope__in=list(SCOPES)), name="taskqueue_limit_scope"),
            models.CheckConstraint(condition=~Q(name=""), name="taskqueue_limit_name"),
        ]
        permissions: ClassVar = [("pause_limit", "Can pause and resume task types and keys")]

    def __str__(self) -> str:
        return f"{gettext(self.scope)} {self.name}"

    @property
    def gate(self) -> Gate:
        return Gate(self.scope, self.name)

    def clean(self) -> None:
        """Refuse names that no task can have."""
        super().clean()
        if self.scope == Scope.KEY and len(self.name) > CONCURRENCY_KEY_LENGTH:
            raise ValidationError({"name": f"A concurrency key has at most {CONCURRENCY_KEY_LENGTH} characters."})
        if any(unicodedata.category(character)[0] == "C" for character in self.name):
            raise ValidationError({"name": "The name contains control or invisible characters."})
        if self.name != self.name.strip():
            raise ValidationError({"name": "The name begins or ends with a space."})
