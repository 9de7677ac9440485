"""Check-back: producers are asked what becomes of prepared messages that they have not decided about.

For each topic that a producer with a telemetry stream is there for and in which something was prepared, and for each of
the tokens that such producers have, there is a subscription to its prepared messages. In which topics that is, one list
tells for all of a token: most producers prepare nothing, and to ask for each of their topics would be refused again and
again, each time with a line in the broker's log. A check is given to the client that has prepared the message if
it is here, else to another producer of the topic. Nothing is acked: the answer is an EndTransaction, and without one
the broker asks again.

Of several tokens, only clients whose own token may read the prepared messages of a topic are asked about them: what a
client says of its topics, or how it calls itself, is no proof.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from tickwheel import CheckedMessage, Client, ReceiptResult, Subscription
from tickwheel.errors import TickwheelError, UnknownTopic
from tickwheel.protocol.limits import PREPARED_SUFFIX
from tickwheel.sharing.returns import give_back
from tickwheel_gateway.clients.brokers import Brokers
from tickwheel_gateway.clients.registry import ALIVE_S, Known, Registry, Stream
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.messages import Given, Held, client_of, received
from tickwheel_gateway.wire.names import theirs

CREDIT: Final = 1_000
"""So many checks of a topic may be without an answer."""
LOOK_S: Final = 1.0
"""As often it is looked who is there."""
SEND_S: Final = 5.0
"""A client whose socket does not take a check for so long does not get it."""
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 30.0
"""Before it is tried again to subscribe; each time twice as long."""
LISTED_S: Final = 10.0
"""As often the broker is asked in which topics something was prepared."""
_LEAVE_S: Final = 2.0
_PREPARED: Final = "tickwheel-prepared"
"""The header with what a prepared message will be."""

_log = logging.getLogger("tickwheel.gateway.checks")

Checking: TypeAlias = Subscription[CheckedMessage, Any]


class Place(NamedTuple):
    """Where checks come from."""

    topic: str
    """In Tickwheel: the one that the prepared messages are for."""
    token: str


class _Watch:
    """What is done for a place, until no producer is there."""

    def __init__(self) -> None:
        self.is_over = False
        self._scope = trio.CancelScope()

    def end(self) -> None:
        """No producer is there any more."""
        self.is_over = True
        self._scope.cancel()

    @contextmanager
    def until_over(self) -> Iterator[None]:
        """What is done within it ends with the last producer."""
        with trio.CancelScope() as self._scope:
            if self.is_over:
                self._scope.cancel()
            yield


class _List:
    """The topics that a token may know of and for which something was prepared, in Tickwheel."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self.scope = trio.CancelScope()


