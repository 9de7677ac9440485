"""The asynchronous client. It works on trio and on asyncio."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

import anyio
from anyio.abc import TaskGroup
from msgspec import UNSET

from tickwheel.client import forks as _forks
from tickwheel.client.admin.changes import Changes
from tickwheel.client.admin.dropping import DropRequests
from tickwheel.client.admin.endpoints import TASKS_TOPIC, EndpointRequests, task_headers
from tickwheel.client.admin.groups import GroupRequests
from tickwheel.client.admin.history import HistoryRequests
from tickwheel.client.admin.operations import OperationRequests
from tickwheel.client.admin.pipeline import BulkRequests
from tickwheel.client.admin.prepared import CheckRequests
from tickwheel.client.admin.query import QueryRequests
from tickwheel.client.admin.schedules import ScheduleRequests
from tickwheel.client.admin.topics import TopicRequests
from tickwheel.client.admin.transactions import TransactionRequests
from tickwheel.client.calls import BulkSend
from tickwheel.client.checks import flag, known, network_address, seconds, text, whole
from tickwheel.client.columns import (
    JSON_HEADERS,
    Body,
    EncodedHeaders,
    Headers,
    KeyMaker,
    SendBatch,
    Single,
    check_name,
    check_priority,
    checked_bodies,
    encode_one_body,
    encode_one_headers,
    encode_one_key,
    encode_one_order_key,
    json_bytes,
    level_delay,
)
from tickwheel.client.consumer.fetching import FetchRequests
from tickwheel.client.consumer.holding import DEFAULT_MAX_HOLD_S
from tickwheel.client.consumer.message import BaseBatch, Batch, Message
from tickwheel.client.consumer.subscription import (
    Start,
    SubscribeOptions,
    Subscription,
)
from tickwheel.client.conversation import (
    CLUSTER_BACKOFF_MAX_S,
    CLUSTER_KEEPALIVE_S,
    KEEPALIVE_S,
    Conversation,
)
from tickwheel.client.options import ClientOptions, SendOptions
from tickwheel.client.results import SendResult, SendResults
from tickwheel.client.security import Security, security_of
from tickwheel.client.security import dial as default_dial
from tickwheel.client.session import Dial, Session
from tickwheel.client.times import Delay, Delays, Milliseconds, Moment, Moments, one_time
from tickwheel.client.url import Nodes, Urls, default_url, on_host, parse_urls, shown_urls
from tickwheel.client.waiting.backoff import Backoff
from tickwheel.protocol.bodies.requests import Ping
from tickwheel.protocol.errors import ClientClosed
from tickwheel.worker.handler import DEFAULT_CONCURRENCY, Function, Handler, Middleware, Options
from tickwheel.worker.retry_policy import RetryPolicy
from tickwheel.worker.worker import DRAIN, Worker

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from tickwheel.client.tracing import Producing

CLOSE_TIMEOUT_S = 2.0
_MANY: Final = 1_000
"""Messages of a call whose checking is work between two looks at other tasks."""
B = TypeVar("B", bound=BaseBatch[Any])


class Client(
    Changes,
    TopicRequests,
    TransactionRequests,
    CheckRequests,
    ScheduleRequests,
    EndpointRequests,
    QueryRequests,
    BulkRequests,
    DropRequests,
    GroupRequests,
    HistoryRequests,
    OperationRequests,
    FetchRequests,
):
    """A connection to a broker that renews itself. One client serves any number of tasks of one event loop::

        async with tickwheel.Client("tickwheel://127.0.0.1:7411") as client:
            await client.send("reminders", b"tea is ready", delay=timedelta(minutes=4))

    ``url``: ``tickwheel://host:port``, ``tickwheels://host:port`` (TLS) or ``tickwheel+unix:///path``; default:
    ``TICKWHEEL_URL``, else this machine. Of a cluster, all nodes: ``tickwheel://a:7411,b:7411,c:7411``, or a list of
    URLs; the client finds the one that serves, and goes on at the next one when that changes.
    ``name``: for the broker's log. ``timeout``: seconds that a request may take, reconnects included.
    ``connect_timeout``: seconds to keep trying until the first connection stands; of several nodes, each may be silent
    for its part of them before the next one is tried.
    ``keepalive``: seconds of silence after which a connection is taken for dead; by default 30, and 5 where there are
    several nodes, of which another one may serve.
    ``max_pending_bytes``: what may wait to be written or answered; above it, sends wait.
    ``auto_key``: ``send`` gives each message without key a unique one. That is what makes its retry safe:
    when the connection breaks before the broker confirmed, the message goes again, and the broker knows it
    by its key. Without a key such a send raises SendUncertain, because to repeat it could store it twice.
    ``ca_file``: whose certificates to trust with TLS; the system's CAs by default. ``certificate``, ``key``: PEM files,
    for a broker that wants certificates of clients. ``token``, or ``token_file`` that has nothing but it: the log-in.
    A token goes to other machines with TLS only, unless ``plain_token``. What is not given comes from
    ``TICKWHEEL_CA``, ``TICKWHEEL_CERTIFICATE``, ``TICKWHEEL_KEY``, ``TICKWHEEL_TOKEN`` and ``TICKWHEEL_TOKEN_FILE``.
    ``peer``: for proxies, the IP address of whom this connection is for, or ``unknown``: log-ins and the audit log go
    by it, and a token is needed where the proxy itself needs none. The broker believes it of its own user on its Unix
    socket, else it ignores it; brokers from before that refuse it.
    ``tracing``: True, or a TracerProvider: what is sent carries its trace; see ``tickwheel.tracing``.
    """

    def __init__(
        self,
        url: Urls | None = None,
        *,
        name: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        keepalive: float | None = None,
        max_pending_bytes: int = 64 * 1024 * 1024,
        auto_key: bool = True,
        ca_file: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        plain_token: bool = False,
        peer: str = "",
        tracing: bool | TracerProvider = False,
        dial: Dial | None = None,
    ) -> None:
        self._addresses = parse_urls(default_url() if url is None or url == "" else url)
        self._security = security_of(
            ca_file=ca_file,
            certificate=certificate,
            key=key,
            token=token,
            token_file=token_file,
            plain_token=flag(plain_token, "plain_token"),
        )
        for address in self._addresses:
            self._security.check(address)
        self._name = text(name, "name") if name else f"python/{socket.gethostname()}/{os.getpid()}"
        self._peer = network_address(peer, "peer") if peer else ""
        self._timeout_s = seconds(timeout, "timeout")
        self._connect_timeout_s = seconds(connect_timeout, "connect_timeout")
        if keepalive is None:
            keepalive = KEEPALIVE_S if len(self._addresses) == 1 else CLUSTER_KEEPALIVE_S
        self._keepalive_s = seconds(keepalive, "keepalive")
        self._max_pending_bytes = whole(max_pending_bytes, "max_pending_bytes", 1, 1 << 62)
        self._auto_key = flag(auto_key, "auto_key")
        self._dial = dial
        self._keys = KeyMaker()
        self._producing = self._make_producing(tracing) if tracing else None
        self._running: Conversation | None = None
        self._group: TaskGroup | None = None
        self._shields: list[anyio.CancelScope] = []

    def _make_producing(self, tracing: bool | TracerProvider) -> Producing:
        from tickwheel.client.tracing import Producing  # OpenTelemetry is imported only for traces

        return Producing(self._addresses, self._name, None if isinstance(tracing, bool) else tracing)

    @property
    def security(self) -> Security:
        """For twins of this client."""
        return self._security

    @property
    def connect_timeout_s(self) -> float:
        """For twins of this client."""
        return self._connect_timeout_s

    @property
    def url(self) -> str:
        """The broker's address; of several nodes all, with commas between them."""
        return shown_urls(self._addresses)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now. Without one, requests wait for the next."""
        return self._running is not None and self._running.is_connected

    @property
    def grants(self) -> list[str] | None:
        """What the broker lets this client do, as ``tickwheel tokens grant`` has it, since it connected last.
        None: it may do everything, or the broker is older and does not tell. Raises ClientClosed."""
        found = self._session.limits.grants
        return None if found is UNSET else list(found)

    @property
    def is_limited(self) -> bool:
        """Whether there is something that the broker does not let this client do; False also of an older broker, which
        does not tell. Raises ClientClosed."""
        return self._session.limits.is_limited is True

    @property
    def timeline(self) -> str:
        """Of the broker's log, as 16 hexadecimal digits, as it told when this client connected last. Positions, ids and
        receipts of another one mean nothing there. Empty: the broker is older. Raises ClientClosed."""
        return self._session.limits.timeline

    @property
    def flight_url(self) -> str:
        """Where tables are read by Arrow Flight, such as ``grpc://127.0.0.1:7416``, as the broker told when this client
        connected last. Empty: it has no ``tickwheel flight``, or is older. Raises ClientClosed."""
        found = self._session.limits.flight_url
        return "" if found is UNSET else on_host(found, self._session.nodes.current)

    @property
    def max_body_bytes(self) -> int:
        """The largest body that the broker takes, as it told when this client connected last. Raises ClientClosed."""
        return self._session.limits.max_body_bytes

    @property
    def created_topics(self) -> list[str]:
        """Topics that the sends of this client made since it was opened, up to 100."""
        return list(self._session.created_topics)

    # Opening and closing -------------------------------------------------------------------------

    async def __aenter__(self) -> Client:
        if self._running is not None:
            return self
        session = Session(dial=self._dial or partial(default_dial, security=self._security), **self.manners())
        group = anyio.create_task_group()
        await group.__aenter__()
        self._group = group
        self.converse(session)
        group.start_soon(self._behind_shield, session.run)
        group.start_soon(self._behind_shield, session.watch)
        try:
            await session.wait_connected(self._connect_timeout_s)
        except BaseException:
            await self._stop()
            raise
        return self

    def manners(self) -> dict[str, Any]:
        """How its conversations are, for `Conversation`."""
        nodes = Nodes(self._addresses, self._connect_timeout_s, self._security.check)
        return {
            "nodes": nodes,
            "name": self._name,
            "timeout_s": self._timeout_s,
            "keepalive_s": self._keepalive_s,
            "max_pending_bytes": self._max_pending_bytes,
            "backoff": Backoff(max_s=CLUSTER_BACKOFF_MAX_S) if nodes.are_several else Backoff(),
            "token": self._security.current_token,
            "peer": self._peer,
        }

    def converse(self, conversation: Conversation | None) -> None:
        """All requests go there from now on. For twins of this client, which have one of their own."""
        self._running = conversation
        # Here, not before: one client may be entered in several children of this process.
        self._keys = KeyMaker()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Writes what is on its way and closes. Only needed after ``connect``; call it from the same task."""
        if self._running is None:
            return
        if self._running.is_forked:
            self.forget()
            return
        try:
            with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
                await self._running.drain()
        finally:  # a shield does not keep asyncio's own Task.cancel out
            await self._stop()

    def forget(self) -> None:
        """After a fork: what is open is the parent's. The child can enter the client anew."""
        _forks.keep(self._running, self._group, self._shields)
        self._running = self._group = None
        self._shields = []

    async def _behind_shield(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs the connection on while the user's block is being cancelled, so that ``close`` can still write."""
        with anyio.CancelScope(shield=True) as scope:
            self._shields.append(scope)
            await work()

    async def _stop(self) -> None:
        session, group = self._running, self._group
        if session is None or group is None:
            return
        self._running = self._group = None
        session.close()
        for scope in self._shields:
            scope.cancel()
        self._shields.clear()
        # The group is ours alone, so its end must neither be interrupted by, nor wrap, what happens to the
        # user's block: it is cancelled from within, and an exception of the block goes its own way.
        group.cancel_scope.shield = True
        group.cancel_scope.cancel()
        await group.__aexit__(None, None, None)

    @property
    def _session(self) -> Conversation:
        if self._running is None:
            raise ClientClosed("The client is not open.")
        return self._running

    # Sending -------------------------------------------------------------------------------------

    async def send_json(
        self, topic: str, value: object, *, headers: Headers | None = None, **options: Unpack[SendOptions]
    ) -> SendResult:
        """As ``send``, with a body of JSON, which has the header ``content-type``: what JSON can express, datetimes,
        dataclasses and structs of msgspec. ``message.json()`` reads it. ``options`` are those of ``send``."""
        known(options, SendOptions.__annotations__, "send_json")
        if headers is None or isinstance(headers, Mapping):
            headers = {**JSON_HEADERS, **(headers or {})}
        return await self.send(topic, json_bytes(value), headers=headers, **options)

    async def send(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        delay_level: int | None = None,
        priority: int | None = None,
        order_key: str | None = None,
        headers: Headers | None = None,
    ) -> SendResult:
        """Sends one message, and returns when it is safe on the broker's disk.

        It is delivered at ``deliver_at`` (an aware datetime, or epoch ms since 2001), after ``delay`` (a timedelta) or
        ``delay_ms``, or at once. With a ``key`` it is stored once: sending the same topic and key again returns the
        first one's id.
        ``delay_level``: 1 to 18, RocketMQ's 1 s to 2 h (the broker's ``delay_levels``).
        ``priority``: 0 goes first, 255 last; None: the topic's, usually 50. ``headers``: what MessagePack can express,
        up to 32 KiB. ``order_key``: messages that share one are delivered to each group one at a time, in the order in
        which they reached the topic; their priority does not count.
        Sends from several tasks share frames: for many messages at once use tasks, or better ``send_many``.
        """
        with self._span(topic, body=body) as sending:
            session = self._session
            limits = session.limits
            if type(topic) is not str or not session.knows_topic(topic):
                check_name(topic)
            if delay_level is not None:
                delay_ms = level_delay(delay_level, limits, deliver_at, delay, delay_ms)
            if sending is not None:
                headers = sending.headers(headers)
            auto_key = key is None and self._auto_key
            time_ms, relative = one_time(deliver_at, delay, delay_ms)
            flight, index = await session.send_single(
                topic,
                encode_one_body(body, limits),
                key=(self._keys.one() if auto_key else b"") if key is None else encode_one_key(key, limits),
                headers=b"" if headers is None else encode_one_headers(headers, limits),
                order_key=b"" if order_key is None else encode_one_order_key(order_key, limits),
                time_ms=time_ms,
                priority=None if priority is None else check_priority(priority),
                relative=relative,
                auto_key=auto_key,
            )
            item = flight.stored(index)
            if sending is not None:
                sending.stored(item)
            return item

    def _single(
        self,
        body: Body,
        *,
        key: str | None = None,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
    ) -> Single | None:
        """A message as ``send`` makes it of these, for twins of this client. None: ``send`` does more, such as a trace.
        Raises ClientClosed, NotConnected, and what is wrong with the message."""
        if self._producing is not None:
            return None
        limits = self._session.limits
        time_ms, relative = one_time(deliver_at, delay, delay_ms)
        encoded = encode_one_body(body, limits)
        if key is not None:
            return Single(encoded, encode_one_key(key, limits), time_ms, relative, has_auto_key=False)
        own_key = self._keys.one() if self._auto_key else b""
        return Single(encoded, own_key, time_ms, relative, has_auto_key=self._auto_key)

    async def send_http_task(
        self,
        url: str,
        body: Body = b"",
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        topic: str = TASKS_TOPIC,
        key: str | None = None,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        priority: int | None = None,
    ) -> SendResult:
        """Has one request made to a URL, now or at its time, by ``tickwheel push``; otherwise as ``send``.

        The endpoint of ``topic`` that carries out tasks has to allow the URL (``allow_urls``). ``headers``: of the
        request, such as ``{"Content-Type": "application/json"}``. Raises UrlNotAllowed, BadArgument.
        """
        check_name(topic)
        of_task = task_headers(url, method=method, headers=headers)
        await self._check_task(topic, url)
        return await self.send(
            topic,
            body,
            key=key,
            deliver_at=deliver_at,
            delay=delay,
            delay_ms=delay_ms,
            priority=priority,
            headers=of_task,
        )

    async def send_many(
        self,
        topic: str,
        bodies: Iterable[Body],
        *,
        keys: Sequence[str | None] | None = None,
        deliver_at: Moments | None = None,
        delay: Delays | None = None,
        delay_ms: Milliseconds | None = None,
        delay_level: int | None = None,
        priority: int | Sequence[int] | None = None,
        order_keys: Sequence[str | None] | str | None = None,
        headers: Headers | Sequence[Headers | None] | None = None,
        auto_key: bool = False,
    ) -> SendResults:
        """Sends many messages, and returns when they are safe on the broker's disk, with a result for each.

        Every option is one value for all, or one for each body; ``deliver_at`` and ``delay_ms`` also take an
        array of int64 milliseconds (``array.array`` or numpy), ``delay`` one of timedelta64.

        What is not of the right kind (a text as body, a datetime without zone, NaN, half a surrogate pair, lists of
        different lengths) refuses the call: its error is raised, and nothing is sent. What is of the right kind and
        beyond a limit (a body, key or headers that are too large, a time outside of the years 1970 to 9999) refuses its
        own message: its result is the error, and the others are stored. Otherwise an error is raised only when nothing
        at all was stored because the request as a whole failed.

        Retry: messages with keys are sent again when the connection breaks before the broker confirmed.
        Without keys they are not, and the error is SendUncertain; ``auto_key=True`` gives each a unique
        key. It is not set by default because keys cost time and disk, which a bulk load may not want to
        pay.
        """
        auto_key = flag(auto_key, "auto_key")
        check_name(topic)
        checked = checked_bodies(bodies)
        with self._span(topic, count=len(checked)) as sending:
            session = self._session
            if delay_level is not None:
                delay_ms = level_delay(delay_level, session.limits, deliver_at, delay, delay_ms)
            if sending is not None:
                headers = sending.headers(headers)
            batch = SendBatch(
                bodies=checked,
                keys=keys,
                deliver_at=deliver_at,
                delay=delay,
                delay_ms=delay_ms,
                priority=priority,
                headers=await self._encoded(session, headers, len(checked)),
                order_keys=order_keys,
                limits=session.limits,
                key_maker=self._keys if auto_key else None,
            )
            if batch.count > _MANY:
                await session.waits.turn()  # others of this loop go on between checking and cutting
            calls = await self._send_parts(session, topic, batch, auto_key=auto_key and keys is None)
            results = _results_of(batch, calls)
            if sending is not None:
                sending.stored_all(results)
            return results

    async def _encoded(
        self, session: Conversation, headers: Headers | Sequence[Headers | None] | None, count: int
    ) -> Headers | Sequence[Headers | None] | EncodedHeaders | None:
        """Those of a long batch take longer than all the rest of it: others of this loop go on meanwhile."""
        if count <= _MANY or not isinstance(headers, list) or len(headers) != count:
            return headers
        encoded = EncodedHeaders()
        for start in range(0, count, _MANY):
            encoded.add(headers[start : start + _MANY])
            await session.waits.turn()
        return encoded

    async def _send_parts(
        self, session: Conversation, topic: str, batch: SendBatch, *, auto_key: bool
    ) -> list[BulkSend]:
        calls: list[BulkSend] = []
        try:
            for part in batch.parts():
                call = BulkSend(
                    topic=topic,
                    columns=part.columns,
                    indexes=part.indexes,
                    auto_key=auto_key,
                    deadline=session.deadline(),
                )
                await session.enqueue(call)
                calls.append(call)
                if len(calls) > 1:
                    # A long batch must not keep the writer from writing its first frames.
                    await session.waits.turn()
            for call in calls:
                await call.done.wait()
        except BaseException:
            for call in calls:
                session.abandon(call)
            raise
        return calls

    # Receiving -----------------------------------------------------------------------------------

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
    ) -> Subscription[Message, Batch]:
        """Messages of a topic for a group, as they become due: ``async with client.subscribe("t") as sub:
        ...``

        Each message goes to one subscriber of each group. ``credit``: the most messages held un-acked,
        by default as many as are handled in about a second, up to 1,000, and 1,000 for who iterates over batches;
        ``batch``: the most that arrive together. ``start``: where a new group begins: at the ``earliest`` message that
        is there, behind the ``latest``, or at the first that was due at a moment or later. ``shard``: only the
        messages of one shard, by its exact key range, such as ``"-80"``. ``ephemeral``: a group that this makes ends
        so long after its last subscriber has left, with all that it knows.

        Messages that wait here or are being handled are kept from other subscribers for up to ``max_hold`` (a
        timedelta, or seconds; 0: only as long as the lease that they come with), however slow a handler is.
        """
        options = SubscribeOptions(credit, batch, start, shard, max_hold, ephemeral)
        return self.subscribe_as(Batch, topic, group, options)

    def subscribe_as(
        self, batch_class: type[B], topic: str, group: str, options: SubscribeOptions
    ) -> Subscription[Any, B]:
        """As ``subscribe``, with another class of batches: for twins of this client."""
        return Subscription(self._session, topic, group, options, batch_class)

    async def work(
        self,
        topic: str,
        handler: Function,
        *,
        group: str = "default",
        concurrency: int = DEFAULT_CONCURRENCY,
        retry: RetryPolicy | int | None = None,
        timeout: Delay | None = None,  # noqa: ASYNC109 - of each call of the handler
        middlewares: Sequence[Middleware] = (),
        prefetch: int | None = None,
        start: Start = "earliest",
        shard: str | None = None,
        max_hold: timedelta | float = DEFAULT_MAX_HOLD_S,
        drain: Delay = DRAIN,
        signals: bool | None = None,
    ) -> None:
        """Calls ``handler`` for each message of a topic, up to ``concurrency`` at once, until the program is told to
        stop::

            await client.work("mails", send_mail, concurrency=50, retry=5)

        A message whose handler returns is acked. One whose handler raises comes again, as ``retry`` says: a
        ``RetryPolicy``, or a number of attempts, after which it is a dead letter; by default as the topic's settings
        say. ``Retry`` and ``GiveUp``, raised or returned, say it for one message. A handler that is no coroutine
        function runs in a thread. Leases are renewed while handlers run, for up to ``max_hold``.

        ``timeout``: of each call of a handler that is a coroutine function; then it is cancelled, and the attempt has
        failed. ``middlewares``: each is called with a message and with what to call next; the first one is the
        outermost. ``prefetch``: so many messages wait here besides those that are handled; None: about a second's work.
        ``group``, ``start``, ``shard``: as in ``subscribe``.

        SIGTERM and Ctrl-C end it in order: nothing new is begun, messages that wait go back as not looked at, and
        handlers are finished within ``drain``; then they are cancelled, and their messages go back without having cost
        an attempt. A second signal does not wait. ``signals``: None: in the main thread, those
        for which the program, or its web server, has no handler: where it has one, cancel the call. Raises what
        `subscribe` raises; BadArgument.
        """
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
        worker = Worker(self, Batch, [Handler(topic, handler, options)], drain=drain)
        await worker.run(signals=None if signals is None else flag(signals, "signals"))

    # Looking -------------------------------------------------------------------------------------

    async def ping(self) -> float:
        """Seconds that the broker took to answer."""
        waits = self._session.waits
        asked = waits.now()
        await self._session.request(Ping())
        return waits.now() - asked


def _results_of(batch: SendBatch, calls: Sequence[BulkSend]) -> SendResults:
    """Raises the error of a request that failed as a whole."""
    failed = [call.error for call in calls if call.error is not None]
    if failed and len(failed) == len(calls):
        raise failed[0].copy()
    results = SendResults(batch.count)
    for index, error in batch.refused.items():
        results.add_error((index,), error)
    for call in calls:
        if call.answer is not None:
            results.add_answer(call.indexes, call.answer, auto_key=call.auto_key)
        elif call.error is not None:
            results.add_error(call.indexes, call.error)
    return results


async def connect(url: Urls | None = None, **options: Unpack[ClientOptions]) -> Client:
    """An open client for code that has no block to put it in; ``await client.close()`` in the same task
    ends it.

    ``async with Client(url)`` is the better way wherever there is a block. ``options`` are those of Client.
    """
    known(options, ClientOptions.__annotations__, "connect")
    return await Client(url, **options).__aenter__()
