"""Who asks: what handlers need of the connection that a request came on."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import trio

from tickwheel.protocol.bodies.base import Answer, Request
from tickwheel.protocol.identity import RequestIdentity
from tickwheel_broker.delivery.takers import Fetching, Subscription
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.net.pulse import Pulse
from tickwheel_broker.security.grants import Identity
from tickwheel_broker.security.rights import Rights
from timerlog.tables.answers import Answering

Work: TypeAlias = Callable[[], Awaitable[Answer | bytes]]
"""What makes an answer, beside everything else."""


class Caller(Protocol):
    """What a handler needs of the connection that asks."""

    outgoing: Outgoing
    pulse: Pulse
    subscriptions: dict[int, Subscription]
    fetches: dict[int, Fetching]
    """Those that wait, by correlation."""
    unwritten: deque[Fetching]
    """See `Fetching`."""
    identity: Identity
    rights: Rights | None
    """What it may; None: everything."""
    answerings: dict[int, Answering]
    """The answers that are being made to requests with an identity, by correlation."""

    def tell_of(self, request: Request) -> None:
        """Write into the audit log what was done."""

    def next_subscription_number(self) -> int:
        """A number that no other subscription of this connection has."""

    def start_soon(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run something that takes time; it is cancelled when the connection ends."""

    def answer_after(
        self, ended: trio.Event, correlation: int, request: Request, identity: RequestIdentity
    ) -> None:
        """Answer a request again that is at work on another connection, once it has ended there."""

    def answer_later(self, correlation: int, request: Request, work: Work) -> None:
        """Do `work` beside what comes next, then answer when it is on disk; its errors are the answer, too."""
