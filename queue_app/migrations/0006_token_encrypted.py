"""Let a token say whether its workers get encrypted tasks; those that exist do not."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("queue_app", "0005_workflow_gaps")]

    operations = [
        migrations.AddField(
            model_name="workertoken",
            name="reads_encrypted",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
