"""How handlers answer: when what they tell of is on disk, or when longer work is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from tickwheel.protocol.bodies.base import Answer, Request
from tickwheel.protocol.bodies.requests import FRAME_TYPE_OF_REQUEST, encode_body
from tickwheel.protocol.errors import BadTopicName
from tickwheel.protocol.frames import ANSWER_OF, encode_frame
from tickwheel.protocol.identity import RequestIdentity
from tickwheel.protocol.limits import is_valid_name
from tickwheel_broker.delivery import Subscription
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.requests import remembered as remembering
from tickwheel_broker.security.grants import Identity

if TYPE_CHECKING:
    import trio

    from tickwheel_broker.broker import Broker
    from tickwheel_broker.security.rights import Rights
    from timerlog.tables.answers import Answering


class Caller(Protocol):
    """What a handler needs of the connection that asks."""

    broker: Broker
    outgoing: Outgoing
    subscriptions: dict[int, Subscription]
    identity: Identity
    rights: Rights | None
    """What it may; None: everything."""
    answerings: dict[int, Answering]
    """The answers that are being made to requests with an identity, by correlation."""

    def tell_of(self, request: Request) -> None:
        """Write into the audit log what was done."""

    @property
    def is_gone(self) -> bool:
        """Whether the connection has ended."""

    def next_subscription_number(self) -> int:
        """A number that no other subscription of this connection has."""

    def start_soon(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run something that takes time; it is cancelled when the connection ends."""

    def answer_after(
        self, ended: trio.Event, correlation: int, request: Request, identity: RequestIdentity
    ) -> None:
        """Answer a request again that is at work on another connection, once it has ended there."""

    def answer_later(
        self, correlation: int, request: Request, work: Callable[[], Awaitable[Answer | bytes]]
    ) -> None:
        """Do `work` beside what comes next, then answer when it is on disk; its errors are the answer, too."""


def frame_of(correlation: int, request: type[Request], payload: bytes) -> bytes:
    """The whole frame that answers a request."""
    return encode_frame(ANSWER_OF[FRAME_TYPE_OF_REQUEST[request]], correlation, payload)


def when_durable(caller: Caller, correlation: int, request: Request, body: Answer | bytes) -> None:
    """Answers as soon as everything is durable that the answer can tell of: what it has changed, and what it has only
    seen. At once if that is so already."""
    payload = body if isinstance(body, bytes) else encode_body(body)
    answering = caller.answerings.get(correlation)
    if answering is not None:
        remembering.remember(caller.broker, answering, payload)
        remembering.forget(caller, correlation)
    caller.broker.commit.tell(caller.outgoing, frame_of(correlation, type(request), payload))


def check_name(name: str, what: str) -> None:
    """Raises BadTopicName."""
    if not is_valid_name(name):
        raise BadTopicName(f"{name!r} is not a valid name of a {what}.")
