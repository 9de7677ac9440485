"""The requests that are not bulk traffic: each handler does one and hands its answer to the connection.

Answers that promise something (a topic, a group, a cancellation) wait until it is on disk, as sends do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from broker.delivery import Subscription
from broker.outgoing import Outgoing
from tickwheel.protocol.errors import BadRequest, BadTopicName, TooManySubscriptions
from tickwheel.protocol.frames import ANSWER_OF, FrameType, encode_frame
from tickwheel.protocol.limits import is_valid_name
from tickwheel.protocol.requests import (
    FRAME_TYPE_OF_REQUEST,
    Answer,
    Cancel,
    CancelOk,
    GetStats,
    GetTopics,
    GetWheel,
    OpenTopic,
    OpenTopicOk,
    Ping,
    Query,
    Request,
    Reschedule,
    RescheduleOk,
    Subscribe,
    SubscribeOk,
    Unsubscribe,
    UnsubscribeOk,
    encode_body,
    encode_map,
)

if TYPE_CHECKING:
    from broker.core import Broker


class Caller(Protocol):
    """What a handler needs of the connection that asks."""

    broker: Broker
    outgoing: Outgoing
    subscriptions: dict[int, Subscription]

    @property
    def is_gone(self) -> bool:
        """Whether the connection has ended."""

    def start_soon(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run something that takes time; it is cancelled when the connection ends."""

    def next_subscription_number(self) -> int:
        """A number that no other subscription of this connection has."""


def answer(caller: Caller, correlation: int, request: Request) -> None:
    """Carry out one request. Raises TickwheelError or StoreError if it is refused."""
    _HANDLERS[type(request)](caller, correlation, request)


def _frame(correlation: int, request: type[Request], payload: bytes) -> bytes:
    return encode_frame(ANSWER_OF[FRAME_TYPE_OF_REQUEST[request]], correlation, payload)


def _at_once(caller: Caller, correlation: int, request: Request, payload: bytes) -> None:
    caller.outgoing.put(_frame(correlation, type(request), payload))


def _when_durable(caller: Caller, correlation: int, request: Request, body: Answer) -> None:
    broker = caller.broker
    frame = _frame(correlation, type(request), encode_body(body))
    broker.commit.when_durable(broker.store.appended_position, caller.outgoing.put, frame)


def _check_name(name: str, what: str) -> None:
    if not is_valid_name(name):
        raise BadTopicName(f"{name!r} is not a valid name of a {what}.")


def _ping(caller: Caller, correlation: int, request: Ping) -> None:
    caller.outgoing.put(encode_frame(FrameType.PONG, correlation))


def _open_topic(caller: Caller, correlation: int, request: OpenTopic) -> None:
    topic_id = _topic_id(caller.broker, request.topic, create=request.create)
    _when_durable(caller, correlation, request, OpenTopicOk(topic_id))


def _topic_id(broker: Broker, name: str, *, create: bool) -> int:
    _check_name(name, "topic")
    create = create and broker.settings.auto_create_topics
    return broker.store.open_topic(name, broker.clock.now_ms(), create=create)


def _subscribe(caller: Caller, correlation: int, request: Subscribe) -> None:
    broker = caller.broker
    _check_name(request.group, "group")
    if broker.held_subscriptions >= broker.settings.max_subscriptions:
        raise TooManySubscriptions
    topic_id = _topic_id(broker, request.topic, create=True)
    group_id = broker.store.open_group(topic_id, request.group, broker.clock.now_ms())
    subscription = Subscription(
        number=caller.next_subscription_number(),
        group_id=group_id,
        holder=broker.store.acquire_holder(group_id),
        credit=request.credit,
        batch=request.batch,
        outgoing=caller.outgoing,
    )
    caller.subscriptions[subscription.number] = subscription
    broker.held_subscriptions += 1
    body = SubscribeOk(subscription.number, group_id, topic_id, broker.settings.ack_wait_ms)
    frame = _frame(correlation, Subscribe, encode_body(body))

    def start(reply: bytes) -> None:
        """Deliver only after SUBSCRIBE_OK: the client cannot know the number before."""
        if caller.subscriptions.get(subscription.number) is subscription:
            caller.outgoing.put(reply)
            broker.delivery.add(subscription)

    broker.commit.when_durable(broker.store.appended_position, start, frame)


def _unsubscribe(caller: Caller, correlation: int, request: Unsubscribe) -> None:
    subscription = caller.subscriptions.pop(request.subscription, None)
    if subscription is None:
        raise BadRequest(f"This connection has no subscription {request.subscription}.")
    released = caller.broker.give_back(subscription)
    _when_durable(caller, correlation, request, UnsubscribeOk(released))


def _cancel(caller: Caller, correlation: int, request: Cancel) -> None:
    broker = caller.broker
    results = broker.store.cancel(_targets(broker, request), broker.clock.now_ms())
    _when_durable(caller, correlation, request, CancelOk(results))


def _reschedule(caller: Caller, correlation: int, request: Reschedule) -> None:
    broker = caller.broker
    now_ms = broker.clock.now_ms()
    deliver_at_ms = request.deliver_at_ms if request.delay_ms is None else now_ms + request.delay_ms
    assert deliver_at_ms is not None, "the request's own check leaves one of the two"
    results = broker.store.reschedule(_targets(broker, request), deliver_at_ms, now_ms)
    broker.services.timers_changed()
    _when_durable(caller, correlation, request, RescheduleOk(results))


def _targets(broker: Broker, request: Cancel | Reschedule) -> list[int]:
    """The ids that a request means; 0, which no message has, for a key that is not known."""
    if request.ids is not None:
        return request.ids
    assert request.topic is not None, "the request's own check leaves ids, or topic and keys"
    assert request.keys is not None, "the request's own check leaves ids, or topic and keys"
    _check_name(request.topic, "topic")
    return broker.store.find(request.topic, request.keys)


def _stats(caller: Caller, correlation: int, request: GetStats) -> None:
    _at_once(caller, correlation, request, encode_map(caller.broker.stats()))


def _topics(caller: Caller, correlation: int, request: GetTopics) -> None:
    _at_once(caller, correlation, request, encode_map(caller.broker.topics()))


def _wheel(caller: Caller, correlation: int, request: GetWheel) -> None:
    broker = caller.broker
    _at_once(caller, correlation, request, encode_map(broker.store.wheel_picture(broker.clock.now_ms())))


def _query(caller: Caller, correlation: int, request: Query) -> None:
    caller.start_soon(caller.broker.queries.answer, caller.outgoing, correlation, request)


_HANDLERS: dict[type[Request], Callable[[Caller, int, Any], None]] = {
    Ping: _ping,
    OpenTopic: _open_topic,
    Subscribe: _subscribe,
    Unsubscribe: _unsubscribe,
    Cancel: _cancel,
    Reschedule: _reschedule,
    GetStats: _stats,
    GetTopics: _topics,
    GetWheel: _wheel,
    Query: _query,
}
