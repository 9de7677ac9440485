"""Calls of one method that arrived together: all have the same rights, and each has its own answer and deadline."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol

import trio

from tickwheel import Client
from tickwheel.sharing.clients import Use
from tickwheel_gateway.calls.answers import refusal, tell
from tickwheel_gateway.calls.deadlines import too_late, when_late
from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.transport.call import Call, Status
from tickwheel_gateway.wire.codes import Code

GARBAGE: Final = "the request is none of this method"
_NEAR_S: Final = 0.01
"""Deadlines that are so close are one."""


class Tally(Protocol):
    """Counts calls."""

    def called(self, name: str, code: int, duration_s: float, times: int = 1) -> None:
        """So many have ended, with this code of RocketMQ."""


@dataclass(eq=False, slots=True)
class Single:
    """One of the calls."""

    caller: Caller
    call: Call


@dataclass(eq=False, slots=True)
class MethodOf:
    """What is the same for all calls of a method."""

    name: str
    """As RocketMQ calls it."""
    response_class: Any
    tally: Tally


class Together:
    """The calls that have no answer yet, in the order in which they came."""

    def __init__(self, method: MethodOf, calls: Iterable[Single], began_s: float) -> None:
        """``began_s``: when they arrived, by the monotonic clock."""
        self._method = method
        self._began_s = began_s
        now = trio.current_time()
        self._left = {single: when_late(single.call, now) for single in calls}

    @property
    def left(self) -> list[Single]:
        """Those without an answer."""
        return list(self._left)

    def answer(self, single: Single, code: int, reply: bytes) -> None:
        """The first answer counts."""
        if self._left.pop(single, None) is not None:
            self._count(code, 1)
            single.call.reply(reply)

    def answer_all(self, code: int, calls: Sequence[Single], replies: Iterable[bytes]) -> None:
        """Answers with the same code."""
        left, count = self._left, 0
        for one, reply in zip(calls, replies, strict=True):
            if left.pop(one, None) is not None:
                count += 1
                one.call.reply(reply)
        if count:
            self._count(code, count)

    def refuse(self, single: Single, error: Exception) -> None:
        """Answers with what is said of an error."""
        self._refuse([single], error)

    def refuse_all(self, error: Exception) -> None:
        """Answers all that have no answer."""
        if self._left:
            self._refuse(self.left, error)

    def garbage(self, single: Single) -> None:
        """The request is none."""
        if self._left.pop(single, None) is not None:
            self._count(0, 1)
            single.call.fail(Status.INTERNAL, GARBAGE)

    def part(self, calls: Iterable[Single]) -> Together:
        """Some of them, which are looked after alone from now on."""
        part = Together(self._method, (), self._began_s)
        part._left = {single: self._left.pop(single) for single in calls if single in self._left}
        return part

    async def in_time(self, work: Callable[[], Awaitable[None]], client: Client | None) -> None:
        """Does what bears to be cancelled and begun anew. A call whose deadline is near is refused meanwhile; when none
        is left, so it ends. ``client``: of the broker, None as long as it has not let one in."""
        while self._left:
            with trio.CancelScope(deadline=min(self._left.values())) as scope:
                await work()
            if not scope.cancelled_caught:
                return
            now = trio.current_time() + _NEAR_S
            error = too_late(client)
            for single in [single for single, late in self._left.items() if late <= now]:
                self.refuse(single, error)

    def _refuse(self, calls: list[Single], error: Exception) -> None:
        refused = refusal(error, self._method.name)
        self.answer_all(refused.code, calls, [self._refusal(refused.code, refused.text)] * len(calls))

    def _refusal(self, code: Code, text: str) -> bytes:
        response = self._method.response_class()
        tell(response.status, code, text)
        return bytes(response.SerializeToString())

    def _count(self, code: int, times: int) -> None:
        self._method.tally.called(self._method.name, code, time.monotonic() - self._began_s, times)


class BegunTogether(AbstractAsyncContextManager[Client | None]):
    """A client, begun to be used before the deadlines of calls. None: they all are over."""

    def __init__(self, using: Use, together: Together) -> None:
        self._using = using
        self._together = together
        self._client: Client | None = None

    async def __aenter__(self) -> Client | None:
        self._client = self._using.at_once()
        if self._client is None:
            await self._together.in_time(self._enter, None)
        return self._client

    async def _enter(self) -> None:
        self._client = await self._using.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._using.__aexit__(kind, error, trace)
