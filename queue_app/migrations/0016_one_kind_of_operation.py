"""Replays of many become operations: their rows are carried over, and back."""

import queue_app.models.operation
from django.db import migrations, models

# A replay looked at no more dead letters than it had counted: that is its limit now.
CARRY_OVER = """
INSERT INTO queue_app_operation (id, kind, target, state, "filter", arguments, rate, "limit", stop_after_failures, "by",
    reason, total, changed, skipped, failed_again, created_at, finished_at, ended_by, cleared_at, paced_at, after_id,
    after_died_at)
SELECT id, 'replay', 'dead_letters', state, "filter", '{}', pace, total, stop_after_failures, "by",
    reason, total, replayed, skipped, failed_again, created_at, finished_at, ended_by, cleared_at,
    CASE WHEN pace IS NOT NULL THEN paced_at END, after_id, after_died_at
FROM queue_app_replayoperation;
UPDATE queue_app_auditentry SET target = 'operation' WHERE target = 'replayoperation';
"""
# What only operations can be is left out: a replay of tasks that stopped by itself was cancelled, a rate is forgotten.
CARRY_BACK = """
INSERT INTO queue_app_replayoperation (id, state, "filter", pace, stop_after_failures, "by", reason, total, replayed,
    failed_again, skipped, created_at, finished_at, ended_by, cleared_at, paced_at, after_died_at, after_id)
SELECT id, state, "filter", rate, stop_after_failures, "by", reason, total, changed,
    failed_again, skipped, created_at, finished_at, ended_by, cleared_at, coalesce(paced_at, created_at), after_died_at,
    after_id
FROM queue_app_operation WHERE target = 'dead_letters';
UPDATE queue_app_auditentry SET target = 'replayoperation' WHERE target = 'operation'
    AND target_id IN (SELECT id::text FROM queue_app_operation WHERE target = 'dead_letters');
DELETE FROM queue_app_operation WHERE target = 'dead_letters';
UPDATE queue_app_operation SET state = 'cancelled' WHERE state = 'stopped';
"""


class Migration(migrations.Migration):

    dependencies = [
        ('queue_app', '0015_tasks_by_type'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='operation',
            name='taskqueue_operation_state',
        ),
        migrations.RemoveConstraint(
            model_name='operation',
            name='taskqueue_operation_finished',
        ),
        migrations.AddField(
            model_name='operation',
            name='after_died_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='operation',
            name='cleared_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='operation',
            name='failed_again',
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='operation',
            name='limit',
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='operation',
            name='paced_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='operation',
            name='rate',
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='operation',
            name='stop_after_failures',
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='operation',
            name='target',
            field=models.CharField(choices=[('tasks', 'tasks'), ('dead_letters', 'dead letters')], db_default=queue_app.models.operation.OperationTarget['TASKS'], default=queue_app.models.operation.OperationTarget['TASKS'], max_length=12),
        ),
        migrations.AlterField(
            model_name='operation',
            name='state',
            field=models.CharField(choices=[('running', 'running'), ('done', 'done'), ('stopped', 'stopped'), ('cancelled', 'cancelled')], default=queue_app.models.operation.OperationState['RUNNING'], max_length=10),
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', [queue_app.models.operation.OperationState['RUNNING'], queue_app.models.operation.OperationState['DONE'], queue_app.models.operation.OperationState['STOPPED'], queue_app.models.operation.OperationState['CANCELLED']])), name='taskqueue_operation_state'),
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.CheckConstraint(condition=models.Q(('target', queue_app.models.operation.OperationTarget['TASKS']), models.Q(('kind', queue_app.models.operation.OperationKind['REPLAY']), ('target', queue_app.models.operation.OperationTarget['DEAD_LETTERS'])), _connector='OR'), name='taskqueue_operation_target'),
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('paced_at__isnull', True), ('rate__isnull', True)), models.Q(('paced_at__isnull', False), ('rate__gt', 0)), _connector='OR'), name='taskqueue_operation_rate'),
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('finished_at__isnull', True), ('state', queue_app.models.operation.OperationState['RUNNING'])), models.Q(('finished_at__isnull', False), ('state__in', [queue_app.models.operation.OperationState['CANCELLED'], queue_app.models.operation.OperationState['DONE'], queue_app.models.operation.OperationState['STOPPED']])), _connector='OR'), name='taskqueue_operation_finished'),
        ),
        migrations.RunSQL(CARRY_OVER, CARRY_BACK),
        migrations.DeleteModel(
            name='ReplayOperation',
        ),
    ]
