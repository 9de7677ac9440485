"""``manage.py tickwheel_worker``: runs tasks."""

from __future__ import annotations

import logging
import os
import sys
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.utils import autoreload

from tickwheel.django.backend import TickwheelBackend
from tickwheel.django.backends import backend_named, queues_named
from tickwheel.django.broker import new_client
from tickwheel.django.worker.stopping import Stopping
from tickwheel.django.worker.supervisor import Supervisor
from tickwheel.django.worker.workshop import Workshop
from tickwheel.protocol.errors import TickwheelError
from tickwheel.sync import Client
from tickwheel.worker.signals import told_by_signals

EXPIRED: Final = 75
"""The exit code of a process that a task over its time limit has ended."""
_RELOAD_DRAIN: Final = timedelta(seconds=2)

_log = logging.getLogger("tickwheel.django.worker")


class Command(BaseCommand):
    """Runs tasks of one backend, until SIGTERM or Ctrl-C."""

    help = "Runs tasks until SIGTERM or Ctrl-C: then it finishes those that run, and gives the others back."

    def add_arguments(self, parser: CommandParser) -> None:
        """See BaseCommand."""
        parser.add_argument("queues", nargs="*", help="which queues (default: all of QUEUES)")
        parser.add_argument("--backend", default="default", help="the alias in TASKS (%(default)s)")
        parser.add_argument("--processes", type=int, default=1, help="how many (%(default)s)")
        parser.add_argument("--threads", type=int, default=4, help="of each queue and process (%(default)s)")
        parser.add_argument(
            "--drain",
            type=float,
            default=30.0,
            metavar="SECONDS",
            help="how long tasks that run may take at the end (%(default)s)",
        )
        parser.add_argument(
            "--time-limit",
            type=float,
            metavar="SECONDS",
            help="how long a task may run before its process is ended (default: OPTIONS['time_limit'])",
        )
        parser.add_argument("--reload", action="store_true", help="start anew when code changes")

    def handle(self, *args: Any, **options: Any) -> None:
        """See BaseCommand. Raises CommandError."""
        backend = backend_named(options["backend"])
        queues = queues_named(backend, options["queues"])
        threads, processes = options["threads"], options["processes"]
        if threads < 1 or processes < 1:
            raise CommandError("--threads and --processes must be 1 or more.")
        if options["drain"] < 0 or (options["time_limit"] is not None and options["time_limit"] <= 0):
            raise CommandError("--drain and --time-limit must be above 0.")
        limit = backend.settings.time_limit
        if options["time_limit"] is not None:
            limit = timedelta(seconds=options["time_limit"])
        drain = timedelta(seconds=options["drain"])

        def work(stopping: Stopping) -> int:
            return _work(backend, queues, stopping, threads=threads, drain=drain, time_limit=limit)

        if options["reload"] and processes > 1:
            raise CommandError("--reload is for one process.")
        if not options["reload"] or os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true":
            names = ", ".join(queues)
            self.stdout.write(
                f"Runs tasks of {names}: processes {processes}, threads of each queue {threads}."
            )
            self.stdout.flush()
        if options["reload"]:
            autoreload.run_with_reloader(_work_until_changed, work)
            return
        # Only a supervisor can end a process with a task that has taken too long, and go on.
        if processes > 1 or limit is not None:
            sys.exit(Supervisor(processes, work).run())
        stopping = Stopping()
        with told_by_signals(stopping.ask):
            code = work(stopping)
        if code:
            sys.exit(code)


def _work(
    backend: TickwheelBackend,
    queues: list[str],
    stopping: Stopping,
    *,
    threads: int,
    drain: timedelta,
    time_limit: timedelta | None,
) -> int:
    """Runs tasks in this process; returns its exit code."""
    try:
        with new_client(backend.settings, "worker") as client:
            return _work_with(
                client, backend, queues, stopping, threads=threads, drain=drain, time_limit=time_limit
            )
    except TickwheelError as error:
        _log.error("%s", error)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        connections.close_all()


def _work_with(
    client: Client, backend: TickwheelBackend, queues: list[str], stopping: Stopping, **how: Any
) -> int:
    workshop = Workshop(backend=backend, client=client, queues=queues, **how)
    with stopping.telling(workshop.stop):
        workshop.run()
    return EXPIRED if workshop.has_expired else 0


def _work_until_changed(work: Any) -> None:
    """In the thread beside the one that looks for changes."""
    stopping = Stopping()

    def stop(**_: Any) -> None:
        """Tasks that run are given back: the process ends when this returns."""
        stopping.ask()

    autoreload.file_changed.connect(stop, weak=False)
    code = work(stopping)
    if code:
        os._exit(code)
