"""A connection of Kombu: one blocking client, the feeds of its consumers, and what came for them.

Reading and handing out are two things. Whatever reads the socket (a request that waits for its answer, the hub, a
program that waits for messages) puts what came into a queue here; it is handed out where Kombu asks for events, or in a
callback of the hub for a descriptor. Never in a tick of the hub: what is delivered there has its acks asleep until the
hub polls next.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from operator import itemgetter
from typing import Any, Final, Protocol, TypeVar

from tickwheel import sync
from tickwheel.blocking.session import BlockingSession
from tickwheel.celery.transport.attendant import Attendant
from tickwheel.celery.transport.exits import EXIT
from tickwheel.celery.transport.feed import Feed
from tickwheel.celery.transport.hub import Watch
from tickwheel.celery.transport.late import LATE, Receipt
from tickwheel.celery.transport.leases import Leases
from tickwheel.celery.transport.options import Options
from tickwheel.celery.transport.own_queues import OwnQueues
from tickwheel.celery.transport.returns import Returns
from tickwheel.celery.transport.sending import Sender, was_sent_recently
from tickwheel.celery.transport.topology import Topology
from tickwheel.client.checks import escaped
from tickwheel.client.consumer.acks import FLIGHT_ACKS_MAX, AckFlight, AckQueue
from tickwheel.client.consumer.fetching import FetchCall, FetchOptions
from tickwheel.client.consumer.message import BaseBatch, BaseMessage
from tickwheel.protocol.errors import ClientClosed, NotConnected, TickwheelError
from tickwheel.protocol.limits import MAX_FETCH_BYTES
from tickwheel.protocol.messages import Delivery, FetchOk

logger = logging.getLogger("tickwheel.celery")

T = TypeVar("T")

_TICK_S: Final = 0.1
"""What was confirmed just now is ready within so long."""
_ACKED_MAX: Final = 100_000
_FLIGHTS_MAX: Final = 1_000
"""With so many flights of acks those that were answered are forgotten."""
_ERROR_CHARS: Final = 1_000

_SLICE_S: Final = 1.0
"""So long at most something is waited for in one piece: then leases and the connection are looked at."""


class Batch(BaseBatch[BaseMessage]):
    """Messages that came together."""

    message_class = BaseMessage


class Consumer(Protocol):
    """What takes the messages of a feed."""

    is_urgent: bool
    """Whether its messages go before those of others that are here."""

    def take(self, feed: Feed, message: BaseMessage) -> bool:
        """Hands a message to the program. False: it was not for it, and is settled."""


def _counted(flight: AckFlight, message_id: int) -> bool:
    """Whether the broker has taken the ack of this message."""
    is_refused = any(refused == message_id for refused, _ in flight.refused.values())
    return flight.done.is_set() and flight.error is None and not is_refused


class Connection:
    """What ``kombu.Connection.connection`` is. It ends with `close`."""

    def __init__(self, kombu_connection: Any, url: str, options: Options) -> None:
        """Opens it. Raises NotConnected, ConfigError, ConnectionDenied and other errors of a client that connects."""
        self.client = kombu_connection
        """The ``kombu.Connection``: Kombu looks for it here."""
        self.options = options
        self.topology = Topology()
        self.channels: list[Any] = []
        self.readers: dict[str, tuple[bool, float]] = {}
        """Whether a topic has groups, and until when (of the client's clock) that is believed."""
        timeout_s = kombu_connection.connect_timeout or 5.0
        self.broker = sync.Client(url, connect_timeout=float(timeout_s), **options.client).try_to_open()
        self._session: BlockingSession = self.broker.session
        self.own_queues = OwnQueues(self.broker.url, self._session, self.topology)
        self._ending = self.broker.close_with(self)
        self.leases = Leases(self._session, options.visibility_timeout)
        self._returns = Returns(self._session)
        self.sender = Sender(self.broker, options)
        self._acks: dict[tuple[str, str], AckQueue] = {}
        self._ready: OrderedDict[Feed, deque[tuple[int, BaseMessage]]] = OrderedDict()
        """What came for each feed, with its number in the order of all. The first feed has its turn next, and then goes
        to the end."""
        self._number = count()
        self._acked_meanwhile: dict[tuple[AckQueue, int], AckFlight] = {}
        """Acked while there was no connection: where that lasts longer than a lease, these are delivered again before
        their acks arrive."""
        self._flights: dict[AckFlight, AckQueue] = {}
        """Acks that may be unanswered."""
        self._arrived = self._session.waits.event()
        self._consumers: dict[Feed, Consumer] = {}
        self._lost_at: float | None = None
        self._failure: TickwheelError | None = None
        self._watch: Watch | None = None
        self._attendant: Attendant | None = None
        self._is_closed = False
        self._session.receivers[self] = None
        EXIT.opened(self)
        LATE.opened(self)

    # -- its state --

    @property
    def url(self) -> str:
        """Of its broker."""
        return self.broker.url

    @property
    def is_usable(self) -> bool:
        """Whether it was neither closed nor inherited by a fork, nor lost for longer than is allowed."""
        if self._is_closed or self._session.is_closed:
            return False
        return self._failure is None and not self._is_lost()

    def _is_lost(self) -> bool:
        if self._session.is_connected:
            self._lost_at = None
            return False
        now = self._session.waits.now()
        if self._lost_at is None:
            self._lost_at = now
        return now - self._lost_at > self.options.reconnect_timeout

    def check(self) -> None:
        """Raises NotConnected, ClientClosed, or why a consumer cannot go on."""
        if self._failure is not None:
            raise self._failure.copy()
        if self._is_closed:
            raise ClientClosed("The connection was closed.")
        if self._is_lost():
            raise NotConnected(
                f"The connection to {self.broker.url} has been lost for {self.options.reconnect_timeout:g} s."
            )

    @property
    def ready(self) -> int:
        """How many messages have come and were not handed out."""
        return sum(map(len, self._ready.values()))

    # -- carrying --

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the client, waited for. Raises TickwheelError."""
        try:
            return self._session.run(work)
        finally:
            self._follow()

    def change(self, work: Callable[[], T]) -> T:
        """Does something that waits for nothing, and writes what it leaves to be written. Raises ClientClosed."""
        try:
            return self._session.change(work)
        finally:
            self._follow()

    def turn(self) -> None:
        """What can be done now without waiting. Raises NotConnected when the connection is lost for good."""
        self._session.turn()
        self._renew()
        self._follow()
        self.check()

    def reconnect(self) -> None:
        """Goes on with a lost connection, for a moment."""

        async def connected() -> None:
            with self._session.waits.within(0.1):
                while not self._session.is_connected:
                    await self._session.waits.event().wait()

        if not self._session.is_connected and not self._session.is_closed:
            self.run(connected())

    def fileno(self) -> int:
        """Of the socket; -1: there is none."""
        return self._session.fileno()

    @property
    def watch_s(self) -> float:
        """How often to `turn` at least."""
        return self._session.watch_s

    def _renew(self) -> None:
        now = self._session.waits.now()
        if now >= self.leases.due_at and self._session.is_connected:
            self.change(lambda: self.leases.turn(now))

    def _follow(self) -> None:
        if self._watch is not None:
            self._watch.follow()

    # -- Kombu's event loop --

    def attach(self, loop: Any) -> None:
        """From now on the hub's loop delivers."""
        self.detach()
        self._watch = Watch(self, loop)
        self._watch.follow()
        if self.ready:
            self._watch.ring()

    def detach(self, loop: Any = None) -> None:
        """The end of that."""
        watch = self._watch
        if watch is not None and (loop is None or watch.loop is loop):
            self._watch = None
            watch.close()

    def attend(self) -> None:
        """From now on no loop turns, and a thread renews the leases, until this is closed."""
        self.detach()
        self._attendant = Attendant(self)

    def _dismiss(self) -> None:
        attendant, self._attendant = self._attendant, None
        if attendant is not None:
            attendant.leave()

    # -- what comes: see `feed.Sink`; with the lock --

    def came(self, feed: Feed, delivery: Delivery) -> None:
        """See ``Sink``."""
        batch = Batch(delivery, feed.topic, feed.acks)
        are_new = self.leases.add(feed.acks, delivery.ids, delivery.epochs)
        ready = self._ready.setdefault(feed, deque())
        for message, is_new in zip(batch, are_new, strict=True):
            flight = self._acked_meanwhile.pop((feed.acks, message.id), None)
            # One that counted is done: that it comes again is somebody's wish.
            if flight is not None and not _counted(flight, message.id):
                self._ack(feed.acks, message.id)
            elif is_new:
                ready.append((next(self._number), message))
        self._arrived.set()
        if self._watch is not None:
            self._watch.ring()

    def revoked(self, feed: Feed, ids: Sequence[int], epochs: Sequence[int]) -> None:
        """See ``Sink``."""
        for message_id in ids:
            self.leases.take(feed.acks, message_id)

    def timeline_lost(self) -> None:
        """The broker's log is another one: what waits here is dropped, and acks of what tasks work on say nothing."""
        if self.leases.count:
            logger.warning(
                "%d messages are no longer this worker's: the broker's log is another one", self.leases.count
            )
        self.leases.forget_all()
        self._acked_meanwhile.clear()
        for messages in self._ready.values():
            messages.clear()
        for acks in self._acks.values():
            acks.start_anew()
        for channel in self.channels:
            channel.timeline_lost()

    def leased_for(self, lease_s: float) -> None:
        """See ``Sink``."""
        self.leases.learn(lease_s)

    def ended(self, feed: Feed, error: TickwheelError) -> None:
        """See ``Sink``."""
        if feed in self._consumers:
            self._failure = error
            self._arrived.set()

    # -- handing out --

    def deliver(self) -> None:
        """Hands out all that came: commands first, so that a task does not overtake the command that revokes it, and
        then in the order in which it came. Raises what a callback of the program raises."""
        while True:
            waiting = [
                (not self._is_urgent(feed), messages[0][0], feed)
                for feed, messages in self._ready.items()
                if messages
            ]
            if not waiting:
                return
            self._deliver_next(min(waiting, key=itemgetter(0, 1))[2])

    def _is_urgent(self, feed: Feed) -> bool:
        consumer = self._consumers.get(feed)
        return consumer is not None and consumer.is_urgent

    def _deliver_of_one(self) -> bool:
        """Hands out what came for the feed whose turn it is; whether there was something."""
        feed = next((one for one, messages in self._ready.items() if messages), None)
        if feed is None:
            return False
        self._ready.move_to_end(feed)
        has_delivered = False
        for _ in range(len(self._ready[feed])):
            has_delivered = self._deliver_next(feed) or has_delivered
        return has_delivered

    def _deliver_next(self, feed: Feed) -> bool:
        """Hands out the next message of a feed; whether it did."""
        try:
            _, message = self._ready[feed].popleft()
        except (KeyError, IndexError):  # a callback has asked for events, too, or cancelled the consumer
            return False
        if not self.still_has(feed.acks, message.id, message.epoch):
            return False  # lost while it waited here
        consumer = self._consumers.get(feed)
        if consumer is None:
            self.give_back(feed.acks, [message.id], seen=False)
            return False
        return consumer.take(feed, message)

    def drain_events(self, timeout: float | None = None) -> None:
        """Hands out what came for one consumer, or what comes within ``timeout`` seconds; None: without a limit. Raises
        ``socket.timeout``, and as `turn`."""
        waits = self._session.waits
        until = None if timeout is None else waits.now() + timeout
        self.turn()
        while not self._deliver_of_one():
            if self.ready:
                continue
            left_s = _SLICE_S if until is None else min(_SLICE_S, until - waits.now())
            if left_s <= 0:
                raise TimeoutError("no message came in time")
            self.run(self._arrival(min(left_s, self.leases.period_s)))
            self._renew()
            self.check()

    async def _arrival(self, timeout_s: float) -> None:
        waits = self._session.waits
        with waits.within(timeout_s):
            while not self.ready and self._failure is None:
                if self._arrived.is_set():
                    self._arrived = waits.event()
                await self._arrived.wait()

    # -- consumers --

    def acks_of(self, topic: str, group: str) -> AckQueue:
        """Where acks of a group go; the same one for all that this connection has of it."""
        found = self._acks.get((topic, group))
        if found is None:
            found = self._acks[topic, group] = AckQueue(self._session, group, topic)
        return found

    def open_feed(self, consumer: Consumer, topic: str, group: str, credit: int, **options: Any) -> Feed:
        """A subscription whose messages go to a consumer. Raises TickwheelError."""
        feed = Feed(
            conversation=self._session,
            sink=self,
            acks=self.acks_of(topic, group),
            topic=topic,
            credit=credit,
            **options,
        )
        self._consumers[feed] = consumer
        self._ready[feed] = deque()
        self._ready.move_to_end(feed, last=False)
        try:
            self.run(feed.open())
        except BaseException:
            del self._consumers[feed], self._ready[feed]
            raise
        return feed

    def stop_feed(self, feed: Feed) -> None:
        """Its consumer wants no more. What it was not given goes back; what it has stays its own."""
        with _lost_is_fine():
            self.run(feed.stop())
        self._consumers.pop(feed, None)
        unseen = [message.id for _, message in self._ready.pop(feed, ())]
        self.give_back(feed.acks, unseen, seen=False)

    def leave_feed(self, feed: Feed) -> None:
        """Ends a subscription that was stopped."""
        with _lost_is_fine():
            self.run(feed.leave())

    def take_waiting(self, topic: str, group: str) -> BaseMessage | None:
        """A message that came for a consumer of this connection, and that no program has seen."""
        acks = self._acks.get((topic, group))
        for feed, waiting in self._ready.items():
            while feed.acks is acks and waiting:
                _, message = waiting.popleft()
                if self.still_has(acks, message.id, message.epoch):
                    return message
        return None

    def settle(self, topic: str) -> None:
        """Waits until what this process has sent to a topic just now is ready."""
        self.sender.settle()
        if was_sent_recently(self.broker.url, topic):
            self.run(self._pause(_TICK_S / 4))

    async def _pause(self, for_s: float) -> None:
        with self._session.waits.within(for_s):
            await self._session.waits.event().wait()

    def drop_waiting(self, topic: str, group: str) -> int:
        """Acks what came for consumers of this connection and no program has seen; how many."""
        dropped = 0
        while (message := self.take_waiting(topic, group)) is not None:
            self.ack(message.acks, message.id)
            dropped += 1
        return dropped

    def fetch(self, topic: str, group: str) -> BaseMessage | None:
        """One message, if there is one. Raises TickwheelError."""
        wait = timedelta(seconds=_TICK_S) if was_sent_recently(self.broker.url, topic) else None
        options = FetchOptions(1, wait, None, "earliest", MAX_FETCH_BYTES)
        call = FetchCall(self._session, options.request(topic, group))

        async def fetched() -> FetchOk:
            await self._session.enqueue(call)
            try:
                await self._session.wait(call)
            except BaseException:
                call.give_up()
                raise
            assert isinstance(call.body, FetchOk)
            return call.body

        answer = self.run(fetched())
        if not answer.delivery.count:
            return None
        acks = self.acks_of(topic, group)
        acks.resume(answer.group_id)
        self.change(lambda: self.leases.add(acks, answer.delivery.ids, answer.delivery.epochs))
        return next(iter(Batch(answer.delivery, topic, acks)))

    def still_has(self, acks: AckQueue, message_id: int, came_with: int) -> bool:
        """Whether a message that came with this epoch is leased to this connection. Asks the broker if its lease may
        have ended. Without a connection it is believed to last: a broker that is started again keeps leases."""
        if not self.leases.holds(acks, message_id, came_with):
            return False
        if self.leases.may_have_ended(acks, message_id):
            with suppress(NotConnected, ClientClosed):
                if self._session.is_connected:
                    self.run(self._renewal(acks))
                self.change(lambda: self.leases.let_go(acks, message_id))
        return self.leases.holds(acks, message_id, came_with)

    async def _renewal(self, acks: AckQueue) -> None:
        for call in self.leases.renew(acks):
            await call.done.wait()

    # -- settling: nothing here waits --

    def ack(self, acks: AckQueue, message_id: int) -> None:
        """Acks a message. Raises ClientClosed."""
        if self.leases.may_have_ended(acks, message_id) and self._session.is_connected:
            self._session.turn()  # it was perhaps leased anew
        self.change(lambda: self._ack(acks, message_id))

    def _ack(self, acks: AckQueue, message_id: int) -> None:
        epoch = self.leases.take(acks, message_id)
        if epoch is None:
            return
        flight = acks.add(message_id, epoch)
        if len(flight.ids) >= FLIGHT_ACKS_MAX:
            flight.open = False
        self._follow_flight(flight, acks)
        if not self._session.is_connected:
            self._remember(acks, message_id, flight)

    def receipt_of(self, acks: AckQueue, message_id: int) -> Receipt | None:
        """That of a message which is held, for an ack over another connection; None: it is not held."""
        epoch, group_id = self.leases.take(acks, message_id), acks.last_group_id
        if epoch is None or group_id is None:
            return None
        return Receipt(acks.topic, acks.group_name, group_id, message_id, epoch, self._session.timeline)

    def ack_late(self, receipt: Receipt) -> None:
        """See `late.Heir`."""
        acks = AckQueue(self._session, receipt.group, receipt.topic, receipt.timeline)

        def acked() -> None:
            acks.resume(receipt.group_id)
            self._follow_flight(acks.add(receipt.message_id, receipt.epoch), acks)

        self.change(acked)

    def _follow_flight(self, flight: AckFlight, acks: AckQueue) -> None:
        if len(self._flights) >= _FLIGHTS_MAX:
            self._flights = self._unanswered()
        self._flights[flight] = acks

    def _unanswered(self) -> dict[AckFlight, AckQueue]:
        return {flight: acks for flight, acks in self._flights.items() if not flight.done.is_set()}

    def _remember(self, acks: AckQueue, message_id: int, flight: AckFlight) -> None:
        held = self._acked_meanwhile
        if len(held) >= _ACKED_MAX:  # those of earlier times without a connection have counted
            held = {key: one for key, one in held.items() if not _counted(one, key[1])}
            self._acked_meanwhile = held
        if len(held) < _ACKED_MAX:
            held[acks, message_id] = flight

    def give_up(self, acks: AckQueue, message_id: int, error: str = "") -> None:
        """Makes a message a dead letter, because of ``error``. Raises ClientClosed."""

        def gave_up() -> None:
            epoch = self.leases.take(acks, message_id)
            if epoch is not None:
                why = escaped(error[:_ERROR_CHARS])
                self._returns.give_back(acks, [message_id], [epoch], seen=True, give_up=True, error=why)

        self.change(gave_up)

    def give_back(self, acks: AckQueue, ids: Sequence[int], *, seen: bool, delay_ms: int = 0) -> None:
        """Gives messages back, to be delivered again at once, or after ``delay_ms``; what was not ``seen``, or is
        delayed, was no attempt. Without a connection the next one carries it; what comes too late is logged."""

        def gave_back() -> None:
            held = [(one, epoch) for one in ids if (epoch := self.leases.take(acks, one)) is not None]
            receipts = [one for one, _ in held], [epoch for _, epoch in held]
            self._returns.give_back(acks, *receipts, seen=seen, delay_ms=delay_ms)

        if ids and not self._session.is_closed:
            self.change(gave_back)

    # -- the end --

    def close(self) -> None:
        """Closes its channels and itself. What was not acked goes back. Raises what a pipelined message raised."""
        if self._is_closed:
            return
        self._dismiss()
        try:
            for channel in list(self.channels):
                channel.close()
        finally:
            try:
                if not self._session.is_forked:
                    self.sender.confirm()  # also while there is no connection: the next connection sends them again
            finally:
                self._is_closed = True
                self.detach()
                self.leases.forget_all()
                self._ending.detach()
                EXIT.closed(self)
                LATE.closed(self)
                self._close_broker()

    def offers(self, queue: str) -> bool:
        """See `OwnQueues`."""
        try:
            return self.own_queues.offers(queue)
        finally:
            self._follow()

    # -- the end of the process: see `exits.Owner` --

    @property
    def _is_here(self) -> bool:
        """Whether it is this process's, and there is a connection."""
        return not self._is_closed and not self._session.is_closed and self._session.is_connected

    def confirm(self, within_s: float) -> None:
        """See ``Owner``."""
        if not self._is_closed and not self._session.is_forked:
            self.sender.confirm(within_s)

    def own_topics(self) -> set[str]:
        """See ``Owner``."""
        if not self._is_here:
            return set()
        return self.own_queues.topics()

    def leave_topics(self, topics: Iterable[str], within_s: float) -> None:
        """See ``Owner``."""
        if self._is_here:
            for feed in [one for one in self._ready if one.topic in topics]:
                self._consumers.pop(feed, None)
                self.run(self._bounded(feed.leave(), within_s))

    def delete_topics(self, topics: Iterable[str], within_s: float) -> None:
        """See ``Owner``."""
        self.own_queues.delete_topics(topics, within_s)

    async def _bounded(self, work: Coroutine[Any, Any, Any], within_s: float) -> None:
        with self._session.waits.within(within_s):
            await work

    def end_at_once(self) -> None:
        """As if this process had died: nothing is said to the broker."""
        self._dismiss()
        self._is_closed = True
        EXIT.closed(self)
        self.detach()
        self._ending()

    def forget(self) -> None:
        """Kombu drops it: in a child of the process whose connection it is, or after an error. After an error, what was
        sent is confirmed, or it is logged."""
        try:
            self.confirm(self.options.reconnect_timeout)
        except TickwheelError as error:
            logger.error("pipelined messages may be lost with their connection: %s", error)
        self._is_closed = True
        self._attendant = None  # a thread of the parent
        if self._watch is not None:
            self._watch.forget()
            self._watch = None
        EXIT.closed(self)
        self.channels.clear()
        self._ending.detach()
        self._close_broker()

    def _close_broker(self) -> None:
        """Waits for the answers to acks and to what was given back, as long as a client that is closed waits. Acks that
        have none by then go over another connection."""
        unanswered = self._unanswered()
        try:
            self.broker.close()
        finally:
            if not self._session.is_forked:
                self._returns.tell_rest()
                self._leave_acks(unanswered)

    def _leave_acks(self, flights: dict[AckFlight, AckQueue]) -> None:
        timeline = self._session.timeline
        left = [
            Receipt(acks.topic, acks.group_name, acks.last_group_id, *receipt, timeline)
            for flight, acks in flights.items()
            if flight.error is not None and acks.last_group_id is not None
            for receipt in zip(flight.ids, flight.epochs, strict=True)
        ]
        if left:
            logger.info("%d acks are left to the next connection", len(left))
            LATE.leave(self.url, left)


class _lost_is_fine:
    """What a subscription holds goes back by itself where there is no connection."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return isinstance(error, NotConnected | ClientClosed)
