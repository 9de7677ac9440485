"""Messages of many callers on their way in few frames: for who stands between many programs and a broker.

They are encoded already, and join the frames of this turn of the loop, in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tickwheel.client.calls import Encoded, FlightKey, SendFlight
from tickwheel.client.client import Client
from tickwheel.client.columns import too_large
from tickwheel.client.conversation import Conversation
from tickwheel.errors import TickwheelError
from tickwheel.protocol.bodies.requests import HelloOk

__all__ = ["Encoded", "Joined", "Result"]

Result: TypeAlias = int | TickwheelError
"""The id of a message, also of one that was sent before; or why it has none."""


@dataclass(frozen=True, slots=True)
class _Seats:
    """The places of some messages that follow each other in a frame."""

    flight: SendFlight
    first: int
    count: int

    def ids(self) -> Sequence[Result]:
        """Of each, once the frame was answered."""
        return self.flight.ids(self.first, self.count)


class Joined:
    """Messages on their way. To be left when it is over."""

    def __init__(self, client: Client, topic: str, messages: Encoded) -> None:
        """Returns at once, whatever waits already: who calls bounds what he has under way.

        ``topic``: a name that is good. All messages have keys. If they have priorities, those of messages with an
        ordering key do not count. A message beyond a limit is refused, and the others are sent. Raises ClientClosed.
        """
        self._session: Conversation = client._session
        self._count = len(messages.bodies)
        self._refused = _refused(messages, self._session.limits)
        self._sent: Sequence[int] = range(self._count)
        if self._refused:
            self._sent = [index for index in range(self._count) if index not in self._refused]
            messages = messages.chosen(self._sent)
        self._seats = _seats(self._session, topic, messages)
        self._session.depart()

    async def results(self) -> Sequence[Result]:
        """Waits until all are safe on the broker's disk, or have failed. It may be cancelled and called again."""
        for seats in self._seats:
            await seats.flight.done.wait()
        if len(self._seats) == 1 and not self._refused:
            return self._seats[0].ids()
        found: list[Result] = [0] * self._count
        for index, error in self._refused.items():
            found[index] = error
        places = iter(self._sent)
        for seats in self._seats:
            for result in seats.ids():
                found[next(places)] = result
        return found

    def leave(self) -> None:
        """They are not waited for any more: what was not written yet is not sent."""
        for seats in self._seats:
            self._session.leave(seats.flight, *range(seats.first, seats.first + seats.count))


def _seats(session: Conversation, topic: str, messages: Encoded) -> list[_Seats]:
    """Puts messages on flights of this loop turn. Raises ClientClosed."""
    flight_key = FlightKey(topic, False, True, any(messages.order_keys), bool(messages.priorities))
    columns = messages.bodies, messages.keys, messages.headers, messages.order_keys
    sizes = [
        len(body) + len(key) + len(headers) + len(order)
        for body, key, headers, order in zip(*columns, strict=True)
    ]
    seats: list[_Seats] = []
    start, total = 0, len(sizes)
    while start < total:
        flight = session.flight(flight_key, sizes[start])
        stop = start + flight.room_for(sizes, start)
        size_bytes = sum(sizes[start:stop])
        part = messages if stop - start == total else messages.part(start, stop)
        seats.append(_Seats(flight, flight.add_all(part, size_bytes), stop - start))
        session.charge(flight, size_bytes)
        start = stop
    return seats


def _refused(messages: Encoded, limits: HelloOk) -> dict[int, TickwheelError]:
    return too_large(
        limits,
        bodies=messages.bodies,
        headers=messages.headers,
        keys=messages.keys,
        order_keys=messages.order_keys,
    )
