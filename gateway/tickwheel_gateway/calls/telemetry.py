"""Telemetry: the stream of a client, open as long as it lives. It says its settings and is answered; through it a
producer is asked what becomes of its transactions.

The stream is not ended but when the client ends it, is refused, or the gateway stops: clients need seconds or minutes
to open another one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import trio
from google.protobuf.message import DecodeError

from tickwheel import Client
from tickwheel.errors import Forbidden, TickwheelError
from tickwheel_gateway.calls.answers import refusal, tell
from tickwheel_gateway.clients.brokers import Brokers
from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.clients.registry import Registry
from tickwheel_gateway.clients.rights import CONSUME, PUBLISH, check_right
from tickwheel_gateway.clients.settings import CONSUMERS, BadSettings, declared, merge
from tickwheel_gateway.config import Config
from tickwheel_gateway.filters.expressions import compile_filter
from tickwheel_gateway.transport.call import Call, CallEnded, Status
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.names import group_of, topic_of

NAME: Final = "Telemetry"
_LOOK_S: Final = 1.0
_OPEN_S: Final = 2.0
"""Groups are opened so long before settings are answered: a client does not wait for its settings much longer."""

_log = logging.getLogger("tickwheel.gateway.telemetry")


class Tally(Protocol):
    """Counts."""

    def called(self, name: str, code: int, duration_s: float) -> None:
        """Settings were answered with this code of RocketMQ; 0: they were none."""

    def streams(self, change: int) -> None:
        """So many more are open."""


class Telemetry:
    """All streams of a process."""

    def __init__(
        self,
        *,
        config: Config,
        identify: Callable[[Call], Caller],
        brokers: Brokers,
        registry: Registry,
        stopping: trio.Event,
        tally: Tally,
    ) -> None:
        """``identify``: raises Refused. ``stopping``: all streams end when it is set."""
        self._config = config
        self._identify = identify
        self._brokers = brokers
        self._registry = registry
        self._stopping = stopping
        self._tally = tally
        self._open: dict[_Conversation, None] = {}

    async def run(self) -> None:
        """Until the gateway stops: ends streams whose token has lost its rights, and in the end all."""
        while not self._stopping.is_set():
            with trio.move_on_after(_LOOK_S):
                await self._stopping.wait()
            self._look()
        for conversation in self._open:
            conversation.end()

    async def serve(self, call: Call) -> None:
        """The handler of the method."""
        self._tally.streams(1)
        try:
            await self._serve(call)
        except CallEnded:
            return
        except DecodeError:
            self._tally.called(NAME, 0, 0.0)
            call.fail(Status.INTERNAL, "this is no command of this method")
        except BadSettings as error:
            self._tally.called(NAME, Code.BAD_REQUEST, 0.0)
            call.fail(Status.INVALID_ARGUMENT, str(error))
        except Exception as error:
            refused = refusal(error, NAME)
            self._tally.called(NAME, refused.code, 0.0)
            await _refuse(call, refused)
        finally:
            self._tally.streams(-1)

    async def _serve(self, call: Call) -> None:
        caller = self._identify(call)
        self._registry.heard(caller)
        async with self._brokers.client(caller.token, caller.host) as client:
            conversation = _Conversation(
                call=call,
                caller=caller,
                client=client,
                config=self._config,
                identify=self._identify,
                registry=self._registry,
                tally=self._tally,
            )
            if self._stopping.is_set():
                return
            self._open[conversation] = None
            try:
                await conversation.run()
            finally:
                del self._open[conversation]
                conversation.close()
            if conversation.lost is not None:
                raise conversation.lost

    def _look(self) -> None:
        lost: dict[Client, TickwheelError | None] = {}
        for conversation in self._open:
            if conversation.client not in lost:
                lost[conversation.client] = _why_lost(conversation.client)
            error = lost[conversation.client]
            if error is not None:
                conversation.lost = error
                conversation.end()


class _Conversation:
    """That with one client. It is the Stream of the registry."""

    def __init__(
        self,
        *,
        call: Call,
        caller: Caller,
        client: Client,
        config: Config,
        identify: Callable[[Call], Caller],
        registry: Registry,
        tally: Tally,
    ) -> None:
        self.client = client
        self.lost: TickwheelError | None = None
        """Why the broker does not know the client's token any more."""
        self._call = call
        self._caller = caller
        self._config = config
        self._identify = identify
        self._registry = registry
        self._tally = tally
        self._opened: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Until the client ends it. Raises DecodeError, BadSettings, Refused, TickwheelError, CallEnded."""
        async for message in self._call.requests():
            await self._take(message)

    async def send(self, command: bytes) -> bool:
        """See `Stream`."""
        try:
            await self._call.stream(command)
        except CallEnded:
            return False
        return True

    def end(self) -> None:
        """It ends after what the client has said already."""
        self._call.hang_up()

    def close(self) -> None:
        """The client is there for a while yet, and cannot be spoken to."""
        known = self._registry.get(self._caller)
        if known is not None and known.stream is self:
            known.stream = None
            self._registry.heard(self._caller)

    async def _take(self, message: bytes) -> None:
        """On its own: what was read would stay until the next one comes, which may be never."""
        command = schema.TelemetryCommand.FromString(message)
        self._registry.heard(self._caller)
        if command.WhichOneof("command") == "settings":
            began_s = time.monotonic()
            await self._settings(command.settings)
            self._tally.called(NAME, Code.OK, time.monotonic() - began_s)

    async def _settings(self, settings: Any) -> None:
        if self._identify(self._call).token != self._caller.token:
            raise Refused(Code.UNAUTHORIZED, "the access key stands for another token now")
        said = declared(settings)
        if said.client_type in CONSUMERS:
            await self._subscribe(settings.subscription)
        else:
            check_right(self.client, PUBLISH, map(topic_of, said.topics))
        answer = schema.TelemetryCommand()
        tell(answer.status, Code.OK)
        merge(settings, answer.settings, self._config)
        self._registry.heard(self._caller).declared = said
        await self._call.stream(answer.SerializeToString())
        # Its client is told nothing before its settings.
        self._registry.heard(self._caller).stream = self

    async def _subscribe(self, subscription: Any) -> None:
        """Topics and groups are made, so that nothing is missed that is sent from now on. Raises Refused."""
        group = group_of(subscription.group.name)
        check_right(
            self.client, CONSUME, [topic_of(entry.topic.name) for entry in subscription.subscriptions]
        )
        with trio.move_on_after(_OPEN_S):
            for entry in subscription.subscriptions:
                topic = topic_of(entry.topic.name)
                if (topic, group) not in self._opened:
                    self._check_filter(entry)
                    await self._open_group(topic, group)

    async def _open_group(self, topic: str, group: str) -> None:
        try:
            await self.client.fetch(topic, group, count=0, start="earliest")
        except Forbidden:
            raise
        except TickwheelError as error:  # what it receives says so, too
            _log.warning("group %s of topic %s is not opened: %s (%s)", group, topic, error, error.code)
        else:
            self._opened.add((topic, group))

    def _check_filter(self, entry: Any) -> None:
        try:
            compile_filter(entry.expression.type, entry.expression.expression)
        except Refused as refused:
            _log.warning(
                "client %s has subscribed to %s with a filter that is none: %s",
                self._caller.client_id,
                entry.topic.name,
                refused.text,
            )


def _why_lost(client: Client) -> TickwheelError | None:
    try:
        client.grants  # noqa: B018  # raises when there will be no more connection
    except TickwheelError as error:
        return error
    return None


async def _refuse(call: Call, refused: Refused) -> None:
    command = schema.TelemetryCommand()
    tell(command.status, refused.code, refused.text)
    try:
        await call.stream(command.SerializeToString(), last=True)
    except CallEnded:
        return
