"""What the project stores."""

from __future__ import annotations

from django.db import models


class Letter(models.Model):
    """Something that a task has done."""

    text = models.TextField()

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return self.text
