"""``manage.py tickwheel_schedules``: the schedules of the settings become those of the broker."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tickwheel.django.backends import tickwheel_backends
from tickwheel.django.broker import client_of
from tickwheel.django.framework import InvalidTaskBackend
from tickwheel.django.schedules import declared_schedules, synchronise
from tickwheel.protocol.errors import TickwheelError


class Command(BaseCommand):
    """Synchronises schedules; to be run at each deployment."""

    help = "Makes the schedules of TICKWHEEL_SCHEDULES those of the broker. Run it at each deployment."

    def add_arguments(self, parser: CommandParser) -> None:
        """See BaseCommand."""
        parser.add_argument(
            "--dry-run", action="store_true", help="say what would change, and change nothing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """See BaseCommand. Raises CommandError."""
        dry_run = options["dry_run"]
        try:
            declared, troubles = declared_schedules()
            backends = tickwheel_backends()
        except InvalidTaskBackend as error:
            raise CommandError(str(error)) from None
        if troubles:
            name, trouble = troubles[0]
            raise CommandError(f"TICKWHEEL_SCHEDULES[{name!r}]: {trouble}")
        if not backends:
            raise CommandError("TASKS has no TickwheelBackend.")
        changed = 0
        for backend in backends:
            mine = [one for one in declared if one.backend.alias == backend.alias]
            try:
                for change in synchronise(client_of(backend.settings), backend, mine, dry_run=dry_run):
                    changed += change.action != "keep"
                    if change.action != "keep" or options["verbosity"] > 1:
                        self.stdout.write(f"{change.action:<7} {change.name} {change.detail}".rstrip())
            except TickwheelError as error:
                raise CommandError(f"{type(error).__name__}: {error}") from None
        said = "would change" if dry_run else "changed"
        self.stdout.write(f"{len(declared)} declared, {changed} {said}.")
