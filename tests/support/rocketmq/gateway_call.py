"""A call as a handler of the gateway sees it, without a connection."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from tickwheel import Client
from tickwheel_gateway.calls.service import Asked, Batched
from tickwheel_gateway.calls.together import MethodOf, Single, Together
from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.transport.call import CallEnded, Ends
from tickwheel_gateway.wire import schema

CALLER = Caller("host@1@0", "JAVA", (5, 2, 0), "10.1.2.3", ("127.0.0.1", 8_081))


@dataclass
class OpenCall:
    """A call that keeps what it is answered. Its stream takes messages as long as it is not broken."""

    method: str = "/test"
    metadata: Mapping[str, str] = field(default_factory=lambda: {"x-mq-client-id": CALLER.client_id})
    deadline: float = math.inf
    ends: Ends = field(default_factory=lambda: Ends("10.1.2.3:4000", ("127.0.0.1", 8_081)))
    request: bytes = b""
    replies: list[bytes] = field(default_factory=list)
    failed: tuple[int, str] | None = None
    is_over: bool = False
    takes: float = math.inf
    """So many messages are written before the connection breaks."""

    def __post_init__(self) -> None:
        self._put, self._get = trio.open_memory_channel[bytes](math.inf)

    @property
    def written(self) -> int:
        return len(self.replies)

    def say(self, message: bytes) -> None:
        """A message of a request that is a stream."""
        self._put.send_nowait(message)

    def hang_up(self) -> None:
        """The client ends its request."""
        self._put.close()

    def requests(self) -> AsyncIterator[bytes]:
        return self._get

    def reply(self, data: bytes) -> None:
        self.replies.append(data)
        self.is_over = True

    async def stream(self, *messages: bytes, last: bool = False) -> None:
        await trio.lowlevel.checkpoint()
        for message in messages:
            if self.is_over or self.written >= self.takes:
                raise CallEnded
            self.replies.append(message)
        self.is_over = last

    def fail(self, status: int, text: str) -> None:
        self.failed = status, text
        self.is_over = True


def asked(client: Client, call: OpenCall | None = None, caller: Caller = CALLER) -> Asked:
    """What a handler is given."""
    return Asked(caller, client, call or OpenCall())


class NoTally:
    """Counts nothing."""

    def called(self, name: str, code: int, duration_s: float, times: int = 1) -> None:
        assert times > 0


async def batch(
    client: Client, name: str, answer: Batched, calls: Sequence[OpenCall], caller: Caller = CALLER
) -> None:
    """Has a handler answer calls that arrived together."""
    method = MethodOf(name, getattr(schema, f"{name}Response"), NoTally())
    together = Together(method, [Single(caller, call) for call in calls], 0.0)
    try:
        await answer(client, together)
    except Exception as error:
        together.refuse_all(error)


def read(message_class: Any, call: OpenCall) -> list[Any]:
    """What was answered."""
    return [message_class.FromString(reply) for reply in call.replies]
