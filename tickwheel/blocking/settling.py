"""How messages of the blocking client are settled: acks and what is given back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tickwheel.blocking.session import BlockingSession
from tickwheel.client.consumer.acks import FLIGHT_ACKS_MAX, AckFlight, AckQueue
from tickwheel.client.consumer.message import BaseBatch

T = TypeVar("T")


class Settling:
    """Settles messages, from any thread.

    Acks are not written one by one: while another thread reads, it writes what has come by then, so that a fast
    consumer does not pay for a system call at every message; none ever waits for a later one.
    """

    def __init__(self, session: BlockingSession, acks: AckQueue) -> None:
        self._session = session
        self._acks = acks

    def of(self, acks: AckQueue) -> Settling:
        """The same for messages whose acks go elsewhere."""
        return Settling(self._session, acks)

    def add(self, message_id: int, epoch: int) -> None:
        """One ack. Raises ClientClosed."""

        def add() -> None:
            flight = self._acks.add(message_id, epoch)
            if len(flight.ids) >= FLIGHT_ACKS_MAX:
                flight.open = False

        self._session.change(add)

    def add_batch(self, batch: BaseBatch[Any]) -> None:
        """The acks of a batch; waits if too many are unanswered. Raises ClientClosed."""

        async def add() -> None:
            self._acks.add_batch(batch.ack_columns)
            if self._acks.crowded:
                await self._acks.make_room()

        self._session.run(add())

    def confirm(self, add: Callable[[AckQueue], AckFlight]) -> None:
        """Acks and waits for the broker's answer."""

        async def add_and_confirm() -> None:
            flight = add(self._acks)
            await self._acks.confirm(flight, len(flight.ids) - 1 if flight.ids else None)

        self._session.run(add_and_confirm())

    def call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Does something with the queue of acks, after those that wait here."""
        return self._session.run(function(self._acks, *args))
