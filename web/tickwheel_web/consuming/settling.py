"""Settle: what becomes of deliveries, many at once, by their receipts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from starlette.responses import Response

from tickwheel import Client, ReceiptResult
from tickwheel.errors import TickwheelError
from tickwheel.protocol.receipts import Receipt, decode_receipt
from tickwheel_web import reading
from tickwheel_web.consuming.shapes import Nack, Settle, Settled
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.large.aside import aside
from tickwheel_web.problems import Refused
from tickwheel_web.shapes import MAX_BATCH, duration_of

Act: TypeAlias = Callable[[Sequence[tuple[int, int]]], Awaitable[list[ReceiptResult]]]
"""One request of the client, without the receipts."""

_AT_ONCE: Final = 32
"""So many requests to the broker are on their way: each of them is work between two looks at other connections."""
_MANY: Final = 1_000


@dataclass
class _Part:
    """Receipts with which the same is to be done: one request to the broker."""

    act: Act
    receipts: list[tuple[int, int]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Of the receipts, in the order of the request."""


class _Parts:
    """All receipts of a request, sorted by what is to be done."""

    def __init__(self, asked: Asked) -> None:
        self._client: Client = asked.client
        self._topic, self._group = asked.path("topic"), asked.path("group")
        self._parts: dict[Hashable, _Part] = {}
        self._seen: dict[Receipt, None] = {}  # in their order

    def add(self, wanted: Settle) -> None:
        """All of them. Raises Refused, BadTime."""
        for index, text in enumerate(wanted.ack):
            self.ack(text, f"/ack/{index}")
        for index, nack in enumerate(wanted.nack):
            self.nack(nack, f"/nack/{index}")
        for index, extend in enumerate(wanted.extend):
            self.extend(extend.receipt, extend.by, f"/extend/{index}")

    def ack(self, text: str, pointer: str) -> None:
        """Raises Refused, as the others do."""
        receipt = self._receipt(text, pointer)
        self._add(receipt, ("ack",), partial(self._client.ack, receipt.group_id))

    def nack(self, given: Nack, pointer: str) -> None:
        """Raises BadTime, too."""
        receipt = self._receipt(given.receipt, f"{pointer}/receipt")
        delay = duration_of(given.delay, "delay")
        how = (delay, given.error, given.give_up, given.uncounted)
        act = partial(
            self._client.nack,
            receipt.group_id,
            delay=delay,
            error=given.error,
            give_up=given.give_up,
            uncounted=given.uncounted,
        )
        self._add(receipt, how, act)

    def extend(self, text: str, by: str, pointer: str) -> None:
        """Raises BadTime, too."""
        receipt = self._receipt(text, f"{pointer}/receipt")
        duration = duration_of(by, "by")
        assert duration is not None
        act = partial(self._client.extend, receipt.group_id, duration=duration)
        self._add(receipt, (duration,), act)

    def _receipt(self, text: str, pointer: str) -> Receipt:
        try:
            receipt = decode_receipt(self._topic, self._group, text)
        except ValueError:
            raise Refused(
                400,
                "bad_receipt",
                "This is no receipt of this topic and group, or not all of it. Send it as it was received.",
                pointer=pointer,
            ) from None
        if receipt in self._seen:
            raise Refused(400, "bad_argument", "This receipt is given twice.", pointer=pointer)
        self._seen[receipt] = None
        return receipt

    def _add(self, receipt: Receipt, how: Hashable, act: Act) -> None:
        part = self._parts.setdefault((receipt.group_id, how), _Part(act))
        part.receipts.append((receipt.id, receipt.epoch))
        part.places.append(len(self._seen) - 1)

    async def settle(self) -> list[ReceiptResult]:
        """Many at the same time, so that they share a write to the broker's disk; the results in the order of the
        receipts. Raises BadArgument before anything is done, else the first error when all have ended."""
        for index, part in enumerate(self._parts.values()):
            await part.act(())  # nothing is asked for no receipts; what is wrong with the rest is said
            if index % _AT_ONCE == 0:
                await checkpoint()
        results = [ReceiptResult.NOT_FOUND] * len(self._seen)
        errors: list[TickwheelError] = []

        async def carry_out(rest: Iterator[_Part]) -> None:
            for part in rest:
                try:
                    found = await part.act(part.receipts)
                except TickwheelError as error:
                    errors.append(error)
                    continue
                for place, result in zip(part.places, found, strict=True):
                    results[place] = result

        rest = iter(self._parts.values())
        async with anyio.create_task_group() as group:
            for _ in range(min(_AT_ONCE, len(self._parts))):
                group.start_soon(carry_out, rest)
        if errors:
            raise errors[0]
        return results

    def settled(self, results: Sequence[ReceiptResult]) -> Iterator[Receipt]:
        """Those that nobody has any more."""
        for receipt, result in zip(self._seen, results, strict=True):
            if result != ReceiptResult.EXTENDED:
                yield receipt


async def settle_deliveries(asked: Asked) -> Response:
    """Each receipt has a result of its own; a request that was not answered can be sent again."""
    wanted = await reading.decode_large(Settle, asked.body)
    acks, nacks = len(wanted.ack), len(wanted.nack)
    count = acks + nacks + len(wanted.extend)
    if not 1 <= count <= MAX_BATCH:
        raise Refused(
            400, "bad_argument", f"There are {count:,} receipts. Send 1 to {MAX_BATCH:,}.", pointer=""
        )
    parts = _Parts(asked)
    if count > _MANY:  # others are served meanwhile
        await aside(parts.add, wanted)
    else:
        parts.add(wanted)
    results = await parts.settle()
    asked.shared.credits.settled(parts.settled(results))
    return json(Settled(results[:acks], results[acks : acks + nacks], results[acks + nacks :]))
