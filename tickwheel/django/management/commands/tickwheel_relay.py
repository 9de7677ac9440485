"""``manage.py tickwheel_relay``: sends what was committed."""

from __future__ import annotations

import signal
from typing import Any

import anyio
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from tickwheel.client.client import Client
from tickwheel.django.backends import backend_named
from tickwheel.django.outbox import relay_of
from tickwheel.outbox.errors import OutboxError
from tickwheel.protocol.errors import TickwheelError


class Command(BaseCommand):
    """Moves tasks from the outbox to the broker, each exactly once."""

    help = (
        "Sends the tasks of committed transactions to the broker, each exactly once, until SIGTERM or Ctrl-C. "
        "Of several relays one works, and the others stand by."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """See BaseCommand."""
        parser.add_argument("--backend", default="default", help="the alias in TASKS (%(default)s)")
        parser.add_argument("--once", action="store_true", help="send what is there, and end")
        parser.add_argument(
            "--poll",
            type=float,
            default=5.0,
            metavar="SECONDS",
            help="how often to look although no commit was noticed (%(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """See BaseCommand. Raises CommandError."""
        backend = backend_named(options["backend"])
        if options["poll"] <= 0:
            raise CommandError("--poll must be above 0.")
        try:
            anyio.run(self._relay, backend.settings, options["poll"], options["once"])
        except (OutboxError, TickwheelError, ImproperlyConfigured) as error:
            raise CommandError(f"{type(error).__name__}: {error}") from None

    async def _relay(self, settings: Any, poll_s: float, once: bool) -> None:
        more: dict[str, Any] = dict(settings.client)
        async with Client(settings.url or None, name="django-relay", **more) as client:
            relay = relay_of(settings, client, poll_s)
            if once:
                self.stdout.write(f"{await relay.run_once()} sent.")
                return
            async with anyio.create_task_group() as group:
                group.start_soon(_end_at_signals, group.cancel_scope)
                await relay.run()


async def _end_at_signals(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        async for _ in received:
            scope.cancel()
            return
