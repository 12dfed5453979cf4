from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('queue_app', '0008_groups_and_targets'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='task',
            index=models.Index(condition=models.Q(('status__in', ['scheduled', 'queued'])), fields=['queue', 'queued_at'], name='taskqueue_length'),
        ),
        migrations.AddIndex(
            model_name='task',
            index=models.Index(condition=models.Q(('status__in', ['scheduled', 'queued', 'executing']), models.Q(('user', ''), _negated=True)), fields=['user', 'queue'], name='taskqueue_user_pending'),
        ),
    ]
