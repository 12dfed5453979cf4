"""The columns of a task's options, in tasks and in schedules."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _lazy

from queue_app.core.options import CONCURRENCY_KEY_LENGTH, MAX_WEIGHT, USER_LENGTH
from queue_app.models.columns import NAME_LENGTH
from queue_app.models.fields import NamesField
from queue_app.models.limit_columns import optional_seconds


class OptionColumns(models.Model):
    """The options of ``core.options.RowOptions``."""

    capabilities = NamesField(models.CharField(max_length=NAME_LENGTH), default=list, blank=True)
    user = models.CharField(max_length=USER_LENGTH, default="", blank=True)
    timeout = optional_seconds(_lazy("Seconds until an attempt is overdue. Empty: by the queue or the band."))
    max_retries = models.SmallIntegerField(
        null=True, blank=True, validators=[MinValueValidator(0)], help_text=_lazy("Empty: by the queue or the band.")
    )
    retry_delay = optional_seconds(_lazy("Seconds before the first retry. Empty: the project's setting."))
    concurrency_key = models.CharField(max_length=CONCURRENCY_KEY_LENGTH, default="", db_default="", blank=True)
    weight = models.SmallIntegerField(
        default=1,
        db_default=1,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_WEIGHT)],
        help_text=_lazy("Slots that it takes."),
    )

    class Meta:
        abstract = True
