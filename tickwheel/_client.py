"""The asynchronous client. It works on trio and on asyncio."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Any, TypeVar, overload

import anyio
import msgspec
from anyio.abc import TaskGroup

from tickwheel._backoff import Backoff
from tickwheel._calls import BulkSend
from tickwheel._columns import Batch as ColumnBatch
from tickwheel._columns import (
    Body,
    Headers,
    KeyMaker,
    check_name,
    check_priority,
    encode_one_body,
    encode_one_headers,
    encode_one_key,
)
from tickwheel._message import BaseBatch, Batch, Message
from tickwheel._query import QueryResult, query_request
from tickwheel._results import CancelResult, RescheduleResult, SendResult, SendResults
from tickwheel._session import Dial, Session, dial
from tickwheel._subscription import Subscription
from tickwheel._times import Delay, Delays, Moment, Moments, one_time
from tickwheel._url import default_url, parse_url
from tickwheel.protocol.errors import BadArgument, BadFrame, BadTime, ClientClosed, TickwheelError
from tickwheel.protocol.limits import DEFAULT_PRIORITY, DEFAULT_QUERY_ROWS, MAX_IDS_A_REQUEST
from tickwheel.protocol.requests import (
    Cancel,
    CancelOk,
    GetStats,
    GetTopics,
    GetWheel,
    Ping,
    Request,
    Reschedule,
    RescheduleOk,
)
from tickwheel.stats import Stats, Topics, TopicStats, Wheel

CLOSE_TIMEOUT_S = 2.0
R = TypeVar("R", bound=StrEnum)
B = TypeVar("B", bound=BaseBatch[Any])
S = TypeVar("S", bound=msgspec.Struct)


class Client:
    """A connection to a broker that renews itself. One client serves any number of tasks of one event loop::

        async with tickwheel.Client("tickwheel://127.0.0.1:7411") as client:
            await client.send("reminders", b"tea is ready", delay=timedelta(minutes=4))

    ``url``: ``tickwheel://host:port`` or ``tickwheel+unix:///path``; default: ``TICKWHEEL_URL``, else this
    machine.
    ``name``: for the broker's log. ``timeout``: seconds that a request may take, reconnects included.
    ``connect_timeout``: seconds to keep trying until the first connection stands.
    ``keepalive``: seconds of silence after which a connection is taken for dead.
    ``max_pending_bytes``: what may wait to be written or answered; above it, sends wait.
    ``auto_key``: ``send`` gives each message without key a unique one. That is what makes its retry safe:
    when the connection breaks before the broker confirmed, the message goes again, and the broker knows it
    by its key. Without a key such a send raises SendUncertain, because to repeat it could store it twice.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        keepalive: float = 30.0,
        max_pending_bytes: int = 64 * 1024 * 1024,
        auto_key: bool = True,
        dial: Dial = dial,
    ) -> None:
        self._address = parse_url(url or default_url())
        self._name = name or f"python/{socket.gethostname()}/{os.getpid()}"
        self._timeout_s = timeout
        self._connect_timeout_s = connect_timeout
        self._keepalive_s = keepalive
        self._max_pending_bytes = max_pending_bytes
        self._auto_key = auto_key
        self._dial = dial
        self._keys = KeyMaker()
        self._running: Session | None = None
        self._group: TaskGroup | None = None
        self._shields: list[anyio.CancelScope] = []

    @property
    def url(self) -> str:
        """The broker's address."""
        return str(self._address)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now. Without one, requests wait for the next."""
        return self._running is not None and self._running.is_connected

    # Opening and closing -------------------------------------------------------------------------

    async def __aenter__(self) -> Client:
        if self._running is not None:
            return self
        session = Session(
            self._address,
            name=self._name,
            timeout_s=self._timeout_s,
            keepalive_s=self._keepalive_s,
            max_pending_bytes=self._max_pending_bytes,
            backoff=Backoff(),
            dial=self._dial,
        )
        group = anyio.create_task_group()
        await group.__aenter__()
        self._group, self._running = group, session
        group.start_soon(self._behind_shield, session.run)
        group.start_soon(self._behind_shield, session.watch)
        try:
            await session.wait_connected(self._connect_timeout_s)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Writes what is on its way and closes. Only needed after ``connect``; call it from the same task."""
        if self._running is None:
            return
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await self._running.drain()
        await self._stop()

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
    def _session(self) -> Session:
        if self._running is None:
            raise ClientClosed("The client is not open.")
        return self._running

    # Sending -------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        priority: int = DEFAULT_PRIORITY,
        headers: Headers | None = None,
    ) -> SendResult:
        """Sends one message, and returns when it is safe on the broker's disk.

        It is delivered at ``deliver_at`` (an aware datetime, or epoch ms), after ``delay`` (a timedelta, or
        ms), or at once. With a ``key`` it is stored once: sending the same topic and key again returns the
        first one's id.
        ``priority``: 0 goes first, 255 last. ``headers``: what MessagePack can express, up to 16 KiB.
        Sends from several tasks share frames: for many messages at once use tasks, or better ``send_many``.
        """
        session = self._session
        limits = session.limits
        if not session.knows_topic(topic):
            check_name(topic)
        auto_key = key is None and self._auto_key
        time_ms, relative = (
            (0, False) if deliver_at is None and delay is None else one_time(deliver_at, delay)
        )
        flight, index = await session.send_single(
            topic,
            encode_one_body(body, limits),
            (self._keys.one() if auto_key else b"") if key is None else encode_one_key(key, limits),
            encode_one_headers(headers, limits) if headers else b"",
            time_ms,
            check_priority(priority),
            relative=relative,
            auto_key=auto_key,
        )
        item = flight.result(index)
        if isinstance(item, TickwheelError):
            raise item
        return item

    async def send_many(
        self,
        topic: str,
        bodies: Iterable[Body],
        *,
        keys: Sequence[str | None] | None = None,
        deliver_at: Moments | None = None,
        delay: Delays | None = None,
        priority: int | Sequence[int] | None = None,
        headers: Headers | Sequence[Headers | None] | None = None,
        auto_key: bool = False,
    ) -> SendResults:
        """Sends many messages, and returns when they are safe on the broker's disk, with a result for each.

        Every option is one value for all, or one for each body; ``deliver_at`` and ``delay`` also take an
        array of int64 milliseconds (``array.array`` or numpy). A refused message does not touch the others:
        its result is the error. Only when nothing at all was stored because the request as a whole failed,
        its error is raised.

        Retry: messages with keys are sent again when the connection breaks before the broker confirmed.
        Without keys they are not, and the error is SendUncertain; ``auto_key=True`` gives each a unique
        key. It is not set by default because keys cost time and disk, which a bulk load may not want to
        pay.
        """
        session = self._session
        check_name(topic)
        batch = ColumnBatch(
            bodies,
            keys=keys,
            deliver_at=deliver_at,
            delay=delay,
            priority=priority,
            headers=headers,
            key_maker=self._keys if auto_key else None,
            limits=session.limits,
        )
        results = SendResults(batch.count)
        for index, error in batch.refused.items():
            results.add_error((index,), error)
        calls = await self._send_parts(session, topic, batch, auto_key=auto_key and keys is None)
        failed = [call.error for call in calls if call.error is not None]
        if failed and len(failed) == len(calls):
            raise failed[0].copy()
        for call in calls:
            if call.answer is not None:
                results.add_answer(call.indexes, call.answer, auto_key=call.auto_key)
            elif call.error is not None:
                results.add_error(call.indexes, call.error)
        return results

    async def _send_parts(
        self, session: Session, topic: str, batch: ColumnBatch, *, auto_key: bool
    ) -> list[BulkSend]:
        calls: list[BulkSend] = []
        try:
            for part in batch.parts():
                call = BulkSend(
                    topic, part.columns, part.indexes, auto_key=auto_key, deadline=session.deadline()
                )
                await session.enqueue(call)
                if calls:
                    # A long batch must not keep the writer from writing its first frames.
                    await anyio.lowlevel.checkpoint()
                calls.append(call)
            for call in calls:
                await call.done.wait()
        except BaseException:
            for call in calls:
                session.abandon(call)
            raise
        return calls

    # Receiving -----------------------------------------------------------------------------------

    def subscribe(
        self, topic: str, group: str = "default", *, credit: int = 1000, batch: int = 500
    ) -> Subscription[Message, Batch]:
        """Messages of a topic for a group, as they become due: ``async with client.subscribe("t") as sub:
        ...``

        Each message goes to one subscriber of each group. ``credit``: the most messages held un-acked;
        ``batch``: the most that arrive together.
        """
        return self.subscribe_as(Batch, topic, group, credit=credit, batch=batch)

    def subscribe_as(
        self, batch_class: type[B], topic: str, group: str, *, credit: int, batch: int
    ) -> Subscription[Any, B]:
        """As ``subscribe``, with another class of batches: for twins of this client."""
        return Subscription(self._session, topic, group, credit=credit, batch=batch, batch_class=batch_class)

    # Changing what was sent ----------------------------------------------------------------------

    @overload
    async def cancel(self, topic: str, *, key: str) -> CancelResult: ...
    @overload
    async def cancel(self, *, id: int) -> CancelResult: ...
    @overload
    async def cancel(self, topic: str, *, keys: Sequence[str]) -> list[CancelResult]: ...
    @overload
    async def cancel(self, *, ids: Sequence[int]) -> list[CancelResult]: ...
    async def cancel(
        self,
        topic: str | None = None,
        *,
        id: int | None = None,
        ids: Sequence[int] | None = None,
        key: str | None = None,
        keys: Sequence[str] | None = None,
    ) -> CancelResult | list[CancelResult]:
        """Takes messages back before they are delivered: by id, or by topic and key.

        The result says truthfully whether it came in time; it is one for ``id`` and ``key``, a list for the
        others.
        """
        targets = _targets(topic, id, ids, key, keys)
        results: list[CancelResult] = []
        for target in targets:
            body = await self._session.request(Cancel(**target))
            assert isinstance(body, CancelOk)
            results += _typed(CancelResult, body.results, target)
        return results[0] if id is not None or key is not None else results

    @overload
    async def reschedule(
        self, topic: str, *, key: str, deliver_at: Moment | None = None, delay: Delay | None = None
    ) -> RescheduleResult: ...
    @overload
    async def reschedule(
        self, *, id: int, deliver_at: Moment | None = None, delay: Delay | None = None
    ) -> RescheduleResult: ...
    @overload
    async def reschedule(
        self,
        topic: str,
        *,
        keys: Sequence[str],
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
    ) -> list[RescheduleResult]: ...
    @overload
    async def reschedule(
        self, *, ids: Sequence[int], deliver_at: Moment | None = None, delay: Delay | None = None
    ) -> list[RescheduleResult]: ...
    async def reschedule(
        self,
        topic: str | None = None,
        *,
        id: int | None = None,
        ids: Sequence[int] | None = None,
        key: str | None = None,
        keys: Sequence[str] | None = None,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
    ) -> RescheduleResult | list[RescheduleResult]:
        """Gives messages that were not delivered yet another time.

        Targets and results are those of ``cancel``.
        """
        targets = _targets(topic, id, ids, key, keys)
        if deliver_at is None and delay is None:
            raise BadTime("No new time was given.", advice="Give deliver_at or delay.")
        time_ms, relative = one_time(deliver_at, delay)
        when: dict[str, Any] = {"delay_ms" if relative else "deliver_at_ms": time_ms}
        results: list[RescheduleResult] = []
        for target in targets:
            body = await self._session.request(Reschedule(**target, **when))
            assert isinstance(body, RescheduleOk)
            results += _typed(RescheduleResult, body.results, target)
        return results[0] if id is not None or key is not None else results

    # Looking -------------------------------------------------------------------------------------

    async def stats(self) -> Stats:
        """The broker's counters."""
        return await self._ask(GetStats(), Stats)

    async def topics(self) -> list[TopicStats]:
        """The topics and their groups."""
        return (await self._ask(GetTopics(), Topics)).topics

    async def wheel(self) -> Wheel:
        """What is due when."""
        return await self._ask(GetWheel(), Wheel)

    async def ping(self) -> float:
        """Seconds that the broker took to answer."""
        asked = anyio.current_time()
        await self._session.request(Ping())
        return anyio.current_time() - asked

    async def query(  # `timeout` goes to the broker: cancelling the wait alone would let the query go on
        self,
        sql: str,
        *,
        limit: int = DEFAULT_QUERY_ROWS,
        timeout: float = 30.0,  # noqa: ASYNC109
    ) -> QueryResult:
        """Asks with SQL: each topic is a table, and ``messages`` is all of them. docs/how-to/query.md has the columns.

        At most ``limit`` rows come back; ``timeout`` is the seconds that the broker may spend on it.
        It needs ``pip install 'tickwheel[query]'`` where the broker runs.
        """
        request, extra_s = query_request(sql, limit, timeout)
        return await self._ask(request, QueryResult, extra_s)

    async def _ask(self, request: Request, struct: type[S], extra_s: float = 0.0) -> S:
        body = await self._session.request(request, extra_s)
        assert isinstance(body, bytes)
        try:
            return msgspec.msgpack.decode(body, type=struct)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"An answer was not understood: {error}.") from None


