"""The blocking client: the names of ``tickwheel.Client`` without async.

Any number of threads may use one client. There is no event loop: the thread that calls reads the socket while it waits,
for all others, too. One thread more there is only while a subscription's leases are renewed. A client that was not
closed does not keep the program from ending, and is closed then. After a fork a client is the parent's: make another
one::

    with tickwheel.sync.Client("tickwheel://127.0.0.1:7411") as client:
        client.send("reminders", b"tea is ready", delay=timedelta(minutes=4))
        with client.subscribe("reminders") as sub:
            for message in sub:
                message.ack()
"""

from __future__ import annotations

import atexit
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from tickwheel.blocking.dial import Opening
from tickwheel.blocking.session import BlockingSession
from tickwheel.client import client as _client
from tickwheel.client.admin.prepared import CHECKS_GROUP, decided
from tickwheel.client.admin.transactions import Transaction as AsyncTransaction
from tickwheel.client.admin.transactions import TransactionResult
from tickwheel.client.checks import flag, known
from tickwheel.client.columns import Body, Headers, check_name
from tickwheel.client.consumer.acks import FLIGHT_ACKS_MAX, AckFlight, AckQueue
from tickwheel.client.consumer.fetching import FetchOptions
from tickwheel.client.consumer.giving_back import give_back
from tickwheel.client.consumer.holding import DEFAULT_MAX_HOLD_S
from tickwheel.client.consumer.message import BaseBatch, BaseMessage
from tickwheel.client.consumer.subscription import Start, SubscribeOptions
from tickwheel.client.consumer.subscription import Subscription as AsyncSubscription
from tickwheel.client.options import ClientOptions
from tickwheel.client.results import ReceiptResult
from tickwheel.client.security import Security
from tickwheel.client.times import Delay, Moment
from tickwheel.client.url import Address, Urls
from tickwheel.protocol.errors import BadArgument, ClientClosed, ClientForked, TickwheelError
from tickwheel.protocol.limits import MAX_FETCH_BYTES, PREPARED_SUFFIX
from tickwheel.worker.handler import DEFAULT_CONCURRENCY, Handler, Middleware, Options
from tickwheel.worker.retry_policy import RetryPolicy
from tickwheel.worker.signals import may_have_signals, told_by_signals
from tickwheel.worker.threads import ThreadWorker
from tickwheel.worker.worker import DRAIN, asked

T = TypeVar("T")
P = ParamSpec("P")


class Message(BaseMessage):
    """A message that was delivered to this subscriber, and that it has to ack."""

    __slots__ = ()
    _batch: Batch

    def ack(self, *, confirm: bool = False) -> None:
        """Tells the broker that the message is done; it is not delivered to this group again.

        The ack is not waited for. ``confirm`` waits until it is safe on the broker's disk, and raises AckRefused
        (usually StaleReceipt) if it did not count.
        """
        settling = self._batch.settling
        if confirm:
            settling.confirm(lambda acks: acks.add(self.id, self.epoch))
        else:
            settling.add(self.id, self.epoch)

    def nack(
        self,
        delay: Delay | None = None,
        error: str = "",
        *,
        delay_ms: int | None = None,
        give_up: bool = False,
        uncounted: bool = False,
    ) -> ReceiptResult:
        """See ``tickwheel.Message.nack``."""
        how = give_back(delay, error, delay_ms, give_up=give_up, uncounted=uncounted)
        return self._batch.settling.call(AckQueue.nack, (self.id,), (self.epoch,), how)[0]

    def extend(self, duration: Delay) -> ReceiptResult:
        """See ``tickwheel.Message.extend``."""
        return self._batch.settling.call(AckQueue.extend, (self.id,), (self.epoch,), duration)[0]


