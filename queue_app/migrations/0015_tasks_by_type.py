from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('queue_app', '0014_operations_and_fruitless'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='task',
            index=models.Index(condition=models.Q(('finished_at__isnull', False)), fields=['task_type', 'id'], name='taskqueue_by_type'),
        ),
    ]
