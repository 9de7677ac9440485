"""The names that programs, configurations and dashboards rely on, a line each.

`python -m tests.support.run.promised > tests/recorded/names.txt` records them anew, when one was added.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tickwheel
from tests.support.clients.http_client import scrape
from tests.support.processes.daemon_harness import Daemon
from tickwheel import errors, sync
from tickwheel.protocol.frames import FrameType
from tickwheel_broker.config.fields import FIELDS


def settings() -> Iterator[str]:
    """Each setting with its section, unit, default and choices."""
    for name, field in FIELDS.items():
        yield f"setting {name} [{field.section}] {field.unit} {field.default!r} {' '.join(field.choices)}".rstrip()


def metrics(daemon: Daemon) -> Iterator[str]:
    """Each family of a broker that has had a message, with its type and labels."""
    with sync.Client(daemon.url) as client:
        client.send("topic", b"body")
        with client.subscribe("topic") as messages:
            next(iter(messages)).ack(confirm=True)
    found = scrape(str(daemon.wait_for_event("started")["http"]))
    for name, family in sorted(found.families.items()):
        labels = sorted({label for sample in family.samples for label in sample.labels})
        yield f"metric {name} {family.type} {' '.join(labels)}".rstrip()


def error_codes() -> Iterator[str]:
    """Each error that a program can catch."""
    for name, kind in sorted(vars(errors).items()):
        if inspect.isclass(kind) and issubclass(kind, errors.TickwheelError):
            yield f"error {name} {kind.code}{' retryable' if kind.retryable else ''}"


def lines() -> Iterator[str]:
    """All of them."""
    yield from (f"name tickwheel.{name}" for name in sorted(tickwheel.__all__))
    yield from error_codes()
    yield from (f"frame {kind.value} {kind.name}" for kind in FrameType)
    yield from settings()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Daemon(Path(scratch, "data"), http_listen=True, http_port=0) as daemon,
    ):
        yield from metrics(daemon)


if __name__ == "__main__":
    print(*lines(), sep="\n")
