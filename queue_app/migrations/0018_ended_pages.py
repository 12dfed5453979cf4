"""Lists and counts by queue, worker, band, capability and old times, of what has ended."""

import queue_app.models.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('queue_app', '0017_fruitless_ends'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='task',
            index=queue_app.models.fields.BlockIndex(condition=models.Q(('finished_at__isnull', False)), fields=['created_at', 'queue', 'worker_id', 'priority'], name='taskqueue_ended_pages', opclasses=['timestamptz_minmax_ops', 'text_bloom_ops(n_distinct_per_range=100)', 'uuid_bloom_ops(n_distinct_per_range=100)', 'int2_minmax_ops'], pages_per_range=32),
        ),
        migrations.AddIndex(
            model_name='task',
            index=queue_app.models.fields.ContainmentIndex(condition=models.Q(('finished_at__isnull', False), models.Q(('capabilities', []), _negated=True)), fields=['capabilities'], name='taskqueue_by_capability'),
        ),
    ]
