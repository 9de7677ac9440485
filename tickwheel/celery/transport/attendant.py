"""A thread that carries a connection on while its program waits for tasks and turns no loop: a worker that is stopping.

Its leases are renewed until the tasks have ended. Nothing is delivered.
"""

from __future__ import annotations

import logging
import threading
from typing import Final, Protocol

from tickwheel.protocol.errors import TickwheelError

logger = logging.getLogger("tickwheel.celery")

_EVERY_S: Final = 0.5
_PATIENCE_S: Final = 5.0


class Attended(Protocol):
    """A connection."""

    def turn(self) -> None:
        """What can be done without waiting. Raises TickwheelError."""

    def reconnect(self) -> None:
        """Goes on with a lost connection, for a moment. Raises TickwheelError."""


class Attendant:
    """Of one connection, until `leave`."""

    def __init__(self, connection: Attended) -> None:
        self._connection = connection
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="tickwheel-attendant", daemon=True)
        self._thread.start()

    def _attend(self) -> None:
        while not self._has_ended.wait(_EVERY_S):
            try:
                self._connection.reconnect()
                self._connection.turn()
            except TickwheelError as error:
                logger.warning("leases are not renewed any more while this worker stops: %s", error)
                return

    def leave(self) -> None:
        """Returns when it has gone."""
        self._has_ended.set()
        self._thread.join(_PATIENCE_S)
