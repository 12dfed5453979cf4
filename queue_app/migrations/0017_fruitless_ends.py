from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('queue_app', '0016_one_kind_of_operation'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='task',
            index=models.Index(condition=models.Q(('status__in', ['cancelled', 'dead_letter', 'expired', 'failed'])), fields=['finished_at'], name='taskqueue_fruitless_ends'),
        ),
    ]
