"""Leases of what push consumers have: they say nothing while they work, so the gateway renews for them.

It does as long as the client is there and has not settled the message, and not longer than `renew_max`. What a client
has that has gone is given back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias

import trio

from tickwheel import Client, ReceiptResult, TickwheelError
from tickwheel_gateway.clients.brokers import Brokers
from tickwheel_gateway.clients.caller import Caller, Identity
from tickwheel_gateway.clients.registry import Known, Registry
from tickwheel_gateway.config import Config
from tickwheel_gateway.delivery.acking import Delivered

TURN_S: Final = 5.0
_LEFT_S: Final = 10.0
"""A lease that ends sooner is renewed."""
_TOLD_S: Final = 3.0
"""So long the others who are told that a client has gone wait for what is given back."""
GONE_DELAY: Final = timedelta(seconds=1)

_log = logging.getLogger("tickwheel.gateway.delivery")


@dataclass(eq=False, slots=True)
class _Handed:
    """What a client was given in one answer, and has not settled. Its leases end together."""

    client: Identity
    group_id: int
    until: float
    """When the leases end, or before; on trio's clock."""
    last: float
    """Then nothing is renewed any more."""
    receipts: set[Delivered]
    is_given_back: bool = field(default=False)
    """The client has gone."""


_Work: TypeAlias = Callable[[int, list[_Handed], Client], Awaitable[None]]


class Renewing:
    """The receipts that are renewed by one process of the gateway."""

    def __init__(self, config: Config, brokers: Brokers, registry: Registry) -> None:
        self._lease_s = config.renew_lease_ms / 1_000
        self._most_s = config.renew_max_ms / 1_000
        self._brokers = brokers
        self._by_receipt: dict[tuple[int, Delivered], _Handed] = {}
        self._by_client: dict[Identity, dict[_Handed, None]] = {}
        registry.when_gone(self._gone)

    def __len__(self) -> int:
        """How many receipts there are."""
        return len(self._by_receipt)

    def keep(self, caller: Caller, group_id: int, receipts: Iterable[Delivered]) -> None:
        """These were handed out now, with a lease of `renew_lease`."""
        now = trio.current_time()
        handed = _Handed(
            caller.identity,
            group_id,
            now + self._lease_s,
            now + self._most_s,
            set(receipts),
        )
        if handed.receipts:
            self._by_client.setdefault(caller.identity, {})[handed] = None
            self._by_receipt |= {(group_id, receipt): handed for receipt in handed.receipts}

    def drop(self, group_id: int, receipts: Iterable[Delivered]) -> None:
        """These are settled, or given back: they are not renewed any more."""
        for receipt in receipts:
            handed = self._by_receipt.pop((group_id, receipt), None)
            if handed is None:
                continue
            handed.receipts.discard(receipt)
            if not handed.receipts:
                self._forget(handed)

    async def leave(self) -> None:
        """The last word of a process that ends: all leases begin anew. Clients that are still at work have their time
        to ack at another process, or at this one when it is back. What clients that are gone had goes back to others.
        """
        with trio.move_on_after(_TOLD_S) as scope:
            await self._tell(self._all)
        if scope.cancelled_caught:
            self.warn_of_rest()

    def warn_of_rest(self) -> None:
        """The process ends before the broker has answered, or was asked."""
        if len(self):
            _log.warning("leases of %d messages may not have been renewed or given back", len(self))

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            began = trio.current_time()
            with trio.move_on_after(TURN_S):
                await self._turn()
            await trio.sleep_until(began + TURN_S)

    def _forget(self, handed: _Handed) -> None:
        for receipt in handed.receipts:
            self._by_receipt.pop((handed.group_id, receipt), None)
        handed.receipts.clear()
        of_client = self._by_client.get(handed.client, {})
        of_client.pop(handed, None)
        if not of_client:
            self._by_client.pop(handed.client, None)

    async def _turn(self) -> None:
        now = trio.current_time()
        due: list[_Handed] = []
        for handed in self._all:
            if handed.until <= now:
                _log.warning(
                    "leases of %d messages of client %s ended before the broker could be told of them",
                    len(handed.receipts),
                    handed.client[1],
                )
                self._forget(handed)
            elif handed.last <= now:
                self._forget(handed)
            elif handed.is_given_back or handed.until - now < _LEFT_S:
                due.append(handed)
        await self._tell(due)

    @property
    def _all(self) -> list[_Handed]:
        return [handed for each in self._by_client.values() for handed in each]

    async def _tell(self, handed: list[_Handed]) -> None:
        """Gives back what is given back, and renews the rest."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._do, self._give_back, [each for each in handed if each.is_given_back])
            nursery.start_soon(self._do, self._extend, [each for each in handed if not each.is_given_back])

    async def _do(self, work: _Work, handed: list[_Handed]) -> None:
        """In one request for each group."""
        by_group: dict[tuple[str, int], list[_Handed]] = {}
        for each in handed:
            by_group.setdefault((each.client[0], each.group_id), []).append(each)
        async with trio.open_nursery() as nursery:
            for (token, group_id), together in by_group.items():
                nursery.start_soon(self._try, token, partial(work, group_id, together))

    async def _try(self, token: str, work: Callable[[Client], Awaitable[None]]) -> None:
        """What fails is tried again at the next turn, while the leases stand."""
        try:
            async with self._brokers.client(token) as client:
                await work(client)
        except (TickwheelError, OSError) as error:
            _log.warning("leases could not be renewed or given back: %s", error)
        except Exception:  # a defect must not end the leases of all clients
            _log.exception("leases could not be renewed or given back")

    async def _extend(self, group_id: int, handed: list[_Handed], client: Client) -> None:
        began = trio.current_time()
        receipts = [receipt for each in handed for receipt in each.receipts]
        results = await client.extend(group_id, receipts, timedelta(seconds=self._lease_s))
        for each in handed:
            each.until = began + self._lease_s
        self.drop(
            group_id,
            (
                receipt
                for receipt, result in zip(receipts, results, strict=True)
                if result != ReceiptResult.EXTENDED
            ),
        )

    async def _give_back(self, group_id: int, handed: list[_Handed], client: Client) -> None:
        receipts = [receipt for each in handed for receipt in each.receipts]
        await client.nack(group_id, receipts, GONE_DELAY)
        self.drop(group_id, receipts)

    async def _gone(self, known: Known) -> None:
        handed = list(self._by_client.get(known.identity, ()))
        for each in handed:
            each.is_given_back = True
        with trio.move_on_after(_TOLD_S):
            await self._do(self._give_back, handed)
