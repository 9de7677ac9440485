"""One connection: a reader and a writer.

The reader receives as much as there is and gives it to the engine in one call, which takes all SEND frames
at its head. Other frames come back one by one and are answered here. The writer is `Outgoing`. Neither ever
holds more than a bounded number of bytes, and a client that does not read is not read from either.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import trio
from msgspec import UNSET, UnsetType

from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.requests import GoAway, Hello, HelloOk, encode_body
from tickwheel.protocol.errors import (
    BadCrc,
    BadFrame,
    BadHandshake,
    ConnectionDenied,
    Forbidden,
    FrameTooLarge,
    GrantsChanged,
    InternalError,
    RemoteProtocolError,
    SendTimeout,
    ShuttingDown,
    TickwheelError,
    UnknownTopic,
)
from tickwheel.protocol.frames import HEADER_BYTES, FrameType, encode_frame
from tickwheel.protocol.identity import RequestIdentity
from tickwheel.protocol.limits import MAX_HANDSHAKE_BYTES, MAX_HEADERS_BYTES, MAX_KEY_BYTES, PROTOCOL_VERSION
from tickwheel.protocol.machine import NotUnderstood, Requested, ServerMachine
from tickwheel.protocol.units import delay_levels_ms
from tickwheel_broker import logs
from tickwheel_broker.bell import Bell
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.flight import told_flight_url
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.counters import Counters
from tickwheel_broker.delivery.probing import Probing
from tickwheel_broker.delivery.subscriptions import Fetches, Subscriptions
from tickwheel_broker.delivery.takers import Fetching, Subscription, Taker
from tickwheel_broker.errors import ends_the_broker, no_room, refusal_of
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.lifetime import Lifetime
from tickwheel_broker.net.inbox import Inbox
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.net.pulse import Pulse
from tickwheel_broker.net.receive_room import ReceiveRoom
from tickwheel_broker.net.transport import Transport
from tickwheel_broker.net.turns import Turn, Turns
from tickwheel_broker.requests.caller import Work
from tickwheel_broker.requests.operations import Clients
from tickwheel_broker.requests.table import Requests
from tickwheel_broker.security.access import Access, Peer, real_peer
from tickwheel_broker.security.grants import NOBODY, Identity
from tickwheel_broker.security.rights import CONSUME, Rights
from tickwheel_broker.services import Services
from tickwheel_native import crc32c
from timerlog.commitlog.log import CommitLog
from timerlog.engine.deliver import Deliver
from timerlog.engine.produce import Ingested, Produce, Stop
from timerlog.errors import StoreError
from timerlog.tables.answers import MAX_ANSWERS, Answering

_TYPE_OFFSET = 8
MAX_SLOW_REQUESTS = 16
"""So many requests of one connection may be at work beside each other; until one ends, it is not read from."""

_MAX_NAME = 100
_MAX_GRANTS_CHARS = 8_192
_LINGER_S = 1.0
_LINGER_BYTES = 64 << 20

_log = logs.get_logger("connection")


@dataclass(frozen=True, slots=True)
class Parts:
    """What all connections of a broker work with."""

    settings: Settings
    produce: Produce
    deliver: Deliver
    log: CommitLog
    timeline: str
    clock: Clock
    lifetime: Lifetime
    commit: GroupCommit
    services: Services
    publish: Callable[[], None]
    subscriptions: Subscriptions
    fetches: Fetches
    probing: Probing
    counters: Counters
    access: Access
    rights_of: Callable[[Identity], Rights]
    receive_room: ReceiveRoom
    turns: Turns
    requests: Requests
    clients: Clients


class Connection:
    """The server's end of one connection."""

    def __init__(self, parts: Parts, transport: Transport, number: int) -> None:
        """`number` identifies the connection in the log, and to who asks for clients."""
        self._parts = parts
        self.number = number
        self.name = ""
        self.since_ms = 0
        self.outgoing = Outgoing(transport, parts.settings.write_high_water_bytes)
        self.pulse = Pulse(self.outgoing.put)
        self.subscriptions: dict[int, Subscription] = {}
        self.fetches: dict[int, Fetching] = {}
        self.unwritten: deque[Fetching] = deque()
        self.opened_s = trio.current_time()
        self.frame_since_s: float | None = None
        self.is_greeted = False
        self.is_gone = False
        self.identity = NOBODY
        self.rights: Rights | None = None
        self.answerings: dict[int, Answering] = {}
        self._transport = transport
        self._peer: Peer = transport
        self._inbox = Inbox(MAX_HANDSHAKE_BYTES)
        self._machine = ServerMachine(parts.settings.max_frame_bytes)
        self._last_subscription = 0
        self._scope = trio.CancelScope()
        self._hearing = trio.CancelScope()
        self._overdue: TickwheelError | None = None
        self._large_bytes = 0
        self._nursery: trio.Nursery | None = None
        self._slow_requests = 0
        self._slow_ended = Bell()
        self._log = _log.bind(connection=number, peer=transport.peer)

    @property
    def peer(self) -> str:
        """See `requests.operations.Client`."""
        return self._peer.peer

    # -- life -----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve until either side ends it. Raises only what must end the broker."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self.outgoing.run)
                    await self._converse()
                    nursery.cancel_scope.cancel()
        except* trio.BrokenResourceError as group:
            error = group.exceptions[0]
            self._log.debug("connection lost", reason=str(error))
            if not self.is_greeted and isinstance(error.__cause__, ssl.SSLError):
                self._parts.access.audit.refused("tls", peer=self.peer, reason=str(error))
        finally:
            self._leave()

    def end(self, error: TickwheelError) -> None:
        """The other side has missed a deadline: tell it, then close. One that does not read cannot be told, nor
        can one that is still in the TLS handshake."""
        if isinstance(error, SendTimeout) or not self._transport.is_established:
            self._log.warning("connection closed", code=error.code, reason=error.message, advice=error.advice)
            self.drop(error)
        elif self._overdue is None:
            self._overdue = error
            self._hearing.cancel()

    def drop(self, error: TickwheelError) -> None:
        """Close at once, without a word to the other side."""
        self._parts.counters.refusals[error.code] += 1
        self._scope.cancel()

    def go_away(self, reason: str) -> None:
        """Tell the client that the broker is stopping, behind all that was given to it: it may hang up at once."""
        if self.is_greeted:
            frame = encode_frame(FrameType.GOAWAY, 0, encode_body(GoAway(reason)))
            self._parts.commit.tell(self.outgoing, frame)

    def check_login(self) -> None:
        """Tokens have changed: what this connection may do is what they say now; if it is nothing, it is closed."""
        if not self.is_greeted or self.identity is NOBODY:
            return
        try:
            identity = self._parts.access.renewed(self.identity)
        except ConnectionDenied as error:
            self.dismiss(error)
            return
        if identity is not self.identity:
            self._become(identity)
            if not self._may_keep_subscriptions():
                self.dismiss(GrantsChanged())

    def _may_keep_subscriptions(self) -> bool:
        rights = self.rights
        return rights is None or all(
            rights.identity.may(CONSUME, rights.topic_of_group(taker.group_id)) for taker in self._takers()
        )

    def tell_of(self, request: Request) -> None:
        """See `requests.caller.Caller`."""
        named = (getattr(request, name, None) for name in ("topic", "name", "job", "id"))
        what = str(next(filter(None, named), ""))
        group = getattr(request, "group", None)
        if isinstance(group, str):
            what = f"{what}/{group}"
        how = {name: getattr(request, name) for name in ("enabled", "reason") if hasattr(request, name)}
        self._parts.access.audit.done(
            type(request).__name__, peer=self.peer, token=self.identity.login, subject=what, **how
        )

    def _become(self, identity: Identity) -> None:
        self.identity = identity
        self.rights = self._parts.rights_of(identity) if identity.is_limited else None

    def dismiss(self, error: TickwheelError) -> None:
        """Nothing is done any more for the other side; it is told why, and then the connection ends."""
        self._become(NOBODY)
        self._log.info("connection closed", code=error.code, reason=error.message)
        parts = self._parts
        self._give_up(parts.subscriptions.give_back, parts.fetches.stop, self.fetches.values())
        self.outgoing.put(self._parts.counters.refusal(0, error))
        # Without tasks the connection is just ending, and takes no more.
        if self._nursery is not None and self._nursery.child_tasks:
            self.start_soon(self._take_leave)

    async def _take_leave(self) -> None:
        with trio.move_on_after(_LINGER_S):
            await self.outgoing.flush()
            self._transport.end_sending()
            await trio.sleep_forever()  # the other side closes, and that ends this
        self._scope.cancel()

    def next_subscription_number(self) -> int:
        """See `requests.caller.Caller`."""
        self._last_subscription += 1
        return self._last_subscription

    def start_soon(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """See `requests.caller.Caller`."""
        assert self._nursery is not None, "requests come while the connection is served"
        self._nursery.start_soon(work, *args)

    async def _converse(self) -> None:
        try:
            with self._hearing:
                await self._greet()
                await self._listen()
            if self._overdue is not None:
                await self._part(self._overdue, 0)
                return
        except (RemoteProtocolError, ConnectionDenied) as error:
            await self._part(error, self._inbox.correlation() if isinstance(error, FrameTooLarge) else 0)
        except trio.BrokenResourceError:
            raise
        except Exception as error:
            if ends_the_broker(error):
                raise
            self._log.exception("defect", error=str(error))
            await self._part(InternalError(), 0)
        else:
            await self._settle()

    def _leave(self) -> None:
        self.is_gone = True
        self.pulse.lost()
        self._parts.clients.left(self)
        self._transport.close()
        self._parts.receive_room.give_back(self._large_bytes)
        self._give_up(self._parts.subscriptions.lose, self._parts.fetches.lose, self.unwritten)
        self.unwritten.clear()

    def _give_up(
        self,
        end_subscription: Callable[[Subscription], object],
        end_fetch: Callable[[Fetching], None],
        fetches: Iterable[Fetching],
    ) -> None:
        """End all that this connection reads, and publish what that has changed."""
        for subscription in self.subscriptions.values():
            end_subscription(subscription)
        self.subscriptions.clear()
        for fetching in fetches:
            end_fetch(fetching)
        self._parts.publish()

    async def _settle(self) -> None:
        """The client has ended its side: it may still read the answers to what it asked before. It is given nothing."""
        for fetching in self.fetches.values():
            self._parts.fetches.stop(fetching)
        await self._parts.commit.wait_durable(self._parts.log.appended_position)
        await self.outgoing.flush()
        self._log.debug("connection ended")

    async def _part(self, error: TickwheelError, correlation: int) -> None:
        """Answer what was accepted, then say why, then close without losing that answer to a reset."""
        # What strangers do is in the audit log, which is bounded: they must not be able to fill this one.
        level = self._log.warning if self.is_greeted else self._log.debug
        level("connection refused", code=error.code, reason=error.message, advice=error.advice)
        if not self.is_greeted and not isinstance(error, ConnectionDenied):
            self._parts.access.audit.refused("connection", peer=self.peer, code=error.code)
        await self._parts.commit.wait_durable(self._parts.log.appended_position)
        self.outgoing.put(self._parts.counters.refusal(correlation, error))
        await self.outgoing.flush()
        self._transport.end_sending()
        scrap = memoryview(bytearray(1 << 16))
        left_bytes = _LINGER_BYTES
        with trio.move_on_after(_LINGER_S):
            while left_bytes > 0 and (count_bytes := await self._transport.receive_into(scrap)):
                left_bytes -= count_bytes

    # -- reading --------------------------------------------------------------------------------------------

    async def _receive(self) -> bool:
        """Receive once. False at the end of the stream. Raises FrameTooLarge."""
        await self._take_room()
        pulse = self.pulse
        pulse.silent_since_s = trio.current_time()
        if not self._inbox:
            self.frame_since_s = None
        elif self.frame_since_s is None:
            self.frame_since_s = pulse.silent_since_s
        count_bytes = await self._transport.receive_into(self._inbox.free())
        pulse.silent_since_s = None
        pulse.receives += 1
        if pulse.is_awaited:
            self._heard()
        self._inbox.received(count_bytes)
        return count_bytes > 0

    def _heard(self) -> None:
        """It runs again, or has answered: what it was not given meanwhile, it may be given now."""
        if self.pulse.heard():
            self._parts.probing.readmit(self.pulse, self._takers)

    def _takers(self) -> list[Taker]:
        return [*self.subscriptions.values(), *self.fetches.values()]

    async def _take_room(self) -> None:
        """Before a buffer grows to take a large frame, there must be room for it; afterwards it is given back."""
        room, wanted_bytes = self._parts.receive_room, self._inbox.wanted_large_bytes()
        if wanted_bytes > self._large_bytes:
            self.frame_since_s = None  # it is not the client that is slow
            await room.take(wanted_bytes - self._large_bytes)
        elif wanted_bytes < self._large_bytes:
            room.give_back(self._large_bytes - wanted_bytes)
        self._large_bytes = wanted_bytes

    async def _greet(self) -> None:
        """The handshake. Raises BadHandshake or UnsupportedProtocol."""
        inbox = self._inbox
        while not (self._looks_like_hello() and inbox.has_frame()):
            if not await self._receive():
                return
        frame = inbox.first_frame()
        if crc32c(frame[_TYPE_OFFSET:]) != int.from_bytes(frame[4:8], "little"):
            raise BadCrc
        correlation = inbox.correlation()
        event = self._machine.frame_received(FrameType.HELLO, correlation, frame[HEADER_BYTES:])
        assert isinstance(event, Requested)
        assert isinstance(event.request, Hello)
        inbox.consume(len(frame))
        inbox.max_frame_bytes = self._parts.settings.max_frame_bytes
        self._peer = real_peer(event.request.peer, self._transport)
        self._log = self._log.bind(peer=self.peer)
        self._become(await self._parts.access.log_in(event.request.token, self._peer))
        self.is_greeted = True
        self.name, self.since_ms = event.request.client[:_MAX_NAME], self._parts.clock.now_ms()
        self._parts.clients.came(self)
        self._log.debug("connection greeted", client=self.name)
        self.outgoing.put(encode_frame(FrameType.HELLO_OK, correlation, encode_body(self._hello_ok())))

    def _looks_like_hello(self) -> bool:
        """Whether it may still be a HELLO: known from the ninth byte on. Raises BadHandshake if it is not."""
        received = self._inbox.pending()
        if len(received) > _TYPE_OFFSET and received[_TYPE_OFFSET] != FrameType.HELLO:
            raise BadHandshake("The first bytes are not a HELLO frame of this protocol.")
        return True

    def _hello_ok(self) -> HelloOk:
        parts = self._parts
        return HelloOk(
            protocol=PROTOCOL_VERSION,
            server=parts.lifetime.name,
            now_ms=parts.clock.now_ms(),
            max_frame_bytes=parts.settings.max_frame_bytes,
            max_body_bytes=parts.settings.max_body_bytes,
            max_key_bytes=MAX_KEY_BYTES,
            max_headers_bytes=MAX_HEADERS_BYTES,
            delay_levels_ms=list(delay_levels_ms(parts.settings.delay_levels)),
            answers_remembered=MAX_ANSWERS,
            tells_differences=True,
            log_position=parts.log.durable_position,
            holds=True,
            counts_attempts=True,
            timeline=parts.timeline,
            probes=True,
            grants=self._grants(),
            is_limited=self.identity.is_limited or UNSET,
            flight_url=told_flight_url(parts.settings) or UNSET,
        )

    def _grants(self) -> list[str] | UnsetType:
        """What the client is told that it may do. Of more than fits well, it learns by being refused."""
        texts = self.identity.texts
        return UNSET if texts is None or sum(map(len, texts)) > _MAX_GRANTS_CHARS else texts

    async def _listen(self) -> None:
        """Take frames until the client ends. Raises RemoteProtocolError when the stream cannot be trusted."""
        inbox, outgoing, parts = self._inbox, self.outgoing, self._parts
        lifetime, services, turn = parts.lifetime, parts.services, Turn(parts.turns)
        if not self.is_greeted:
            return
        while True:
            outgoing.gathers = True
            while inbox.has_frame():
                self.frame_since_s = None
                if lifetime.is_draining:
                    self._take_one_while_draining()
                else:
                    self._take(inbox.next_piece())
                if outgoing.is_full:
                    await outgoing.wait_not_full()
                if services.is_behind:
                    await services.wait_for_room()
                while self._slow_requests >= MAX_SLOW_REQUESTS:
                    await self._slow_ended.wait()
                if outgoing.has_promised_much:
                    await parts.commit.wait_durable(parts.log.appended_position)
                if turn.is_over:
                    await turn.yield_()
            outgoing.gathers = False
            if not await self._receive():
                return
            turn.begin()

    def _take(self, data: memoryview) -> None:
        """One call of the engine: all SEND frames at the head of `data`, and perhaps one frame of another
        type.
        """
        parts = self._parts
        rights = self.rights
        taken = parts.produce.ingest(data, parts.clock.now_ms(), None if rights is None else rights.sending)
        self._inbox.consume(taken.consumed_bytes)
        if taken.exceptions:
            parts.counters.refused_messages(taken.replies)
        if taken.replies:
            is_last = taken.stop is Stop.NEED_MORE and not self._inbox.has_frame()
            parts.commit.when_durable(taken.position, self.outgoing.promise(), taken.replies, is_last=is_last)
        if taken.stop is not Stop.NEED_MORE:
            self._after_stop(taken)

    def _after_stop(self, taken: Ingested) -> None:
        if taken.stop is Stop.BAD_CRC:
            raise BadCrc
        if taken.stop is Stop.FRAME_TOO_LARGE:
            raise FrameTooLarge
        frame = taken.stop_frame
        assert frame is not None
        frame_type, correlation, payload = frame
        if taken.stop is Stop.OTHER_FRAME:
            self._request(frame_type, correlation, payload, taken.stop_flags)
        elif taken.stop is Stop.FORBIDDEN:
            assert self.rights is not None, "who has no limits is forbidden nothing"
            self._refuse(correlation, self.rights.refusal_of_send(payload))
        elif taken.refused is not None:
            self._refuse(correlation, no_room(taken.refused))
        else:
            self._refuse(correlation, _REFUSALS[taken.stop]())

    def _request(self, frame_type: int, correlation: int, payload: memoryview, flags: int) -> None:
        if frame_type == FrameType.ACK and not flags:
            self._guarded(correlation, lambda: self._ack(correlation, payload))
        else:
            self._guarded(correlation, lambda: self._control(frame_type, correlation, payload, flags))

    def _guarded(self, correlation: int, answer: Callable[[], None]) -> None:
        try:
            answer()
        except (StoreError, TickwheelError) as error:
            self._refuse(correlation, refusal_of(error))

    def _ack(self, correlation: int, payload: memoryview) -> None:
        parts = self._parts
        if self.rights is not None:
            self.rights.need_of_group(int.from_bytes(payload[:4], "little"))
        try:
            acked = parts.deliver.ack(payload, correlation, parts.clock.now_ms())
        except ValueError as error:
            raise BadFrame(f"ACK was not understood: {error}.") from error
        parts.commit.when_durable(acked.position, self.outgoing.promise(), acked.reply, is_hurried=False)
        parts.publish()

    def _control(self, frame_type: int, correlation: int, payload: memoryview, flags: int) -> None:
        event = self._machine.frame_received(frame_type, correlation, payload, flags)
        if isinstance(event, NotUnderstood):
            self._refuse(correlation, event.error)
        else:
            assert isinstance(event, Requested), "SEND and ACK do not come here"
            self._parts.requests.answer(self, correlation, event.request, event.identity)

    def answer_after(
        self, ended: trio.Event, correlation: int, request: Request, identity: RequestIdentity
    ) -> None:
        """See `requests.caller.Caller`."""
        self._slow_requests += 1
        self.start_soon(self._answer_after, ended, correlation, request, identity)

    async def _answer_after(
        self, ended: trio.Event, correlation: int, request: Request, identity: RequestIdentity
    ) -> None:
        try:
            await ended.wait()
            self._guarded(
                correlation, lambda: self._parts.requests.answer(self, correlation, request, identity)
            )
        finally:
            self._slow_requests -= 1
            self._slow_ended.ring()

    def answer_later(self, correlation: int, request: Request, work: Work) -> None:
        """See `requests.caller.Caller`."""
        self._slow_requests += 1
        self.start_soon(self._work, correlation, request, work)

    async def _work(self, correlation: int, request: Request, work: Work) -> None:
        answers = self._parts.requests.answers
        try:
            answers.when_durable(self, correlation, request, await work())
        except (StoreError, TickwheelError) as error:
            refusal = refusal_of(error)
            answers.remembered.forget(self, correlation, refusal)
            self._refuse(correlation, refusal)
        except Exception as error:
            if ends_the_broker(error):
                raise
            self._log.exception("defect", error=str(error))
            self._refuse(correlation, InternalError())
        finally:
            answers.remembered.forget(self, correlation)
            self._slow_requests -= 1
            self._slow_ended.ring()

    def _refuse(self, correlation: int, error: TickwheelError) -> None:
        """Answer one request with its error; the connection goes on."""
        if error.code == Forbidden.code:
            self._parts.access.audit.refused(
                "request",
                peer=self.peer,
                token=self.identity.login,
                code=error.code,
                reason=error.message,
            )
        self._log.info("request refused", code=error.code, reason=error.message)
        # That something is not there, or is done already, may be what another request has only just changed.
        self._parts.commit.tell(self.outgoing, self._parts.counters.refusal(correlation, error))

    def _take_one_while_draining(self) -> None:
        """During shutdown: acks and the like are still taken, sends are not."""
        frame = self._inbox.first_frame()
        if frame[_TYPE_OFFSET] != FrameType.SEND:
            self._take(frame)
            return
        if crc32c(frame[_TYPE_OFFSET:]) != int.from_bytes(frame[4:8], "little"):
            raise BadCrc
        self._refuse(self._inbox.correlation(), ShuttingDown())
        self._inbox.consume(len(frame))


_REFUSALS: dict[Stop, type[TickwheelError]] = {
    Stop.BAD_FRAME: BadFrame,
    Stop.UNKNOWN_TOPIC: UnknownTopic,
}
