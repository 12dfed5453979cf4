"""The shop's own table, without a migration."""

from django.db import models


class Order(models.Model):
    """A row that a task stores."""

    number = models.IntegerField()

    def __str__(self):
        return f"order {self.number}"
