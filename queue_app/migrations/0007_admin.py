import django.core.validators
import queue_app.core.ids
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("queue_app", "0006_limits"),
    ]

    operations = [
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=queue_app.core.ids.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("at", models.DateTimeField()),
                ("by", models.CharField(blank=True, default="", max_length=150)),
                (
                    "via",
                    models.CharField(
                        choices=[("admin", "admin"), ("api", "api"), ("command", "command")], max_length=10
                    ),
                ),
                ("action", models.CharField(max_length=50)),
                ("target", models.CharField(max_length=50)),
                ("target_id", models.CharField(blank=True, default="", max_length=255)),
                ("count", models.PositiveIntegerField(default=1)),
                ("before", models.JSONField(blank=True, default=dict)),
                ("after", models.JSONField(blank=True, default=dict)),
                ("reason", models.CharField(blank=True, default="", max_length=200)),
            ],
            options={
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit log",
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="SavedView",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=queue_app.core.ids.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("name", models.CharField(max_length=60)),
                ("of", models.CharField(choices=[("task", "tasks"), ("deadletter", "dead letters")], max_length=20)),
                ("query", models.CharField(max_length=1000)),
                ("user", models.CharField(max_length=150)),
                ("shared", models.BooleanField(default=False)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.AlterModelOptions(
            name="task",
            options={
                "permissions": [
                    ("cancel_task", "Can cancel tasks"),
                    ("reprioritise_task", "Can change the priority of waiting tasks"),
                    ("retry_task", "Can run tasks now, again, or again with other parameters"),
                    ("view_payload", "Can view parameters, results and errors of tasks"),
                ]
            },
        ),
        migrations.AlterModelOptions(
            name="worker",
            options={"ordering": ["-id"], "permissions": [("drain_worker", "Can ask workers to drain")]},
        ),
        migrations.AddField(
            model_name="deadletter",
            name="fingerprint",
            field=models.CharField(blank=True, db_default="", default="", max_length=16),
        ),
        migrations.AddField(
            model_name="prioritypolicy",
            name="target_seconds",
            field=models.FloatField(
                blank=True,
                help_text="How long a task of this band should wait at most. The overview marks what waits longer. Empty: none.",
                null=True,
                validators=[django.core.validators.MinValueValidator(0.001)],
            ),
        ),
        migrations.AddField(
            model_name="queuestats",
            name="run_p50",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="queuestats",
            name="run_p95",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="queuestats",
            name="run_p99",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="queuestats",
            name="wait_p50",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="queuestats",
            name="wait_p95",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="queuestats",
            name="wait_p99",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="worker",
            name="drain_requested_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="worker",
            name="drain_requested_by",
            field=models.CharField(blank=True, db_default="", default="", max_length=150),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(
                condition=models.Q(("discarded_at__isnull", True), ("replayed_at__isnull", True)),
                fields=["fingerprint", "died_at"],
                name="taskqueue_dlq_by_cause",
            ),
        ),
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["target", "target_id", "-id"], name="taskqueue_audit_target"),
        ),
        migrations.AddConstraint(
            model_name="savedview",
            constraint=models.UniqueConstraint(fields=("user", "of", "name"), name="taskqueue_view_once"),
        ),
    ]
