"""Acks of tasks that outlive the connection over which they came.

Celery opens another connection when one has been lost for too long, while its tasks run on. What was handed out over
the old connection is acked over another of the same process: a receipt counts over any, as long as the message was
given to nobody else. So are acks that the old connection could not say any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from weakref import WeakSet

from tickwheel.protocol.errors import ClientClosed

_LEFT_MAX: Final = 100_000


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
        self._left: list[tuple[str, Receipt]] = []
        """Acks that wait for the next connection, each with the URL of its broker."""

    def opened(self, heir: Heir) -> None:
        """One more, until it is closed. Raises ClientClosed."""
        self._heirs.add(heir)
        left, self._left = self._left, []
        for url, receipt in left:
            if url == heir.url:
                heir.ack_late(receipt)
            else:
                self._left.append((url, receipt))

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

    def _try_to_ack(self, url: str, receipt: Receipt) -> bool:
        try:
            return self.ack(url, receipt)
        except ClientClosed:  # just now, by another thread
            return False

    def leave(self, url: str, receipts: Sequence[Receipt]) -> None:
        """Acks over any connection to a broker, or over the next one that is opened."""
        for receipt in receipts:
            if not self._try_to_ack(url, receipt) and len(self._left) < _LEFT_MAX:
                self._left.append((url, receipt))


LATE: Final = LateAcks()
