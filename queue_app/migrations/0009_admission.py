import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('queue_app', '0008_groups_and_targets'),
    ]

    operations = [
        migrations.AlterField(
            model_name='queue',
            name='stale_after_seconds',
            field=models.FloatField(blank=True, help_text='Tasks that have been queued for so long may be given up as expired. Empty: never, except in a full queue with a max length of its own: there after an hour.', null=True, validators=[django.core.validators.MinValueValidator(1)]),
        ),
        migrations.AddIndex(
            model_name='task',
            index=models.Index(condition=models.Q(('status__in', ['scheduled', 'queued'])), fields=['queue', 'queued_at'], name='taskqueue_length'),
        ),
        migrations.AddIndex(
            model_name='task',
            index=models.Index(condition=models.Q(('status__in', ['scheduled', 'queued', 'executing']), models.Q(('user', ''), _negated=True)), fields=['user', 'queue'], name='taskqueue_user_pending'),
        ),
    ]
