"""What the shop stores."""

from django.db import models


class Order(models.Model):
    """An order. ``reminder``: the id of the task that will ask for the money."""

    state = models.CharField(max_length=10, default="open")
    reminder = models.CharField(max_length=64, default="")

    def __str__(self):
        return f"order {self.pk}, {self.state}"


class Letter(models.Model):
    """A letter that was written."""

    text = models.TextField()

    def __str__(self):
        return self.text