async def connect(url: str | None = None, **options: Any) -> Client:
    """An open client for code that has no block to put it in; ``await client.close()`` in the same task
    ends it.

    ``async with Client(url)`` is the better way wherever there is a block. ``options`` are those of Client.
    """
    return await Client(url, **options).__aenter__()


def _targets(
    topic: str | None,
    id: int | None,
    ids: Sequence[int] | None,
    key: str | None,
    keys: Sequence[str] | None,
) -> list[dict[str, Any]]:
    given = [value for value in (id, ids, key, keys) if value is not None]
    by_key = key is not None or keys is not None
    if len(given) != 1 or by_key != (topic is not None):
        raise BadArgument(
            "The messages meant are not clear.", advice="Give id=, ids=, or a topic with key= or keys=."
        )
    if topic is not None:
        check_name(topic)
        values: Sequence[Any] = [key] if key is not None else list(keys or ())
        return [{"topic": topic, "keys": chunk} for chunk in _chunks(values)]
    values = [id] if id is not None else list(ids or ())
    return [{"ids": chunk} for chunk in _chunks(values)]


def _chunks(values: Sequence[Any]) -> list[Sequence[Any]]:
    return [values[i : i + MAX_IDS_A_REQUEST] for i in range(0, len(values), MAX_IDS_A_REQUEST)]


def _typed(result: Callable[[str], R], texts: Sequence[str], target: dict[str, Any]) -> list[R]:
    if len(texts) != len(target.get("ids") or target["keys"]):
        raise BadFrame("The number of results is not that of the messages.")
    try:
        return [result(text) for text in texts]
    except ValueError as error:
        raise BadFrame(f"An answer was not understood: {error}.") from None