class Batch(BaseBatch[Message]):
    """Messages that arrived together: the fast way to handle many."""

    message_class = Message

    @property
    def settling(self) -> _Settling:
        """Where what becomes of it is told."""
        carrier: _Settling = self.acks.carrier
        return carrier

    def ack(self, *, confirm: bool = False) -> None:
        """Acks all messages of the batch in one frame; otherwise as ``Message.ack``."""
        if confirm:
            self.settling.confirm(lambda acks: acks.add_batch(self.ack_columns))
        else:
            self.settling.add_batch(self)

    def nack(
        self,
        delay: Delay | None = None,
        error: str = "",
        *,
        delay_ms: int | None = None,
        give_up: bool = False,
        uncounted: bool = False,
    ) -> list[ReceiptResult]:
        """Gives all messages of the batch back."""
        how = give_back(delay, error, delay_ms, give_up=give_up, uncounted=uncounted)
        return self.settling.call(AckQueue.nack, self.ids, self.epochs, how)

    def extend(self, duration: Delay) -> list[ReceiptResult]:
        """Keeps all messages of the batch for ``duration`` from now on."""
        return self.settling.call(AckQueue.extend, self.ids, self.epochs, duration)


class Fetched(Batch):
    """See ``tickwheel.Fetched``."""

    attempts: tuple[int, ...] = ()
    """Which attempt of its message each delivery is."""

    @property
    def group_id(self) -> int:
        """The number of the group, to which the receipts belong."""
        return self.delivery.subscription

    def give_back(self) -> list[ReceiptResult]:
        """See ``tickwheel.Fetched.give_back``."""
        return self.settling.call(AckQueue.give_back, self.ids, self.epochs)


class _Settling:
    """Settles messages, from any thread.

    Acks are not written one by one: while another thread reads, it writes what has come by then, so that a fast
    consumer does not pay for a system call at every message; none ever waits for a later one.
    """

    def __init__(self, session: BlockingSession, acks: AckQueue) -> None:
        self._session = session
        self._acks = acks

    def add(self, message_id: int, epoch: int) -> None:
        """One ack. Raises ClientClosed."""

        def add() -> None:
            flight = self._acks.add(message_id, epoch)
            if len(flight.ids) >= FLIGHT_ACKS_MAX:
                flight.open = False

        self._session.change(add)

    def add_batch(self, batch: Batch) -> None:
        """The acks of a batch; waits if too many are unanswered. Raises ClientClosed."""

        async def add() -> None:
            self._acks.add_batch(batch.ack_columns)
            if self._acks.crowded:
                await self._acks.make_room()

        self._session.run(add())

    def confirm(self, add: Callable[[AckQueue], AckFlight]) -> None:
        """Acks and waits for the broker's answer."""

        async def add_and_confirm() -> None:
            flight = add(self._acks)
            await self._acks.confirm(flight, len(flight.ids) - 1 if flight.ids else None)

        self._session.run(add_and_confirm())

    def call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Does something with the queue of acks, after those that wait here."""
        return self._session.run(function(self._acks, *args))


class Subscription:
    """Use it as ``with client.subscribe("topic") as sub``, then iterate over it, or over ``sub.batches()``."""

    def __init__(
        self,
        session: BlockingSession,
        subscription: AsyncSubscription[Message, Batch],
        left: Callable[[Subscription], None],
    ) -> None:
        """``left`` is called when it was left."""
        self._session = session
        self._subscription = subscription
        subscription.acks.carrier = _Settling(session, subscription.acks)
        self._left = left
        self._is_open = False
        self._messages: deque[Message] = deque()
        self._batches: deque[Batch] = deque()
        """What came just when the call that waited for it was interrupted."""

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._subscription.topic

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._subscription.group

    @property
    def created_topic(self) -> bool:
        """Whether subscribing made the topic."""
        return self._subscription.created_topic

    @property
    def created_group(self) -> bool:
        """Whether subscribing made the group."""
        return self._subscription.created_group

    @property
    def ack_wait_ms(self) -> int:
        """How long the first lease of a message lasts."""
        return self._subscription.ack_wait_ms

    @property
    def ack_wait(self) -> timedelta:
        """``ack_wait_ms`` as a timedelta."""
        return self._subscription.ack_wait

    def __enter__(self) -> Subscription:
        try:
            self._session.run(self._subscription.__aenter__())
        except Exception:
            raise
        except BaseException:  # it came when the broker had agreed; the block will not run
            self._session.change(self._subscription.abandon)
            raise
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left(self)
        if not self._is_open:
            return
        self._is_open = False
        self._leave(kind, error, trace)

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.run(self._subscription.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Message]:
        self._subscription.check_open()
        return iter(self._next_message, None)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came within ``timeout`` seconds (None: wait without a limit)."""
        subscription = self._subscription
        subscription.check_open()
        if self._messages:
            return self._messages.popleft()
        if subscription.is_fast and (message := subscription.next_in_hand()) is not None:
            return message
        self._session.run(self._take_message(timeout))
        return self._messages.popleft() if self._messages else None

    async def _take_message(self, timeout: float | None) -> None:  # noqa: ASYNC109
        """What comes is kept here before it is returned: an interruption in between does not lose it."""
        message = await self._subscription.receive(timeout)
        if message is not None:
            self._messages.append(message)

    def _next_message(self) -> Message | None:
        subscription = self._subscription
        if subscription.is_fast and (message := subscription.next_in_hand()) is not None:
            return message
        return self._unless_left(self.receive)

    def _unless_left(self, receive: Callable[[], T | None]) -> T | None:
        """None once the subscription was left during an iteration."""
        try:
            return receive()
        except ClientClosed:
            if self._subscription.is_left:
                return None
            raise

    def batches(self) -> Iterator[Batch]:
        """Iterates over batches as they arrive. Do not mix it with iterating over messages."""
        self._subscription.check_open()
        return iter(lambda: self._unless_left(self._next_batch), None)

    def _next_batch(self) -> Batch | None:
        if not self._batches:
            self._session.run(self._take_batch())
        return self._batches.popleft() if self._batches else None

    async def _take_batch(self) -> None:
        batch = await self._subscription.receive_batch()
        if batch is not None:
            self._batches.append(batch)

    def stop(self) -> None:
        """See ``tickwheel.Subscription.stop``."""
        self._session.run(self._subscription.stop())

    def flush(self) -> None:
        """Waits until every ack so far is on the broker's disk. Raises AckRefused if one of them did not count."""
        self._session.run(self._subscription.flush())


