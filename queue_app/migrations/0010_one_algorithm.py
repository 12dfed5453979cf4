"""Adaptive limits have one algorithm. The database still allows the names of former ones: older code may store them."""

from django.db import migrations, models

ADAPTIVE = models.CharField(
    max_length=10,
    blank=True,
    default="",
    db_default="",
    choices=[("gradient2", "gradient2")],
    help_text="Algorithm that keeps the limit between min_concurrent and max_concurrent, by run times and failures."
    " Empty: the limit is max_concurrent.",
)


class Migration(migrations.Migration):
    dependencies = [("queue_app", "0009_options")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(model, "adaptive", ADAPTIVE) for model in ("limit", "queue", "runtimesettings")
            ]
        )
    ]
