"""The Django admin of the queue; works with the plain ``django.contrib.admin`` site."""

from queue_app.admin import dead_letter, maintenance, policy, queue, replay_operation, task, worker

__all__ = ["dead_letter", "maintenance", "policy", "queue", "replay_operation", "task", "worker"]