def _blocking(
    function: Callable[Concatenate[_client.Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The same method of the blocking client."""

    @wraps(function)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(function, self._client, *args, **kwargs)

    return call


class Client:
    """The blocking twin of ``tickwheel.Client``: same arguments, same methods, same errors."""

    def __init__(self, url: Urls | None = None, **options: Unpack[ClientOptions]) -> None:
        known(options, ClientOptions.__annotations__, "Client")
        if options.get("dial") is not None:
            raise BadArgument("A blocking client opens its connections itself.", advice="Leave dial out.")
        self._client = _client.Client(url, **options)
        self._session: BlockingSession | None = None
        self._subscriptions: set[Subscription] = set()

    @property
    def url(self) -> str:
        """The broker's address; of several nodes all, with commas between them."""
        return self._client.url

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now. Without one, requests wait for the next."""
        return self._client.is_connected

    @property
    def grants(self) -> list[str] | None:
        """What the broker lets this client do, as ``tickwheel tokens grant`` has it, since it connected last.
        None: it may do everything, or the broker is older and does not tell. Raises ClientClosed."""
        return self._client.grants

    @property
    def max_body_bytes(self) -> int:
        """The largest body that the broker takes, as it told when this client connected last. Raises ClientClosed."""
        return self._client.max_body_bytes

    @property
    def created_topics(self) -> list[str]:
        """Topics that the sends of this client made since it was opened, up to 100."""
        return self._client.created_topics

    def __enter__(self) -> Client:
        return self._open(is_patient=True)

    def try_to_open(self) -> Client:
        """As entering its block, but each node is tried once only, for programs that try again by themselves. Raises
        NotConnected."""
        return self._open(is_patient=False)

    def _open(self, *, is_patient: bool) -> Client:
        if self._session is not None:
            return self
        session = BlockingSession(dial=partial(_dial, self._client.security), **self._client.manners())
        self._client.converse(session)
        try:
            session.run(session.connect(self._client.connect_timeout_s, is_patient=is_patient))
            self._session = session
            atexit.register(self._close_at_exit)
        except BaseException:
            self._session = None
            self._client.converse(None)
            session.hang_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Writes what is on its way and closes. Only needed after ``connect``, and done there when the program ends."""
        session, self._session = self._session, None
        if session is None:
            return
        atexit.unregister(self._close_at_exit)
        subscriptions, self._subscriptions = self._subscriptions, set()
        if session.is_forked:
            self._client.forget()
            return
        try:
            for subscription in list(subscriptions):  # those that are still open
                subscription.__exit__(None, None, None)
            session.run(_drained(session))
        finally:
            self._client.converse(None)
            session.hang_up()

    def close_with(self, owner: object) -> weakref.finalize[..., Any]:
        """From now on it is closed when its owner is garbage, at the latest when the program ends. Pending requests are
        not waited for then. Detach what is returned before closing the client otherwise."""
        atexit.unregister(self._close_at_exit)
        return weakref.finalize(owner, self._hang_up)

    def _hang_up(self) -> None:
        session, self._session = self._session, None
        if session is not None and not session.is_forked:
            self._client.converse(None)
            with suppress(TickwheelError, RuntimeError):
                session.hang_up()

    def _close_at_exit(self) -> None:
        with suppress(TickwheelError):
            self.close()

    def _call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        return self._running.run(function(*args, **kwargs))

    @property
    def _running(self) -> BlockingSession:
        if self._session is None:
            raise ClientClosed("The client is not open.")
        if self._session.is_forked:
            raise ClientForked
        return self._session

    @property
    def session(self) -> BlockingSession:
        """Its conversation with the broker, for what carries it on by itself, such as the event loop of a framework.
        Raises ClientClosed, ClientForked."""
        return self._running

    def subscribe(
        self,
        topic: str,
        group: str = "default",
        *,
        credit: int | None = None,
        batch: int = 500,
        start: Start = "earliest",
        shard: str | None = None,
        max_hold: timedelta | float = DEFAULT_MAX_HOLD_S,
        ephemeral: Delay | None = None,
    ) -> Subscription:
        """See ``tickwheel.Client.subscribe``; used with ``with`` and ``for``."""
        options = SubscribeOptions(credit, batch, start, shard, max_hold, ephemeral)
        return self._subscribe(topic, group, options)

    def _subscribe(self, topic: str, group: str, options: SubscribeOptions) -> Subscription:
        session = self._running
        made = session.change(lambda: self._client.subscribe_as(Batch, topic, group, options))
        subscription = Subscription(session, made, self._subscriptions.discard)
        self._subscriptions.add(subscription)
        return subscription

    def work(
        self,
        topic: str,
        handler: Callable[[Message], Any],
        *,
        group: str = "default",
        concurrency: int = DEFAULT_CONCURRENCY,
        retry: RetryPolicy | int | None = None,
        timeout: Delay | None = None,
        middlewares: Sequence[Middleware] = (),
        prefetch: int | None = None,
        start: Start = "earliest",
        shard: str | None = None,
        max_hold: timedelta | float = DEFAULT_MAX_HOLD_S,
        drain: Delay = DRAIN,
        signals: bool | None = None,
    ) -> None:
        """See ``tickwheel.Client.work``. Handlers run in threads, ``concurrency`` of them."""
        options = Options(group, concurrency, retry, timeout, middlewares, prefetch, start, shard, max_hold)
        judged = Handler(topic, handler, options)
        if judged.is_async:
            raise BadArgument(
                f"The handler of {topic!r} is a coroutine function, and this client has no event loop for it.",
                advice="Use tickwheel.Client, or a function without async.",
            )

        worker = ThreadWorker(judged, partial(self._subscribe, topic, group, asked(judged)), drain)
        wants_signals = may_have_signals() if signals is None else flag(signals, "signals")
        with told_by_signals(worker.stop) if wants_signals else nullcontext():
            worker.run()

    def fetch(
        self,
        topic: str,
        group: str = "default",
        *,
        count: int = 1,
        wait: Delay | None = None,
        lease: Delay | None = None,
        start: Start = "earliest",
        max_bytes: int = MAX_FETCH_BYTES,
        ordered_batch: int = 1,
    ) -> Fetched:
        """See ``tickwheel.Client.fetch``."""
        options = FetchOptions(count, wait, lease, start, max_bytes, ordered_batch)
        fetched: Fetched
        fetched, attempts = self._call(self._client.fetch_as, Fetched, topic, group, options)
        fetched.attempts = attempts
        fetched.acks.carrier = _Settling(self._running, fetched.acks)
        return fetched

    def transaction(self, *, id: str | None = None) -> Transaction:
        """See ``tickwheel.Client.transaction``; used with ``with``."""
        session = self._running
        return Transaction(session, session.change(lambda: self._client.transaction(id=id)))

    def check_prepared(self, topic: str, *, credit: int = 100, batch: int = 10) -> Subscription:
        """Prepared messages of ``topic`` without a decision: decide with ``commit_prepared([message.id])`` or
        ``rollback_prepared([message.id])``."""
        check_name(topic)
        return self.subscribe(topic + PREPARED_SUFFIX, CHECKS_GROUP, credit=credit, batch=batch, max_hold=0)

    ack = _blocking(_client.Client.ack)
    nack = _blocking(_client.Client.nack)
    extend = _blocking(_client.Client.extend)
    give_back = _blocking(_client.Client.give_back)
    send = _blocking(_client.Client.send)
    send_http_task = _blocking(_client.Client.send_http_task)
    send_many = _blocking(_client.Client.send_many)
    cancel = _blocking(_client.Client.cancel)
    reschedule = _blocking(_client.Client.reschedule)
    redeliver = _blocking(_client.Client.redeliver)
    cancel_where = _blocking(_client.Client.cancel_where)
    reschedule_where = _blocking(_client.Client.reschedule_where)
    redeliver_where = _blocking(_client.Client.redeliver_where)
    create_topic = _blocking(_client.Client.create_topic)
    set_topic = _blocking(_client.Client.set_topic)
    pause_topic = _blocking(_client.Client.pause_topic)
    resume_topic = _blocking(_client.Client.resume_topic)
    topic = _blocking(_client.Client.topic)
    delete_topic = _blocking(_client.Client.delete_topic)
    groups = _blocking(_client.Client.groups)
    group = _blocking(_client.Client.group)
    create_group = _blocking(_client.Client.create_group)
    delete_group = _blocking(_client.Client.delete_group)
    seek_group = _blocking(_client.Client.seek_group)
    set_group = _blocking(_client.Client.set_group)
    message = _blocking(_client.Client.message)
    history = _blocking(_client.Client.history)
    events = _blocking(_client.Client.events)
    messages = _blocking(_client.Client.messages)
    browse = _blocking(_client.Client.browse)
    replay_dead = _blocking(_client.Client.replay_dead)
    purge = _blocking(_client.Client.purge)
    plan_job = _blocking(_client.Client.plan_job)
    reserve_ids = _blocking(_client.Client.reserve_ids)
    adopt_job = _blocking(_client.Client.adopt_job)
    log_place = _blocking(_client.Client.log_place)
    drop = _blocking(_client.Client.drop)
    commit_prepared = _blocking(_client.Client.commit_prepared)
    rollback_prepared = _blocking(_client.Client.rollback_prepared)
    query = _blocking(_client.Client.query)
    query_arrow = _blocking(_client.Client.query_arrow)
    create_schedule = _blocking(_client.Client.create_schedule)
    set_schedule = _blocking(_client.Client.set_schedule)
    pause_schedule = _blocking(_client.Client.pause_schedule)
    resume_schedule = _blocking(_client.Client.resume_schedule)
    schedules = _blocking(_client.Client.schedules)
    schedule = _blocking(_client.Client.schedule)
    preview_schedule = _blocking(_client.Client.preview_schedule)
    delete_schedule = _blocking(_client.Client.delete_schedule)
    trigger_schedule = _blocking(_client.Client.trigger_schedule)
    set_endpoint = _blocking(_client.Client.set_endpoint)
    endpoint = _blocking(_client.Client.endpoint)
    endpoints = _blocking(_client.Client.endpoints)
    endpoints_since = _blocking(_client.Client.endpoints_since)
    enable_endpoint = _blocking(_client.Client.enable_endpoint)
    disable_endpoint = _blocking(_client.Client.disable_endpoint)
    delete_endpoint = _blocking(_client.Client.delete_endpoint)
    test_endpoint = _blocking(_client.Client.test_endpoint)
    endpoint_attempts = _blocking(_client.Client.endpoint_attempts)
    stats = _blocking(_client.Client.stats)
    figures = _blocking(_client.Client.figures)
    clients = _blocking(_client.Client.clients)
    disconnect = _blocking(_client.Client.disconnect)
    audit = _blocking(_client.Client.audit)
    topics = _blocking(_client.Client.topics)
    wheel = _blocking(_client.Client.wheel)
    ping = _blocking(_client.Client.ping)

    def prepare(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        priority: int | None = None,
        order_key: str | None = None,
        headers: Headers | None = None,
        check_after: Delay | None = None,
    ) -> Prepared:
        """See ``tickwheel.Client.prepare``."""
        prepared = self._call(
            self._client.prepare,
            topic,
            body,
            key=key,
            deliver_at=deliver_at,
            delay=delay,
            delay_ms=delay_ms,
            priority=priority,
            order_key=order_key,
            headers=headers,
            check_after=check_after,
        )
        return Prepared(self, prepared.id)


class Prepared:
    """A prepared message: stored, and delivered only once it is committed."""

    def __init__(self, client: Client, message_id: int) -> None:
        self._client = client
        self.id = message_id

    def commit(self) -> int:
        """See ``tickwheel.Prepared.commit``."""
        ((result, message_id),) = self._client.commit_prepared([self.id])
        return decided(self.id, result, message_id, commit=True)

    def rollback(self) -> None:
        """See ``tickwheel.Prepared.rollback``."""
        (result,) = self._client.rollback_prepared([self.id])
        decided(self.id, result, 0, commit=False)


class Transaction:
    """The blocking twin of ``tickwheel.Transaction``: parts are added in its block, which commits when it ends."""

    def __init__(self, session: BlockingSession, transaction: AsyncTransaction) -> None:
        self._session = session
        self._transaction = transaction
        self.send = transaction.send
        self.send_many = transaction.send_many
        self.ack = transaction.ack
        self.ack_receipts = transaction.ack_receipts
        self.cancel = transaction.cancel
        self.reschedule = transaction.reschedule

    @property
    def result(self) -> TransactionResult | None:
        """Set once it is committed."""
        return self._transaction.result

    def commit(self) -> TransactionResult | None:
        """Commits now; leaving the block does it otherwise."""
        return self._session.run(self._transaction.commit())

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.run(self._transaction.__aexit__(kind, error, trace))


def _dial(security: Security, address: Address, began_at: float, patience_s: float) -> Opening:
    return Opening(address, security, began_at, patience_s)


async def _drained(session: BlockingSession) -> None:
    with session.waits.within(_client.CLOSE_TIMEOUT_S):
        await session.drain()


def connect(url: Urls | None = None, **options: Unpack[ClientOptions]) -> Client:
    """An open client for code that has no block to put it in; ``client.close()`` ends it."""
    return Client(url, **options).__enter__()
