"""What messages are handed out to: subscriptions, and requests for messages that wait."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import trio

from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.net.pulse import Pulse
from timerlog.engine.deliver import AsAnswer, NoFrame
from timerlog.engine.deliver import Deliver as Leases
from timerlog.engine.groups import Holders

FRAME_TARGET_BYTES = 1 << 20
"""A DELIVER frame is filled up to about this size; one message alone may be larger."""

_COUNT_AT = 20


def count_of(frame: bytes) -> int:
    """How many messages a DELIVER or FETCH_OK frame has."""
    return int.from_bytes(frame[_COUNT_AT : _COUNT_AT + 4], "little")


@dataclass(kw_only=True, slots=True, eq=False)
class Subscription:
    """One subscription of one connection."""

    number: int
    """The connection's name for it."""
    group_id: int
    group_ids: Sequence[int]
    """Those that deliver: that of each shard, or `group_id` alone."""
    holder: int
    """The engine's name for it."""
    credit: int
    batch: int
    """Both count messages."""
    outgoing: Outgoing
    pulse: Pulse
    """Of its connection."""
    tells_attempts: bool = False
    """Its client wants to know which attempt each delivery is."""
    is_started: bool = field(default=False, init=False)
    is_leaving: bool = field(default=False, init=False)
    lease_told_ms: int = field(default=0, init=False)
    """Which `ack_wait` the client counts with; 0: it is not told of another one."""
    _held: deque[bytes] = field(default_factory=deque, init=False)

    def hold(self, frame: bytes) -> None:
        """A DELIVER frame waits for its leases to be durable."""
        self._held.append(frame)
        self.outgoing.hold(frame)

    def let_go(self, frame: bytes) -> None:
        """They are: send the frame, unless it was taken back meanwhile. Frames come here in the order of `hold`."""
        if self._held and self._held[0] is frame:
            self._held.popleft()
            self.outgoing.let_go(frame)

    def take_held(self) -> Iterator[bytes]:
        """The frames that have not left: each is taken back, and never will."""
        while self._held:
            frame = self._held.popleft()
            self.outgoing.withdraw(frame)
            yield frame

    def room(self, holders: Holders) -> int:
        """How many messages it can take now."""
        return 0 if self.pulse.is_missed else min(self.credit - holders.outstanding(self.holder), self.batch)

    def fetch(self, leases: Leases, group_id: int, room: int, now_ms: int) -> bytes | NoFrame:
        """What there is for it: see `Leases.fetch`."""
        return leases.fetch(
            group_id,
            self.holder,
            self.number,
            room,
            FRAME_TARGET_BYTES,
            now_ms,
            tells_attempts=self.tells_attempts,
        )


@dataclass(kw_only=True, slots=True, eq=False)
class Fetching:
    """One request for messages. It is given one frame, which is its answer; the leases are nobody's, so that they stay
    when the connection ends."""

    group_id: int
    group_ids: Sequence[int]
    """As of a subscription."""
    asked: AsAnswer
    count: int
    max_bytes: int
    outgoing: Outgoing
    unwritten: deque[Fetching]
    """Of the connection: those that have an answer of which it is not known that it left. In the order of answers."""
    pulse: Pulse
    """Of the connection."""
    holder: int = field(default=0, init=False)
    """While it waits: the engine's name for it, under which nothing is leased."""
    since_ms: int = field(default=0, init=False)
    """When it began to wait."""
    is_started: bool = field(default=False, init=False)
    is_answered: bool = field(default=False, init=False)
    over: trio.Event = field(default_factory=trio.Event, init=False)
    """It waits no longer."""
    leased_until_s: float = field(default=-math.inf, init=False)
    """When the leases of its answer end, on trio's clock."""
    _receives: int = field(default=-1, init=False)
    """Of its pulse, when it was answered."""
    _held: bytes | None = field(default=None, init=False)
    _leaves_at: int | None = field(default=None, init=False)
    _receipts: tuple[bytes, bytes] = field(default=(b"", b""), init=False)

    def room(self, holders: Holders) -> int:
        """How many messages it can take now."""
        return 0 if self.over.is_set() or self.pulse.is_missed else self.count

    def fetch(self, leases: Leases, group_id: int, room: int, now_ms: int) -> bytes | NoFrame:
        """What there is for it: see `Leases.fetch`."""
        return leases.fetch(group_id, 0, self.group_id, room, self.max_bytes, now_ms, asked=self.asked)

    def hold(self, frame: bytes) -> None:
        """Its answer waits for its leases to be durable."""
        count = count_of(frame)
        ids_at, epochs_at = _COUNT_AT + 4, _COUNT_AT + 4 + 24 * count
        self._receipts = frame[ids_at : ids_at + 8 * count], frame[epochs_at : epochs_at + 4 * count]
        self._held, self.is_answered = frame, True
        self._receives = self.pulse.receives
        while self.unwritten and self.unwritten[0].has_left:
            self.unwritten.popleft()
        self.unwritten.append(self)
        self.outgoing.hold(frame)
        self.over.set()

    def let_go(self, frame: bytes) -> None:
        """They are: send it, unless it was taken back meanwhile."""
        if self._held is frame:
            self._held = None
            self.outgoing.let_go(frame)
            self._leaves_at = self.outgoing.put_bytes

    @property
    def has_left(self) -> bool:
        """Whether the operating system has the whole answer: more is not known here."""
        return self._leaves_at is not None and self.outgoing.written_bytes >= self._leaves_at

    @property
    def is_unheard(self) -> bool:
        """Whether nothing came from its client since it was answered."""
        return self._receives == self.pulse.receives

    def take_back(self) -> tuple[list[int], list[int]]:
        """The connection is gone: ids and epochs of what surely never arrived."""
        if self._held is not None:
            self.outgoing.withdraw(self._held)
            self._held = None
        elif self.has_left:
            return [], []
        return self.receipts()

    def receipts(self) -> tuple[list[int], list[int]]:
        """Ids and epochs of its answer."""
        ids, epochs = self._receipts
        return list(memoryview(ids).cast("Q")), list(memoryview(epochs).cast("I"))


Taker = Subscription | Fetching
"""What messages are handed out to."""
