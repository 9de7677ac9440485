"""What a connection holds un-acked, and the renewal of its leases: all of a group in one request. It is awaited only
where its answer must be known.

A lease is renewed as long as its message is held here, however long its task runs; that ends with the process. Where
nothing can renew leases, because tasks block the loop, each message is given a long lease when it comes.

A process that stood still (a machine that was moved, a debugger) does not know what became of its leases: the broker is
asked before such a message is worked on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Final

from tickwheel.client.calls import RequestCall
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.conversation import Conversation
from tickwheel.protocol.bodies.settling import Extend, ExtendOk
from tickwheel.protocol.errors import TickwheelError
from tickwheel.protocol.limits import MAX_IDS_A_REQUEST
from tickwheel.protocol.machine import AnswerBody

logger = logging.getLogger("tickwheel.celery")

_EXTENDED: Final = "extended"
_LEASE_ENDED: Final = "lease_ended"
_SHORTEST_S: Final = 0.25
_MARGIN: Final = 0.1
"""Of a lease: with less than this left it may have ended before anything can be done."""


class _Held:
    """A message."""

    __slots__ = ("came_with", "epoch", "until")

    def __init__(self, epoch: int, until: float) -> None:
        self.came_with = epoch
        """The epoch that it was handed out with."""
        self.epoch = epoch
        self.until = until
        """Its lease surely lasts until then; -inf: it has ended, and the message comes again, here or elsewhere."""


class Leases:
    """All methods are called with the lock of the session."""

    def __init__(self, conversation: Conversation, visibility_timeout_s: float | None) -> None:
        self._conversation = conversation
        self._visibility_s = visibility_timeout_s
        self._held: dict[AckQueue, dict[int, _Held]] = {}
        """By the ids of messages."""
        self._lease_s = math.inf
        self._turned_at = -math.inf

    @property
    def count(self) -> int:
        """How many messages are held."""
        return sum(map(len, self._held.values()))

    def learn(self, lease_s: float) -> None:
        """Leases last so long, the shortest of them."""
        self._lease_s = min(self._lease_s, lease_s)

    @property
    def period_s(self) -> float:
        """How often to renew; infinite: there is nothing yet."""
        return max(_SHORTEST_S, (self._visibility_s or self._lease_s) / 3)

    @property
    def due_at(self) -> float:
        """When `turn` is to be called next; infinite while nothing is held."""
        return self._turned_at + self.period_s if self._held else math.inf

    def add(self, acks: AckQueue, ids: Sequence[int], epochs: Sequence[int]) -> list[bool]:
        """These came. For each whether it is new; else it is held already, and was only leased anew, because its lease
        had ended while there was no connection, or while this process stood still."""
        now = self._conversation.waits.now()
        if not self._held:
            self._turned_at = now
        until = self._lease_s + (self._conversation.arrived_at if self._conversation.is_connected else now)
        held = self._held.setdefault(acks, {})
        are_new = []
        for message_id, epoch in zip(ids, epochs, strict=True):
            one = held.get(message_id)
            are_new.append(one is None)
            if one is None:
                held[message_id] = _Held(epoch, until)
            else:
                one.epoch, one.until = epoch, until
        if self._visibility_s is not None:
            self._extend(acks, list(zip(ids, epochs, strict=True)), self._visibility_s)
        return are_new

    def take(self, acks: AckQueue, message_id: int) -> int | None:
        """No longer held: it is settled now. Its epoch; None: it was lost before."""
        held = self._held.get(acks)
        one = None if held is None else held.pop(message_id, None)
        if held is not None and not held:
            del self._held[acks]
        return None if one is None else one.epoch

    def holds(self, acks: AckQueue, message_id: int, came_with: int) -> bool:
        """Whether a message that came with this epoch is held."""
        one = self._find(acks, message_id)
        return one is not None and one.came_with == came_with

    def let_go(self, acks: AckQueue, message_id: int) -> None:
        """Forgets a message whose lease is known to have ended: when it comes again it is a new message."""
        one = self._find(acks, message_id)
        if one is not None and one.until == -math.inf:
            self.take(acks, message_id)

    def may_have_ended(self, acks: AckQueue, message_id: int) -> bool:
        """Whether it is not known that the lease of a message that is held lasts."""
        one = self._find(acks, message_id)
        return one is not None and self._conversation.waits.now() + _MARGIN * self._lease_s > one.until

    def _find(self, acks: AckQueue, message_id: int) -> _Held | None:
        held = self._held.get(acks)
        return None if held is None else held.get(message_id)

    def forget_all(self) -> None:
        """Nothing is held any more."""
        self._held.clear()

    def turn(self, now: float) -> None:
        """Renews all leases, if it is time."""
        if now < self.due_at:
            return
        self._turned_at = now
        for acks in self._held:
            self.renew(acks)

    def renew(self, acks: AckQueue) -> list[RequestCall]:
        """Renews the leases of all that is held of a group. When these calls are done it is known which last."""
        receipts = [(message_id, one.epoch) for message_id, one in self._held.get(acks, {}).items()]
        return self._extend(acks, receipts, self._visibility_s or self._lease_s)

    def _extend(self, acks: AckQueue, receipts: list[tuple[int, int]], for_s: float) -> list[RequestCall]:
        now, deadline = self._conversation.waits.now(), self._conversation.deadline()
        calls: list[RequestCall] = []
        for at in range(0, len(receipts), MAX_IDS_A_REQUEST):
            some = receipts[at : at + MAX_IDS_A_REQUEST]
            calls.append(
                _ExtendCall(leases=self, acks=acks, receipts=some, now=now, for_s=for_s, deadline=deadline)
            )
            self._conversation.submit(calls[-1])
        return calls

    def extended(
        self, acks: AckQueue, receipts: Sequence[tuple[int, int]], results: Sequence[str], until: float
    ) -> None:
        """What the broker said of a renewal."""
        for (message_id, epoch), result in zip(receipts, results, strict=True):
            one = self._find(acks, message_id)
            if one is None or one.epoch != epoch:
                continue
            if result == _EXTENDED:
                one.until = max(one.until, until)
                continue
            if result == _LEASE_ENDED:  # nobody else has it yet: if it comes here, it is not begun again
                one.until = -math.inf
                continue
            logger.warning("message %d of group %r is lost: %s", message_id, acks.group_name, result)
            self.take(acks, message_id)


class _ExtendCall(RequestCall):
    """EXTEND. Where it is awaited, for its `done`."""

    __slots__ = ("_acks", "_leases", "_receipts", "_until")

    def __init__(
        self,
        *,
        leases: Leases,
        acks: AckQueue,
        receipts: list[tuple[int, int]],
        now: float,
        for_s: float,
        deadline: float,
    ) -> None:
        assert acks.group_id is not None
        ids, epochs = zip(*receipts, strict=True)
        request = Extend(
            group_id=acks.group_id,
            ids=list(ids),
            epochs=list(epochs),
            for_ms=max(1, int(for_s * 1_000)),
            only_longer=True,
        )
        super().__init__(request, deadline)
        self._leases, self._acks, self._receipts = leases, acks, receipts
        self._until = now + for_s

    def answered(self, body: AnswerBody) -> None:
        super().answered(body)
        assert isinstance(body, ExtendOk)
        self._leases.extended(self._acks, self._receipts, body.results, self._until)

    def failed(self, error: TickwheelError) -> None:
        logger.debug("leases were not renewed: %s", error)
