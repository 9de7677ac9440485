"""Acks of tasks that outlive the connection over which they came.

Celery opens another connection when one has been lost for too long, while its tasks run on. What was handed out over
the old connection is acked over another of the same process: a receipt counts over any, as long as the message was
given to nobody else.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol
from weakref import WeakSet


class Receipt(NamedTuple):
    """One delivery of a message."""

    topic: str
    group: str
    group_id: int
    message_id: int
    epoch: int
    timeline: str
    """Of the log that gave it: a broker with another one has given it out to others."""


class Heir(Protocol):
    """A connection."""

    @property
    def url(self) -> str:
        """Of its broker."""

    @property
    def is_usable(self) -> bool:
        """Whether something can be sent over it, at once or when it is connected again."""

    def ack_late(self, receipt: Receipt) -> None:
        """Acks what came over another connection. Raises ClientClosed."""


class LateAcks:
    """Finds the connections."""

    def __init__(self) -> None:
        self._heirs: WeakSet[Heir] = WeakSet()

    def opened(self, heir: Heir) -> None:
        """One more, until it is closed."""
        self._heirs.add(heir)

    def closed(self, heir: Heir) -> None:
        """It acks nothing any more."""
        self._heirs.discard(heir)

    def ack(self, url: str, receipt: Receipt) -> bool:
        """Acks over any connection to a broker; False: there is none."""
        heir = next((one for one in list(self._heirs) if one.url == url and one.is_usable), None)
        if heir is None:
            return False
        heir.ack_late(receipt)
        return True


LATE: Final = LateAcks()
