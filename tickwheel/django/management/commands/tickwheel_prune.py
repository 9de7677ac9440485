"""``manage.py tickwheel_prune``: forgets old results."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from tickwheel.django.backends import backend_named
from tickwheel.django.records import FAILED, SUCCESSFUL


class Command(BaseCommand):
    """Deletes results of finished tasks."""

    help = "Deletes the results of tasks that finished long ago."

    def add_arguments(self, parser: CommandParser) -> None:
        """See BaseCommand."""
        parser.add_argument("--backend", default="default", help="the alias in TASKS (%(default)s)")
        parser.add_argument(
            "--days", type=float, default=14.0, help="how long results are kept (%(default)s)"
        )
        parser.add_argument(
            "--failed-days", type=float, help="and those of tasks that failed (default: as --days)"
        )
        parser.add_argument("--dry-run", action="store_true", help="say how many, and delete nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        """See BaseCommand. Raises CommandError."""
        backend = backend_named(options["backend"])
        days = options["days"]
        failed_days = days if options["failed_days"] is None else options["failed_days"]
        if days < 0 or failed_days < 0:
            raise CommandError("--days and --failed-days must not be below 0.")
        now = timezone.now()
        count = 0
        for status, kept in ((SUCCESSFUL, days), (FAILED, failed_days)):
            old = backend.records.rows.filter(
                backend=backend.alias, status=status, finished_at__lt=now - timedelta(days=kept)
            )
            count += old.count() if options["dry_run"] else old.delete()[0]
        self.stdout.write(f"{count} {'would be' if options['dry_run'] else 'were'} deleted.")
