"""One connection: which requests are open on it, which topics and subscriptions it knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from tickwheel.client.calls import Call, Line, RequestCall, SendCall
from tickwheel.client.forks import let_go
from tickwheel.client.waiting.waits import Scope
from tickwheel.protocol.bodies.requests import OpenTopic, OpenTopicOk
from tickwheel.protocol.errors import ConnectionDenied, RemoteProtocolError, TickwheelError
from tickwheel.protocol.machine import AnswerBody, ClientMachine
from tickwheel.protocol.messages import Delivery

_CREATED_REMEMBERED_MAX: Final = 100


class Receiver(Protocol):
    """A subscription, as the connection sees it that brings its messages."""

    def resubscribe_call(self) -> Call:
        """The request that renews it on a new connection."""

    def delivered(self, delivery: Delivery) -> None:
        """Takes a batch from the connection."""

    def revoked(self, ids: Sequence[int], epochs: Sequence[int]) -> None:
        """Messages were stopped or called back."""

    def lease_told(self, ack_wait_ms: int) -> None:
        """Leases of what is delivered from now on last so long."""

    def connection_lost(self) -> None:
        """The connection broke. What it has stays leased to it."""

    def forked(self, error: TickwheelError) -> None:
        """This process is a child of the one whose subscription it is."""

    def fail(self, error: TickwheelError) -> None:
        """It cannot go on."""


class OpenTopicCall(RequestCall):
    """Asks for a topic's number; the sends that wait for it go, or fail, with the answer."""

    __slots__ = ("_link", "topic")

    def __init__(self, topic: str, link: Link) -> None:
        super().__init__(OpenTopic(topic=topic, create=True))
        self.bound = True
        self.topic = topic
        self._link = link

    def answered(self, body: AnswerBody) -> None:
        assert isinstance(body, OpenTopicOk)
        self._link.topic_opened(self.topic, body.topic_id, created=body.created)

    def failed(self, error: TickwheelError) -> None:
        self._link.topic_refused(self.topic, error)


class HasDescriptor(Protocol):
    """A socket."""

    def fileno(self) -> int:
        """Its descriptor; -1 when it is closed."""


class Link:
    """The state that dies with a connection.

    ``line`` takes the requests that come of it; ``created_topics`` is told of topics that its sends made.
    """

    def __init__(self, line: Line, created_topics: list[str], opened_at: float, scope: Scope) -> None:
        self.machine = ClientMachine()
        self.pending: dict[int, Call] = {}
        self.refused: dict[int, Call] = {}
        """What the server did not take because it stops or does not serve: it goes again, in its old order."""
        self.subscriptions: dict[int, Receiver] = {}
        self.ready = False
        """The handshake is done."""
        self.tells_differences = False
        """Whether the server can tell that a duplicate is another message under the same key."""
        self.draining = False
        """The server is stopping: nothing new is written here, only answers are awaited."""
        self.broken: BaseException | None = None
        """Why the connection ended."""
        self.is_silent = False
        """It ended because the server said nothing."""
        self.opened_at = opened_at
        self.heard_at = opened_at
        """When bytes last arrived (loop time)."""
        self.pinged_at = opened_at
        self.scope = scope
        """Cancelling it ends the connection."""
        self.socket: HasDescriptor | None = None
        """What it goes over. Not its number: that of a closed one may be another file's."""
        self._line = line
        self._created_topics = created_topics
        self._topic_ids: dict[str, int] = {}
        self._parked: dict[str, list[SendCall]] = {}

    def knows_topic(self, topic: str) -> bool:
        """Whether sends to the topic can be written at once."""
        return topic in self._topic_ids

    def known_topic_id(self, topic: str) -> int | None:
        """The number of a topic, if the server has told it."""
        return self._topic_ids.get(topic)

    def topic_id(self, call: SendCall) -> int | None:
        """The number of the call's topic. None: the call was parked until the server has told."""
        topic_id = self._topic_ids.get(call.topic)
        if topic_id is not None:
            return topic_id
        parked = self._parked.get(call.topic)
        if parked is None:
            self._parked[call.topic] = [call]
            self._line.submit(OpenTopicCall(call.topic, self))
        else:
            parked.append(call)
        return None

    def topic_opened(self, topic: str, topic_id: int, *, created: bool = False) -> None:
        """The server told the number of a topic."""
        if created and len(self._created_topics) < _CREATED_REMEMBERED_MAX:
            self._created_topics.append(topic)
        self._topic_ids[topic] = topic_id
        self._line.requeue(self._parked.pop(topic, []))

    def topic_refused(self, topic: str, error: TickwheelError) -> None:
        """The server refused to open a topic: the sends that wait for it fail."""
        for call in self._parked.pop(topic, ()):
            self._line.fail(call, error)

    def forget_topic(self, topic: str) -> None:
        """The server does not know the number any more: ask again at the next send."""
        self._topic_ids.pop(topic, None)

    def ask_again(self, call: SendCall) -> bool:
        """Nothing of a send was stored, because its topic was deleted: it waits, once, for the number of the one that
        the server makes or has made since. False if it must fail."""
        if call.topic_gone or call.abandoned:
            return False
        call.topic_gone, call.written = True, False
        self.topic_id(call)
        return True

    def take_parked(self) -> list[SendCall]:
        """Gives up the sends that wait for the number of their topic, in order."""
        parked, self._parked = self._parked, {}
        return [call for calls in parked.values() for call in calls]

    def break_with(self, error: BaseException) -> None:
        """Remembers the first reason why the connection ended."""
        if self.broken is None:
            self.broken = error

    def let_go(self) -> None:
        """This process is a child of the one whose connection it is."""
        if self.socket is not None and (descriptor := self.socket.fileno()) >= 0:
            let_go(descriptor)

    @property
    def refused_for_good(self) -> bool:
        """The server will not talk to this client, however often it tries."""
        error = self.broken
        refused = isinstance(error, TickwheelError) and not error.retryable
        return refused and (isinstance(error, RemoteProtocolError | ConnectionDenied) or not self.ready)
