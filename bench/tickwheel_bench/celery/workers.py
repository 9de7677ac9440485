"""The program ``celery``, in a process of its own, with the children of its pool."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tickwheel_bench.celery.app import ENVIRONMENT
from tickwheel_bench.server import Background


class Worker(Background):
    """``celery worker``."""

    end_within_s = 20.0

    def __init__(self, told: str, log: Path, *flags: str) -> None:
        """`told`: see `app.settings`."""
        super().__init__(log)
        self._told, self._flags = told, flags

    def command(self) -> list[str]:
        """See Background."""
        app = ("-A", "tickwheel_bench.celery.app", "worker", "--loglevel", "WARNING")
        alone = ("--without-gossip", "--without-mingle", "--hostname", f"{self.log.stem}@%h")
        return [sys.executable, "-m", "celery", *app, *alone, *self._flags]

    def environment(self) -> Mapping[str, str]:
        """See Background."""
        return {ENVIRONMENT: self._told}