class Checks:
    """The checks of one process of the gateway."""

    def __init__(self, registry: Registry, brokers: Brokers) -> None:
        self._registry = registry
        self._brokers = brokers
        self._watched: dict[Place, _Watch] = {}
        self._lists: dict[str, _List] = {}
        """By token, of those that a producer has."""
        self._allowed: set[Place] = set()
        """Those that the broker has let subscribe."""
        self._look_now = trio.Event()
        registry.when_gone(self._gone)

    async def run(self) -> None:
        """Until it is cancelled. What goes wrong with one topic is in the log, and is tried again."""
        async with trio.open_nursery() as nursery:
            while True:
                self._look_now = trio.Event()
                self._look(nursery)
                with trio.move_on_after(LOOK_S):
                    await self._look_now.wait()

    async def _gone(self, known: Known) -> None:
        self._look_now.set()

    def _look(self, nursery: trio.Nursery) -> None:
        """Begins and ends what producers have changed."""
        wanted, tokens = set[Place](), set[str]()
        for known in self._registry:
            if known.stream is not None and (known.transactions or sends_to(known)):
                token = known.caller.token
                tokens.add(token)
                listed = self._lists[token].topics if token in self._lists else frozenset()
                wanted.update(
                    Place(topic, token) for topic in known.transactions | (sends_to(known) & listed)
                )
        for place, watch in self._watched.items():
            if place not in wanted:
                watch.end()
        for place in sorted(wanted - self._watched.keys()):
            watch = self._watched[place] = _Watch()
            nursery.start_soon(self._watch, place, watch)
        for token in sorted(self._lists.keys() - tokens):
            self._lists.pop(token).scope.cancel()
        for token in sorted(tokens - self._lists.keys()):
            self._lists[token] = _List()
            nursery.start_soon(self._keep, token, self._lists[token])

    async def _keep(self, token: str, listed: _List) -> None:
        """Until the scope of the list is cancelled. While the broker does not tell, it stays as it was."""
        told = ""
        with listed.scope:
            while True:
                try:
                    async with self._brokers.client(token) as client:
                        names = [one.name for one in await client.topics()]
                    listed.topics = frozenset(
                        name.removesuffix(PREPARED_SUFFIX) for name in names if name.endswith(PREPARED_SUFFIX)
                    )
                    told = ""
                    self._look_now.set()
                except TickwheelError as error:
                    if error.code != told:
                        _log.warning("it is not known where messages are prepared: %s", error)
                    told = error.code
                except Exception:  # a defect that concerns one token must not end the checks of others
                    _log.exception("it is not known where messages are prepared")
                await trio.sleep(LISTED_S)

    # One place ----------------------------------------------------------------------------------------------------

    async def _watch(self, place: Place, watch: _Watch) -> None:
        wait_s, told = FIRST_WAIT_S, ""
        try:
            while not watch.is_over:
                with watch.until_over():
                    problem = await self._try_to_check(place, told)
                    wait_s, told = (FIRST_WAIT_S if problem is None else wait_s), problem or ""
                    await trio.sleep(wait_s)
                    wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        finally:
            del self._watched[place]

    async def _try_to_check(self, place: Place, told: str) -> str | None:
        """None: it went well for a time; else the code of what was wrong, of which the log tells unless it was
        ``told``."""
        try:
            async with self._brokers.client(place.token) as client:
                await self._check(place, client)
            return None
        except UnknownTopic as error:  # it was deleted
            return error.code
        except TickwheelError as error:
            if error.code != told:
                _log.warning("no producer of %s is asked about prepared messages: %s", place.topic, error)
            return error.code
        except Exception as error:  # a defect of one place must not end the others
            _log.exception("no producer of %s is asked about prepared messages", place.topic)
            return type(error).__name__

    async def _check(self, place: Place, client: Client) -> None:
        """Until a check was taken by none. Raises UnknownTopic when the topic of prepared messages is not there."""
        # To subscribe would make the topic of prepared messages, without the times that checks have.
        await client.topic(place.topic + PREPARED_SUFFIX)
        asked: deque[tuple[int, int]] = deque(maxlen=CREDIT)
        async with client.check_prepared(place.topic, credit=CREDIT) as checks:
            self._allowed.add(place)
            try:
                async for message in checks:
                    asked.append((message.id, message.epoch))
                    if not await self._ask(place.topic, message):
                        break
                    # Its answer comes another way; without one the message comes again.
                    message.acks.let_go(*message.receipts)
            finally:
                self._allowed.discard(place)
                returned = partial(_leave, checks, asked)
                await give_back(_log, len(asked), place.topic, returned, within_s=_LEAVE_S)

    async def _ask(self, topic: str, message: CheckedMessage) -> bool:
        """Whether some client has taken the check, or none can ever."""
        if message.key is None:
            return True  # no producer of RocketMQ could name it
        try:
            held = _held(message, message.key)
            for known in self._producers(topic, client_of(held.headers)):
                if known.stream is not None:
                    command = _command(held, topic, message.epoch, known)
                    if await _tell(known.stream, command):
                        return True
        except Exception:  # headers are what its sender has written
            _log.exception("no producer can be asked about message %d of %s", message.id, message.topic)
            return True
        return False

    def _producers(self, topic: str, client_id: str) -> Iterator[Known]:
        """That can be asked: first the one that has prepared the message, and last those that are silent."""
        found = self._registry.with_stream(
            lambda one: one.client_id == client_id or topic in one.transactions or topic in sends_to(one)
        )
        silent_since = trio.current_time() - ALIVE_S  # a program that hangs keeps its stream
        for known in sorted(found, key=lambda one: (one.heard < silent_since, one.client_id != client_id)):
            if self._may_be_asked(known, topic):
                yield known

    def _may_be_asked(self, known: Known, topic: str) -> bool:
        return Place(topic, known.caller.token) in self._allowed


def sends_to(known: Known) -> frozenset[str]:
    """Topics that a client says it is a producer of, in Tickwheel."""
    return frozenset() if known.declared is None else known.declared.sends_to


def _held(message: CheckedMessage, key: str) -> Held:
    """The message that it will be, once it is committed. Raises whatever its headers are not as they should be."""
    headers = message.headers
    due_ms = headers.pop(_PREPARED)["deliver_at_ms"] or message.created_ms
    return Held(
        id=message.id,
        key=key,
        body=message.body,
        headers=headers,
        deliver_at_ms=due_ms,
        created_ms=message.created_ms,
        order_key=message.order_key,
    )


def _command(held: Held, topic: str, check: int, known: Known) -> bytes:
    """A TelemetryCommand. ``check``: the number of it."""
    host, port = known.caller.local
    given = Given({"name": theirs(topic)}, f"{host}:{port}", attempt=check, is_check=True)
    command = schema.TelemetryCommand()
    recover = command.recover_orphaned_transaction_command
    recover.message.CopyFrom(received(held, given))
    recover.transaction_id = held.key
    return bytes(command.SerializeToString())


async def _tell(stream: Stream, command: bytes) -> bool:
    with trio.move_on_after(SEND_S):
        return await stream.send(command)
    return False


async def _leave(checks: Checking, asked: deque[tuple[int, int]]) -> list[ReceiptResult]:
    """What was asked and is not decided goes to others at once: that a client was asked who has gone does not count."""
    with suppress(TickwheelError):  # there is no connection: then nothing more comes
        await checks.stop()
    ids, epochs = [one[0] for one in asked], [one[1] for one in asked]
    await checks.acks.give_back(ids, epochs)
    return []  # most of them are decided, and refused for that
