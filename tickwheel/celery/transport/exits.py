"""The end of a process: what it sent is confirmed, and queues that delete themselves, such as the queues of the results
of ``rpc://``, go with it.

Celery closes neither its connection for sending nor its connection for results, so this is done for it.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Iterable
from typing import Final, Protocol
from weakref import WeakSet

from tickwheel.protocol.errors import TickwheelError

logger = logging.getLogger("tickwheel.celery")

_PATIENCE_S: Final = 2.0
"""So long the end of a process waits for the broker, for each connection."""
_CONFIRMED_WITHIN_S: Final = 10.0
"""So long the end of a process waits for confirmations of pipelined messages, of all connections together."""


class Owner(Protocol):
    """A connection."""

    def confirm(self, within_s: float) -> None:
        """Waits for the confirmations of pipelined messages. Raises TickwheelError."""

    def own_topics(self) -> set[str]:
        """The topics that are to end with it."""

    def leave_topics(self, topics: Iterable[str], within_s: float) -> None:
        """Reads them no more. Raises TickwheelError."""

    def delete_topics(self, topics: Iterable[str], within_s: float) -> None:
        """Deletes them, as far as it can."""


class Exit:
    """Of all connections that are open."""

    def __init__(self) -> None:
        self._owners: WeakSet[Owner] = WeakSet()

    def opened(self, owner: Owner) -> None:
        """One more, until it is closed."""
        # What is registered last is called first: before the connection itself is ended.
        if not self._owners:
            atexit.unregister(self.carry_out)
            atexit.register(self.carry_out)
        self._owners.add(owner)

    def closed(self, owner: Owner) -> None:
        """It is no longer to be cared for."""
        self._owners.discard(owner)

    def carry_out(self) -> None:
        """Waits for what was sent, and deletes what is to end; what is in use elsewhere stays."""
        until_s = time.monotonic() + _CONFIRMED_WITHIN_S
        for owner in list(self._owners):
            try:
                owner.confirm(max(0.0, until_s - time.monotonic()))
            except TickwheelError as error:
                logger.error("messages may be lost, because this process ends: %s", error)
        owned = {owner: topics for owner in list(self._owners) if (topics := owner.own_topics())}
        everything = set().union(*owned.values())
        for owner in list(self._owners) if everything else ():
            try:
                owner.leave_topics(everything, _PATIENCE_S)
            except TickwheelError as error:
                logger.debug("a consumer was not ended: %s", error)
        for owner, topics in owned.items():
            owner.delete_topics(topics, _PATIENCE_S)


EXIT: Final = Exit()
