"""The columns of options are those of one abstract model, in tasks and in schedules.

For tasks only texts and validators change, which the database does not know. Two columns of schedules get a default:
that changes no row, and locks the small table for an instant.
"""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import migrations, models

WEIGHT = models.SmallIntegerField(
    default=1,
    db_default=1,
    validators=[MinValueValidator(1), MaxValueValidator(1000)],
    help_text="Slots that it takes.",
)


def seconds(help_text):
    return models.FloatField(null=True, blank=True, validators=[MinValueValidator(0.001)], help_text=help_text)


OF_SCHEDULES = [
    migrations.AlterField(
        "schedule", "concurrency_key", models.CharField(max_length=128, default="", db_default="", blank=True)
    ),
    migrations.AlterField("schedule", "weight", WEIGHT),
]
OF_TASKS = [
    migrations.AlterField(
        "task",
        "max_retries",
        models.SmallIntegerField(
            null=True, blank=True, validators=[MinValueValidator(0)], help_text="Empty: by the queue or the band."
        ),
    ),
    migrations.AlterField(
        "task", "retry_delay", seconds("Seconds before the first retry. Empty: the project's setting.")
    ),
    migrations.AlterField(
        "task", "timeout", seconds("Seconds until an attempt is overdue. Empty: by the queue or the band.")
    ),
    migrations.AlterField("task", "weight", WEIGHT),
]


class Migration(migrations.Migration):
    dependencies = [("queue_app", "0008_worker_answered_run")]

    operations = [
        migrations.SeparateDatabaseAndState(database_operations=OF_SCHEDULES, state_operations=OF_SCHEDULES + OF_TASKS)
    ]
