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
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, Unpack

from tickwheel.blocking.dial import Opening
from tickwheel.blocking.interruptions import uninterrupted
from tickwheel.blocking.message import Batch, Fetched, Message
from tickwheel.blocking.session import BlockingSession
from tickwheel.blocking.settling import Settling
from tickwheel.blocking.short_way import ShortWaySession
from tickwheel.blocking.subscription import Subscription
from tickwheel.client import client as _client
from tickwheel.client.admin.prepared import CHECKS_GROUP, decided
from tickwheel.client.admin.transactions import Transaction as AsyncTransaction
from tickwheel.client.admin.transactions import TransactionResult
from tickwheel.client.checks import flag, known
from tickwheel.client.columns import Body, check_name
from tickwheel.client.consumer.fetching import FetchOptions
from tickwheel.client.consumer.holding import DEFAULT_MAX_HOLD_S
from tickwheel.client.consumer.subscription import Start, SubscribeOptions
from tickwheel.client.options import ClientOptions
from tickwheel.client.results import SendResult
from tickwheel.client.security import Security
from tickwheel.client.times import Delay
from tickwheel.client.url import Address, Urls
from tickwheel.protocol.errors import BadArgument, ClientClosed, ClientForked, TickwheelError
from tickwheel.protocol.limits import MAX_FETCH_BYTES, PREPARED_SUFFIX
from tickwheel.worker.handler import DEFAULT_CONCURRENCY, Handler, Middleware, Options
from tickwheel.worker.retry_policy import RetryPolicy
from tickwheel.worker.signals import told
from tickwheel.worker.threads import ThreadWorker
from tickwheel.worker.worker import DRAIN, asked

__all__ = ["Batch", "Client", "Fetched", "Message", "Prepared", "Subscription", "Transaction", "connect"]

R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")
_GIVEN: Final = 2
"""What a send is given by position: topic and body."""
_OPTIONS_OF_SINGLES: Final = frozenset({"key", "deliver_at", "delay", "delay_ms"})
"""Those with which a message may go by the short way."""


def _blocking(
    function: Callable[Concatenate[_client.Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The same method of the blocking client."""

    @wraps(function)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(function, self._client, *args, **kwargs)

    return call


def _sending(
    function: Callable[Concatenate[_client.Client, P], Coroutine[Any, Any, SendResult]],
) -> Callable[Concatenate[Client, P], SendResult]:
    """As `_blocking`, by the short way where that is open."""
    usual = _blocking(function)

    @wraps(function)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> SendResult:
        if len(args) == _GIVEN and kwargs.keys() <= _OPTIONS_OF_SINGLES:
            short: Callable[..., SendResult | None] = self._send_alone
            result = short(*args, **kwargs)
            if result is not None:
                return result
        return usual(self, *args, **kwargs)

    return call


def _twin(
    function: Callable[Concatenate[_client.Client, P], Coroutine[Any, Any, T]],
    twin: Callable[[Client, T], R],
) -> Callable[Concatenate[Client, P], R]:
    """The same method of the blocking client, which returns the blocking twin of what the other one returns."""

    @wraps(function)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return twin(self, self._call(function, self._client, *args, **kwargs))

    return call


class Client:
    """The blocking twin of ``tickwheel.Client``: same arguments, same methods, same errors."""

    def __init__(self, url: Urls | None = None, **options: Unpack[ClientOptions]) -> None:
        known(options, ClientOptions.__annotations__, "Client")
        if options.get("dial") is not None:
            raise BadArgument("A blocking client opens its connections itself.", advice="Leave dial out.")
        self._client = _client.Client(url, **options)
        self._session: ShortWaySession | None = None
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
    def is_limited(self) -> bool:
        """Whether there is something that the broker does not let this client do; False also of an older broker, which
        does not tell. Raises ClientClosed."""
        return self._client.is_limited

    @property
    def timeline(self) -> str:
        """Of the broker's log, as 16 hexadecimal digits, as it told when this client connected last. Positions, ids and
        receipts of another one mean nothing there. Empty: the broker is older. Raises ClientClosed."""
        return self._client.timeline

    @property
    def flight_url(self) -> str:
        """Where tables are read by Arrow Flight, such as ``grpc://127.0.0.1:7416``, as the broker told when this client
        connected last. Empty: it has no ``tickwheel flight``, or is older. Raises ClientClosed."""
        return self._client.flight_url

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
        """As entering its block, but each node is tried once only. Raises NotConnected."""
        return self._open(is_patient=False)

    def _open(self, *, is_patient: bool) -> Client:
        if self._session is not None:
            return self
        session: ShortWaySession | None = None
        try:
            with uninterrupted():  # what has descriptors is either not there, or closed below
                session = ShortWaySession(
                    dial=partial(_dial, self._client.security), **self._client.manners()
                )
            self._client.converse(session)
            session.run(session.connect(self._client.connect_timeout_s, is_patient=is_patient))
            self._session = session
            atexit.register(self._close_at_exit)
        except BaseException:
            self._session = None
            self._client.converse(None)
            if session is not None:
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
        """It is closed, without waiting, when its owner is garbage or the program ends, unless what this returns is
        detached before."""
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
        """Its conversation, for an event loop that carries it on by itself. Raises ClientClosed, ClientForked."""
        return self._running

    def _send_alone(self, topic: str, body: Body, **options: Any) -> SendResult | None:
        """By the short way. None: that is not open, and nothing was done."""
        session = self._session
        if session is None or type(topic) is not str or not session.is_alone(topic):
            return None
        message = self._client._single(body, **options)
        return None if message is None else session.send_alone(topic, message)

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
        return self.subscribe_as(topic, group, options)

    def subscribe_as(self, topic: str, group: str, options: SubscribeOptions) -> Subscription:
        """As ``subscribe``, with all that a subscription may ask for: for those who build on this client."""
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
        options = Options(
            group=group,
            concurrency=concurrency,
            retry=retry,
            timeout=timeout,
            middlewares=middlewares,
            prefetch=prefetch,
            start=start,
            shard=shard,
            max_hold=max_hold,
        )
        judged = Handler(topic, handler, options)
        if judged.is_async:
            raise BadArgument(
                f"The handler of {topic!r} is a coroutine function, and this client has no event loop for it.",
                advice="Use tickwheel.Client, or a function without async.",
            )

        worker = ThreadWorker(judged, partial(self.subscribe_as, topic, group, asked(judged)), drain)
        with told(worker.stop, None if signals is None else flag(signals, "signals")):
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
        fetched.acks.carrier = Settling(self._running, fetched.acks)
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
    send = _sending(_client.Client.send)
    send_json = _blocking(_client.Client.send_json)
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
    _put_schedule = _blocking(_client.Client._put_schedule)
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
    prepare = _twin(_client.Client.prepare, lambda client, prepared: Prepared(client, prepared.id))


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
