"""How many deliveries a stream may have outstanding, and how it learns that they are settled.

They are settled by other requests, which tell of it here. Who settles them elsewhere is not heard of at once: a stream
asks the broker from time to time.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio

from tickwheel.protocol.receipts import Receipt


class Credits:
    """Those of all streams of this process."""

    def __init__(self) -> None:
        self._of: dict[Receipt, Credit] = {}

    def open(self, most: int) -> Credit:
        """For one stream; to be closed at its end."""
        return Credit(most, self._of)

    def settled(self, receipts: Iterable[Receipt]) -> None:
        """Nobody has these any more."""
        for receipt in receipts:
            credit = self._of.get(receipt)
            if credit is not None:
                credit.free([receipt])


class Credit:
    """That of one stream.

    >>> credits = Credits()
    >>> credit = credits.open(2)
    >>> credit.take([Receipt(1, 17, 1), Receipt(1, 18, 1)], 0.0)
    >>> credit.room
    0
    >>> credits.settled([Receipt(1, 17, 1)])
    >>> credit.room
    1
    """

    def __init__(self, most: int, of: dict[Receipt, Credit]) -> None:
        self._most = most
        self._of = of
        self._changed = anyio.Event()
        self.outstanding: dict[Receipt, float] = {}
        """Since when."""

    @property
    def room(self) -> int:
        """How many more it may have."""
        return self._most - len(self.outstanding)

    def take(self, receipts: Iterable[Receipt], now: float) -> None:
        """These were given out."""
        for receipt in receipts:
            self.outstanding[receipt] = now
            self._of[receipt] = self

    def free(self, receipts: Iterable[Receipt]) -> None:
        """These are outstanding no longer."""
        for receipt in receipts:
            if self.outstanding.pop(receipt, None) is not None:
                del self._of[receipt]
                self._changed.set()

    async def changed(self) -> None:
        """Until there is more room."""
        self._changed = anyio.Event()
        await self._changed.wait()

    def close(self) -> list[Receipt]:
        """What is outstanding at the end."""
        rest = list(self.outstanding)
        self.free(rest)
        return rest
