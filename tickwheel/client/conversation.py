"""What a client has said to the broker and waits for: requests that survive their connection, and what comes back.

A request is submitted to the *outbox*; `_take` gives as many as make a good write, as frames, and enters them as
*pending* of the connection (the Link); `_handle` finishes them with their answers. When the connection breaks, `_lost`
puts pending requests that may be repeated back to the front of the outbox, and the others fail.

Nothing is read or written here: `session` does it in an event loop, and the blocking client in threads, with a lock.
Between two awaits nothing else does something here.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from tickwheel.client import forks as _forks
from tickwheel.client.calls import Call, FlightKey, Identities, RequestCall, SendCall, SendFlight
from tickwheel.client.link import Link, Receiver
from tickwheel.client.url import Address, Nodes, shown_urls
from tickwheel.client.waiting.backoff import Backoff
from tickwheel.client.waiting.budget import Budget
from tickwheel.client.waiting.waits import Waits
from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.fetching import EndFetch
from tickwheel.protocol.bodies.requests import HelloOk, Ping
from tickwheel.protocol.errors import (
    ClientClosed,
    ClientForked,
    ConnectionDenied,
    FrameTooLarge,
    NotConnected,
    NotOwner,
    RequestTimeout,
    RequestUncertain,
    ShuttingDown,
    TickwheelError,
    UnknownTopic,
)
from tickwheel.protocol.frames import HEADER_BYTES
from tickwheel.protocol.identity import IDENTITY_BYTES, RequestIdentity
from tickwheel.protocol.machine import (
    AnswerBody,
    Answered,
    ClientEvent,
    Connected,
    Delivered,
    GoingAway,
    LeaseTold,
    Probed,
    Refused,
    Revoked,
)

logger = logging.getLogger("tickwheel")

WRITE_BYTES: Final = 256 * 1024
READ_BYTES: Final = 256 * 1024
FIRST_READ_BYTES: Final = 16 * 1024
"""Read until a read comes back full: memory for much more would cost more than the read of a short answer itself."""
CLUSTER_BACKOFF_MAX_S: Final = 0.5
"""The longest wait between two rounds where there are several nodes: one of them takes over within seconds."""
KEEPALIVE_S: Final = 30.0
"""How long a silent connection is trusted."""
CLUSTER_KEEPALIVE_S: Final = 5.0
"""The same where there are several nodes: one that is silent is replaced about as soon."""


class Renewing(Protocol):
    """Something that leases of messages are renewed for."""

    def turn(self, now: float) -> float:
        """Renews what is to be renewed now; when to come again."""


class Telling(Protocol):
    """Something that tells the log now and then, and not of each event."""

    def tell(self, *, is_over: bool = True) -> None:
        """The rest. Unless ``is_over``: if that is due."""


class HoldsReceipts(Protocol):
    """Something that has received messages, and settles them."""

    def timeline_lost(self) -> None:
        """The broker's log is of another timeline: what was received is not this client's any more."""


class Conversation:
    """See the module. What has a way to read and write derives from it.

    ``timeout_s`` bounds each request, ``keepalive_s`` how long a silent connection is trusted. ``token`` is asked at
    each connection; ``peer``: see ``Client``.
    """

    def __init__(
        self,
        *,
        nodes: Nodes,
        name: str,
        timeout_s: float,
        keepalive_s: float,
        max_pending_bytes: int,
        backoff: Backoff,
        waits: Waits,
        token: Callable[[], str] = str,
        peer: str = "",
    ) -> None:
        self.nodes = nodes
        self.timeout_s = timeout_s
        self.subscriptions: dict[Receiver, None] = {}
        self.holdings: dict[Renewing, None] = {}
        """What subscriptions hold whose leases are renewed."""
        self.created_topics: list[str] = []
        """Topics that sends of this client made, up to 100."""
        self.link: Link | None = None
        self._name = name
        self._keepalive_s = keepalive_s
        self._backoff = backoff
        self.waits = waits
        self._token = token
        self._peer = peer
        self._budget = Budget(max_pending_bytes, waits)
        self._outbox: deque[Call] = deque()
        self._live: dict[Call, None] = {}
        self._leaving: set[Call] = set()
        """Acks, and requests that give something back to the broker: ``drain`` waits for their answers, also while
        there is no connection."""
        self.untold: dict[Telling, None] = {}
        """What the log is to be told of later."""
        self._flights: dict[FlightKey, SendFlight] = {}
        self._wake = self.waits.event()
        self._drained = self.waits.event()
        self._connected = self.waits.event()
        self._limits: HelloOk | None = None
        self.timeline = ""
        """Of the broker's log, as it was told last."""
        self.receivers: WeakKeyDictionary[HoldsReceipts, None] = WeakKeyDictionary()
        """What hears of another timeline."""
        self._reasons: dict[Address, BaseException | None] = {}
        """Why there is no connection, for each node that was tried since there was one."""
        self._refused_for_good: TickwheelError | None = None
        self._may_change = False
        """Both of this round: what a node has said that will not talk to this client, and whether another may yet."""
        self._terminal: TickwheelError | None = None
        self._identities = Identities()
        self._renewal_due = self.waits.event()
        self._renews_at = math.inf
        self._turned_at = math.inf
        self.watch_s = min(1.0, timeout_s / 4)
        _forks.tell(self)

    # What the client asks ------------------------------------------------------------------------

    @property
    def limits(self) -> HelloOk:
        """What the broker told of itself last.

        Raises ClientClosed or NotConnected before it told anything.
        """
        if self._terminal is not None:
            raise self._terminal.copy()
        if self._limits is None:
            raise NotConnected
        return self._limits

    @property
    def has_probes(self) -> bool:
        """Whether the broker may be told that PROBE is answered."""
        return self._limits is not None and self._limits.probes

    @property
    def has_holds(self) -> bool:
        """Whether the broker renews leases and changes credits."""
        return self._limits is not None and self._limits.holds

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now."""
        return self.link is not None and self.link.ready

    @property
    def is_closed(self) -> bool:
        """Whether it has ended for good."""
        return self._terminal is not None

    def knows_topic(self, topic: str) -> bool:
        """Whether the topic was used on this connection (so its name is known to be good)."""
        return self.link is not None and self.link.knows_topic(topic)

    def deadline(self) -> float:
        """When a request that is made now has waited long enough."""
        return self.waits.now() + self.timeout_s

    async def send_single(
        self,
        topic: str,
        body: bytes,
        *,
        key: bytes,
        headers: bytes,
        order_key: bytes,
        time_ms: int,
        priority: int | None,
        relative: bool,
        auto_key: bool,
    ) -> tuple[SendFlight, int]:
        """Puts a message on the flight of this loop turn and waits until it is answered: ``(flight,
        index)``."""
        size_bytes = len(body) + len(key) + len(headers) + len(order_key)
        if not self._budget.try_take(size_bytes):
            await self._budget.take_within(self.timeout_s, size_bytes)
        flight_key = FlightKey(topic, relative, bool(key), bool(order_key), priority is not None)
        flight = self.flight(flight_key, size_bytes)
        index = flight.add(body, key, headers, order_key, time_ms, priority or 0, auto_key=auto_key)
        flight.cost_bytes += size_bytes
        self.depart()
        try:
            await flight.done.wait()
        except BaseException:
            self.leave(flight, index)
            raise
        return flight, index

    def flight(self, flight_key: FlightKey, size_bytes: int) -> SendFlight:
        """That of this loop turn, or a new one when it has no room; it waits for ``depart``. Raises ClientClosed."""
        flight = self._flights.get(flight_key)
        if flight is None or not flight.has_room(size_bytes):
            flight = SendFlight(flight_key, self.deadline())
            self._enter(flight)
            self._flights[flight_key] = flight
        return flight

    def charge(self, flight: SendFlight, size_bytes: int) -> None:
        """What was put on a flight counts, until that ends."""
        flight.cost_bytes += size_bytes
        self._budget.taken += size_bytes

    def leave(self, flight: SendFlight, *indexes: int) -> None:
        """These messages are not waited for any more."""
        flight.give_up(*indexes)
        self._settle_if_abandoned(flight)

    async def request(self, request: Request, extra_s: float = 0.0) -> AnswerBody:
        """Makes a request and waits, ``extra_s`` longer than usual, for its answer. Raises its error."""
        call = RequestCall(request, self.deadline() + extra_s)
        await self.enqueue(call)
        await self.wait(call)
        assert call.body is not None
        return call.body

    async def enqueue(self, call: Call) -> None:
        """Submits a call when the budget allows it."""
        if not self._budget.try_take(call.cost_bytes):
            await self._budget.take_within(self.timeout_s, call.cost_bytes)
        self.submit(call, paid=True)

    async def wait(self, call: Call) -> None:
        """Waits for the end of a call. Raises its error. When cancelled, the call is not written any more."""
        try:
            await call.done.wait()
        except BaseException:
            self.abandon(call)
            raise
        if call.error is not None:
            raise call.error.copy()

    def abandon(self, call: Call) -> None:
        """The caller does not wait for this call any more."""
        call.abandoned = True
        self._settle_if_abandoned(call)

    def depart(self) -> None:
        """What was put on flights is complete, as far as it goes: it may be written."""
        self._wake.set()

    def submit(self, call: Call, *, paid: bool = False) -> None:
        """Puts a call into the outbox at once. Raises ClientClosed."""
        self._enter(call, paid=paid)
        self._wake.set()

    def _enter(self, call: Call, *, paid: bool = False) -> None:
        if not paid:
            self._budget.taken += call.cost_bytes
        if self._terminal is not None:
            self._budget.give(call.cost_bytes)
            raise self._terminal.copy()
        call.done = self.waits.event()
        self._live[call] = None
        self._outbox.append(call)

    def submit_bound(self, request: Request) -> RequestCall:
        """Makes a request that means nothing on another connection than this one; it ends with it."""
        call = RequestCall(request, self.deadline())
        call.bound = True
        self.submit(call)
        return call

    def end_fetch(self, call: Call) -> None:
        """A FETCH is not waited for any more: what it is answered nevertheless it gives back."""
        call.abandoned = True
        pending = {} if self.link is None or self._terminal is not None else self.link.pending
        for correlation in [number for number, one in pending.items() if one is call]:
            self.see_off(call)
            self.see_off(self.submit_bound(EndFetch(correlation=correlation)))

    def see_off(self, call: Call) -> None:
        """``drain`` waits for the end of this call."""
        if call in self._live:
            self._leaving.add(call)

    def requeue(self, calls: Sequence[Call]) -> None:
        """Puts calls that waited for something back into the outbox: before those that came after them."""
        self._outbox.extendleft(call for call in reversed(calls) if call in self._live)
        self._wake.set()

    def attach(self, number: int, subscription: Receiver) -> None:
        """A subscription stands: its deliveries carry this number from now on."""
        assert self.link is not None
        self.link.subscriptions[number] = subscription
        self.subscriptions[subscription] = None

    def detach(self, number: int) -> None:
        """A subscription is over: what still comes for it is dropped."""
        if self.link is not None:
            self.link.subscriptions.pop(number, None)

    # The life of a call --------------------------------------------------------------------------

    def _settle(self, call: Call) -> None:
        if call not in self._live:
            return
        del self._live[call]
        self._identities.end(call.number)
        if isinstance(call, SendFlight) and self._flights.get(call.key) is call:
            del self._flights[call.key]
        self._budget.give(call.cost_bytes)
        if call in self._leaving:
            self._leaving.remove(call)
            self._drained.set()
        call.ended()
        call.done.set()

    def _settle_if_abandoned(self, call: Call) -> None:
        if call.abandoned and not call.written and call in self._live:
            self._settle(call)

    def fail(self, call: Call, error: TickwheelError) -> None:
        """Ends a call with an error."""
        if call not in self._live:
            return
        call.error = error
        self._settle(call)
        call.failed(error)

    # Its end ---------------------------------------------------------------------

    def introduction(self) -> tuple[str, str, str]:
        """Of each connection: a name for the broker's log, the token, and for whom a proxy speaks. Raises
        ConfigError."""
        return self._name, self._token(), self._peer

    def check_connected(self) -> None:
        """Raises NotConnected with the last reason, if there never was a connection; or why there can be none."""
        if self._terminal is not None:
            raise self._terminal.copy()
        if self._limits is None:
            raise NotConnected(
                f"There is no connection to {shown_urls(self.nodes.addresses)}{self._reason()}."
            )

    def begin_round(self) -> None:
        """All nodes may be tried."""
        self._refused_for_good, self._may_change = None, False
        self.nodes.begin_round(self.waits.now())

    def end_round(self) -> None:
        """All were tried, and none has served."""
        if self._refused_for_good is not None and not self._may_change:
            self.close(self._refused_for_good)

    def _reason(self) -> str:
        reasons = {address: error for address, error in self._reasons.items() if error is not None}
        if not reasons:
            return " in time"
        if len(reasons) == len(self.nodes.addresses) == 1:
            return f": {next(iter(reasons.values()))}"
        return ": " + "; ".join(f"{address}: {error}" for address, error in reasons.items())

    async def drain(self) -> None:
        """Waits until acks are answered, and what was begun and is not wanted any more is given back: over the next
        connection, if need be. Waits for other requests to be written, as long as there is a connection."""
        raise NotImplementedError

    def close(self, error: TickwheelError | None = None) -> None:
        """Fails everything that is open; nothing can be submitted any more."""
        if self._terminal is not None:
            return
        self._terminal = error or ClientClosed()
        for call in list(self._live):
            self.fail(call, _uncertain("The client was closed.") if call.is_uncertain else self._terminal)
        for subscription in list(self.subscriptions):
            subscription.fail(self._terminal)
        self._tell_rest(is_over=True)
        self._outbox.clear()
        self._connected.set()
        self._drained.set()

    def _tell_rest(self, *, is_over: bool) -> None:
        for telling in list(self.untold):
            telling.tell(is_over=is_over)

    @property
    def is_forked(self) -> bool:
        """Whether it is the parent's of this process."""
        return isinstance(self._terminal, ClientForked)

    def forked(self, error: ClientForked) -> None:
        """See ``_forks``. Tasks that wait do so in the parent; what is asked here fails at once."""
        link, self.link = self.link, None
        _forks.keep(link, self._budget, self._flights)
        self._terminal = error
        for call in self._live:
            call.forked()
        self.untold = {}
        self._budget, self._flights = Budget(self._budget.limit, self.waits), {}
        self._outbox, self._live, self._leaving = deque(), {}, set()
        subscriptions, self.subscriptions = self.subscriptions, {}
        for subscription in subscriptions:
            subscription.forked(error)
        if link is not None:
            for subscription in link.subscriptions.values():
                subscription.forked(error)
            link.let_go()

    # One connection ------------------------------------------------------------------------------

    def _not_served(self, error: BaseException | None, *, is_silent: bool) -> None:
        """The current node has no connection for us, or the one that there was ended."""
        nodes, now = self.nodes, self.waits.now()
        self._reasons[nodes.current] = error
        if is_silent:
            nodes.fell_silent(now)
        else:
            nodes.failed()
        if isinstance(error, NotOwner):
            self._backoff.max_s = min(self._backoff.max_s, CLUSTER_BACKOFF_MAX_S)
            nodes.refer(error.url, now)
        if not isinstance(error, TickwheelError) or isinstance(error, NotConnected):
            return
        if error.retryable:
            self._may_change = True
        # Who lost its right does not get it back by trying again.
        elif self._limits is None or isinstance(error, ConnectionDenied):
            self._refused_for_good = self._refused_for_good or error

    def leases_changed(self, due: float) -> None:
        """Something must be renewed at this time (of the loop)."""
        if due < self._renews_at:
            self._renewal_due.set()

    @property
    def arrived_at(self) -> float:
        """When what is being read arrived, at the earliest: if the loop did not turn, it may lie here since then."""
        assert self.link is not None
        now = self.link.heard_at
        return now if now - self._turned_at < 2 * self.watch_s else self._turned_at

    def _take(self, link: Link) -> list[bytes]:
        """The frames of the next write: about WRITE_BYTES of them."""
        frames: list[bytes] = []
        size_bytes = 0
        while self._outbox and size_bytes < WRITE_BYTES and link.ready and not link.draining:
            call = self._outbox.popleft()
            if call not in self._live:
                continue
            frame = self._frame(link, call)
            if frame is not None:
                frames.append(frame)
                size_bytes += len(frame)
        return frames

    def _frame(self, link: Link, call: Call) -> bytes | None:
        payload = call.payload(link)
        if payload is None:
            return None
        assert self._limits is not None
        max_frame_bytes = self._limits.max_frame_bytes
        size = len(payload) + HEADER_BYTES + (IDENTITY_BYTES if call.has_identity else 0)
        if size > max_frame_bytes:
            self.fail(
                call, FrameTooLarge(f"The request has {size:,} bytes; {max_frame_bytes:,} are allowed.")
            )
            return None
        identity = self._identity(call) if self._limits.answers_remembered else None
        correlation, frame = link.machine.request(call.frame_type, payload, identity)
        link.pending[correlation] = call
        call.written = True
        return frame

    def _identity(self, call: Call) -> RequestIdentity | None:
        """The identity of a request that changes something. It keeps its number when it is repeated."""
        if not call.has_identity:
            return None
        assert self._limits is not None
        position = self._limits.log_position
        if not call.number:
            call.number = self._identities.begin()
        if not call.repeated:
            call.since = position
            return self._identities.of(call.number, None)
        # A broker that was set back, to a backup say, may have less of a log than it told.
        call.since = min(call.since, position)
        return self._identities.of(call.number, call.since)

    def _handle(self, link: Link, event: ClientEvent) -> None:
        match event:
            case Delivered(delivery):
                if (subscription := link.subscriptions.get(delivery.subscription)) is not None:
                    subscription.delivered(delivery)
            case Answered():
                self._answered(link, event)
            case Refused():
                self._refused(link, event)
            case Revoked(revoke):
                if (subscription := link.subscriptions.get(revoke.subscription)) is not None:
                    subscription.revoked(revoke.ids, revoke.epochs)
            case LeaseTold(lease):
                if (subscription := link.subscriptions.get(lease.subscription)) is not None:
                    subscription.lease_told(lease.ack_wait_ms)
            case Probed():
                self.submit_bound(Ping())
            case Connected(hello):
                self._established(link, hello)
            case GoingAway(reason):
                logger.info("broker %s goes away: %s", self.nodes.current, reason)
                link.draining = True

    def _answered(self, link: Link, event: Answered) -> None:
        call = link.pending[event.correlation]
        call.answered(event.body)
        self._settle(call)
        del link.pending[event.correlation]

    def _refused(self, link: Link, event: Refused) -> None:
        if not link.ready or event.correlation == 0:
            raise event.error
        call = link.pending.pop(event.correlation)
        if isinstance(event.error, ShuttingDown | NotOwner):
            # Nothing was accepted, so even a message without key can safely go again, to the next connection.
            link.draining = True
            if isinstance(event.error, NotOwner):
                link.break_with(event.error)
            call.written = False
            link.refused[event.correlation] = call
            return
        if isinstance(event.error, UnknownTopic) and isinstance(call, SendCall):
            link.forget_topic(call.topic)
            if link.ask_again(call):
                return
        self.fail(call, event.error)

    def _established(self, link: Link, hello: HelloOk) -> None:
        link.ready, link.tells_differences = True, hello.tells_differences
        self.link = link
        self._limits = hello
        if hello.timeline:
            before, self.timeline = self.timeline, hello.timeline
            if before not in ("", hello.timeline):
                self._lose_timeline()
        link.scope.deadline = math.inf
        self.nodes.serves()
        self._reasons.clear()
        for subscription in self.subscriptions:
            call = subscription.resubscribe_call()
            self.submit(call)
            self._outbox.rotate(1)
        self._connected.set()
        self._wake.set()

    def _lose_timeline(self) -> None:
        """What was received, and what was asked about it, means nothing to the log that answers now: a backup of it was
        restored, it was repaired, or it is another one."""
        logger.warning(
            "%s has another log than before: a backup was restored, the log was repaired, or its directory is another "
            "one. What was received is dropped, and acks of it do not count.",
            self.nodes.current,
        )
        for call in list(self._live):
            if call.refuse_receipts():
                self._settle(call)
            elif call.names_ids:
                why = "The broker's log is not the one any more in which the messages had these ids."
                self.fail(
                    call, _uncertain(why) if call.repeated else NotConnected(f"{why} Nothing was done.")
                )
        for receiver in list(self.receivers):
            receiver.timeline_lost()

    def _lost(self, link: Link) -> None:
        """Sorts the open requests after a connection ended: what may be repeated goes again, in its old
        order."""
        error = link.broken
        self.link = None
        if self.waits.now() - link.opened_at > self._backoff.max_s:
            self._backoff.reset()
        if self._terminal is not None:
            return
        if not link.ready:
            logger.debug("%s does not serve: %s", self.nodes.current, error)
            self._not_served(error, is_silent=link.is_silent)
        elif link.refused_for_good and isinstance(error, ConnectionDenied):
            self.close(error)
            return
        else:
            logger.info("connection to %s lost: %s", self.nodes.current, error)
            if link.is_silent or link.draining or isinstance(error, NotOwner):
                self._not_served(error, is_silent=link.is_silent)
        for subscription in {**self.subscriptions, **dict.fromkeys(link.subscriptions.values())}:
            subscription.connection_lost()
        self._drained.set()
        open_calls = link.pending | link.refused
        written = [open_calls[correlation] for correlation in sorted(open_calls)]
        interrupted = (*written, *link.take_parked(), *self._outbox)
        self._outbox.clear()
        for call in interrupted:
            if call.bound or call.abandoned:
                self.fail(call, NotConnected("The connection broke."))
            elif call.written and not call.repeatable:
                self.fail(call, call.lost())
            else:
                call.repeated = call.repeated or call.written
                call.written = False
                self._outbox.append(call)

    # Time ----------------------------------------------------------------------------------------

    def check_time(self) -> None:
        """Ends requests that waited too long, and connections that fell silent. To be called every ``watch_s``."""
        now = self.waits.now()
        for call in [call for call in self._live if call.deadline <= now]:
            call.abandoned = True
            what = f"The broker did not answer within {self.timeout_s:g} s."
            self.fail(call, _uncertain(what) if call.is_uncertain else RequestTimeout(what))
        self._tell_rest(is_over=False)
        # The client may have been closed while we slept; what happens to the user's block is not ours to disturb.
        if self.link is not None and self._terminal is None:
            self._check_alive(self.link, now)

    def _check_alive(self, link: Link, now: float) -> None:
        silent_s = now - link.heard_at
        if silent_s > self._keepalive_s:
            link.is_silent = True
            link.break_with(NotConnected(f"The broker was silent for {silent_s:.0f} s."))
            link.scope.cancel()
        elif silent_s > self._keepalive_s / 2 and now - link.pinged_at > self._keepalive_s / 2:
            link.pinged_at = now
            self.submit_bound(Ping())


def _uncertain(why: str) -> RequestUncertain:
    return RequestUncertain(f"{why} It is not known whether the request was carried out.")
