"""How late a tick of a schedule may be before it counts as missed."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("queue_app", "0003_damaged_index")]

    operations = [
        migrations.AddField(
            model_name="schedule",
            name="grace_seconds",
            field=models.FloatField(
                default=60,
                db_default=60,
                validators=[MinValueValidator(1), MaxValueValidator(604800.0)],
                help_text="A tick that is late by less runs. A later one is missed.",
            ),
        ),
    ]
