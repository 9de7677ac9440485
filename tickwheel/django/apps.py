"""The app: ``INSTALLED_APPS = [..., "tickwheel.django"]``."""

from __future__ import annotations

from django.apps import AppConfig


class TickwheelConfig(AppConfig):
    """Tables and commands for tasks."""

    name = "tickwheel.django"
    label = "tickwheel"
    verbose_name = "Tickwheel"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Registers the system checks."""
        from django.core import checks

        from tickwheel.django.checks import check_schedules, check_without_their_app

        checks.register(check_schedules)
        checks.register(check_without_their_app)
