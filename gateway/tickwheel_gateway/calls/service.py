"""How a call becomes a handler's: who calls is found out, its request is read, its answer is written.

Handlers raise Refused, or what Tickwheel's client raises; here it becomes a Status in an answer.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import trio
from google.protobuf.message import DecodeError

from tickwheel import Client
from tickwheel_gateway.calls.answers import refusal, tell
from tickwheel_gateway.calls.deadlines import BegunInTime
from tickwheel_gateway.calls.together import GARBAGE, BegunTogether, MethodOf, Single, Tally, Together
from tickwheel_gateway.clients.brokers import Brokers
from tickwheel_gateway.clients.caller import CLIENT_ID, LANGUAGE, VERSION, Caller, caller_of
from tickwheel_gateway.clients.credentials import SIGNED
from tickwheel_gateway.clients.registry import Registry
from tickwheel_gateway.transport.call import BatchMethod, Call, CallEnded, Method, Status
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused

Identify: TypeAlias = Callable[[Mapping[str, str]], str]
"""The token of who has sent these headers, empty where none is needed. Raises Refused."""

_STRANGER: Final = Caller("")
_WHO: Final = (CLIENT_ID, LANGUAGE, VERSION, *SIGNED)
"""The headers that say who calls."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a handler has beside the request."""

    caller: Caller
    client: Client
    """Of the broker, with the caller's rights."""
    call: Call


Unary: TypeAlias = Callable[[Asked, Any], Awaitable[Any]]
"""Answers a request."""
Streaming: TypeAlias = Callable[[Asked, Any], Awaitable[Code]]
"""Answers a request through ``asked.call.stream``, and returns the code that its answer has."""
Batched: TypeAlias = Callable[[Client, Together], Awaitable[None]]
"""Answers calls that arrived together."""


class Service:
    """Makes methods of handlers."""

    def __init__(self, identify: Identify, brokers: Brokers, registry: Registry, tally: Tally) -> None:
        self._identify = identify
        self._brokers = brokers
        self._registry = registry
        self._tally = tally

    def caller(self, call: Call) -> Caller:
        """Raises Refused."""
        return caller_of(call, self._identify(call.metadata))

    def unary(self, name: str, answer: Unary) -> tuple[str, Method]:
        """A method with one answer; its path, and itself. Its messages are called as RocketMQ calls them."""
        request_class = getattr(schema, f"{name}Request")
        response_class = getattr(schema, f"{name}Response")

        async def handle(call: Call) -> None:
            began_s = time.monotonic()
            try:
                request = request_class.FromString(call.request)
            except DecodeError:
                self._tally.called(name, 0, time.monotonic() - began_s)
                call.fail(Status.INTERNAL, GARBAGE)
                return
            try:
                response = await self._ask(call, request, answer)
            except Exception as error:
                refused = refusal(error, name)
                response = response_class()
                tell(response.status, refused.code, refused.text)
            self._tally.called(name, response.status.code, time.monotonic() - began_s)
            call.reply(response.SerializeToString())

        return schema.SERVICE + name, Method(handle)

    def streaming(self, name: str, answer: Streaming) -> tuple[str, Method]:
        """A method whose answers are a stream, which begins with a status."""
        request_class = getattr(schema, f"{name}Request")
        response_class = getattr(schema, f"{name}Response")

        async def handle(call: Call) -> None:
            began_s, code = time.monotonic(), int(Code.OK)
            try:
                request = request_class.FromString(call.request)
            except DecodeError:
                self._tally.called(name, 0, time.monotonic() - began_s)
                call.fail(Status.INTERNAL, GARBAGE)
                return
            try:
                code = await self._ask(call, request, answer)
            except CallEnded:
                pass
            except Exception as error:
                refused = refusal(error, name)
                code = refused.code
                response = response_class()
                tell(response.status, refused.code, refused.text)
                await self._last(call, response)
            self._tally.called(name, code, time.monotonic() - began_s)

        return schema.SERVICE + name, Method(handle)

    def batched(self, name: str, answer: Batched) -> tuple[str, BatchMethod]:
        """A method with one answer to each call, whose calls are answered together as they arrive together."""
        method = MethodOf(name, getattr(schema, f"{name}Response"), self._tally)

        async def handle(calls: Sequence[Call]) -> None:
            began_s = time.monotonic()
            parties = self._parties(method, calls, began_s)
            if len(parties) == 1:
                await self._ask_together(*parties[0], answer)
                return
            async with trio.open_nursery() as nursery:
                for caller, together in parties:
                    nursery.start_soon(self._ask_together, caller, together, answer)

        return schema.SERVICE + name, BatchMethod(handle)

    def _parties(
        self, method: MethodOf, calls: Sequence[Call], began_s: float
    ) -> list[tuple[Caller, Together]]:
        """The calls by their rights, with one caller of each."""
        known: dict[tuple[object, ...], tuple[Caller, list[Single]]] = {}
        parties: dict[tuple[str, str], list[Single]] = {}
        for call in calls:
            # What says who calls is looked at once in all that arrive together, and no longer: a pair of keys, or a
            # right, may be taken back.
            said = (id(call.ends), *map(call.metadata.get, _WHO))
            found = known.get(said)
            if found is None:
                try:
                    caller = caller_of(call, self._identify(call.metadata))
                    self._registry.heard(caller)
                except Exception as error:
                    stranger = Single(_STRANGER, call)
                    Together(method, [stranger], began_s).refuse(stranger, error)
                    continue
                found = known[said] = caller, parties.setdefault((caller.token, caller.host), [])
            found[1].append(Single(found[0], call))
        return [(singles[0].caller, Together(method, singles, began_s)) for singles in parties.values()]

    async def _ask_together(self, caller: Caller, together: Together, answer: Batched) -> None:
        try:
            async with BegunTogether(self._brokers.client(caller.token, caller.host), together) as client:
                if client is not None:
                    await answer(client, together)
                    client.grants  # noqa: B018  # raises when it has ended: the next call has another one
        except Exception as error:
            together.refuse_all(error)

    async def _last(self, call: Call, response: Any) -> None:
        if call.written:  # a status comes first or not at all
            call.fail(Status.INTERNAL, response.status.message)
            return
        try:
            await call.stream(response.SerializeToString(), last=True)
        except CallEnded:
            return

    async def _ask(self, call: Call, request: Any, answer: Callable[[Asked, Any], Awaitable[Any]]) -> Any:
        caller = self.caller(call)
        self._registry.heard(caller)
        async with BegunInTime(self._brokers.client(caller.token, caller.host), call) as client:
            return await answer(Asked(caller, client, call), request)


def required(name: str, what: str, code: Code) -> str:
    """A name that a request must have. Raises Refused."""
    if not name.strip():
        raise Refused(code, f"{what} is blank")
    return name
