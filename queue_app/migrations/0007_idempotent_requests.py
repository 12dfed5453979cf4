"""Answers to requests that carried an idempotency key."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("queue_app", "0006_token_encrypted")]

    operations = [
        migrations.CreateModel(
            name="IdempotentRequest",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("user", models.CharField(max_length=150)),
                ("key", models.CharField(max_length=64)),
                ("digest", models.CharField(max_length=64)),
                ("status", models.PositiveSmallIntegerField(default=0)),
                ("answer", models.TextField(blank=True, default="")),
                ("location", models.TextField(blank=True, default="")),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["created_at"], name="taskqueue_requests_old")],
                "constraints": [models.UniqueConstraint(fields=("user", "key"), name="taskqueue_request_key")],
            },
        ),
    ]
