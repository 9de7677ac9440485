"""The app."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """What a project's own app is."""

    name = "tests.support.frameworks.django_project"
    label = "shop"
