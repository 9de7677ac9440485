"""The requests that are not bulk traffic: each handler does one and hands its answer to the connection.

Every answer waits until what it tells of (a topic, a cancellation, a figure) is on disk, as sends do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from tickwheel.protocol.bodies.admin import (
    Browse,
    Decide,
    DeleteTopic,
    Drop,
    GetTopic,
    Prepare,
    Purge,
    ReplayDead,
    SetTopic,
)
from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.bulk import AdoptJob, PlanJob, ReserveIds
from tickwheel.protocol.bodies.groups import CreateGroup, DeleteGroup, GetGroups, GetMessages, SeekGroup
from tickwheel.protocol.bodies.requests import (
    Cancel,
    GetStats,
    GetTopics,
    GetWheel,
    OpenTopic,
    OpenTopicOk,
    Ping,
    Query,
    Reschedule,
    SetCredit,
    SetCreditOk,
    Subscribe,
    SubscribeOk,
    Unsubscribe,
    UnsubscribeOk,
    encode_body,
    encode_map,
)
from tickwheel.protocol.bodies.schedules import DeleteSchedule, GetSchedules, SetSchedule, TriggerSchedule
from tickwheel.protocol.bodies.settling import Change, Extend, Nack, Redeliver, Return, ReturnOk, Transaction
from tickwheel.protocol.errors import BadRequest, CreditTooLarge, TooManySubscriptions, UnknownShard
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel.protocol.identity import RequestIdentity
from tickwheel_broker.background import bulk_jobs as adopting
from tickwheel_broker.background import purge as purging
from tickwheel_broker.broker import RELEASE_STEP
from tickwheel_broker.delivery import Subscription
from tickwheel_broker.requests import changes, groups, topics
from tickwheel_broker.requests import remembered as remembering
from tickwheel_broker.requests import schedules as schedule_requests
from tickwheel_broker.requests import space as dropping
from tickwheel_broker.requests.answers import Caller, check_name, frame_of, when_durable
from tickwheel_broker.security import rights
from timerlog.errors import UnknownGroup

if TYPE_CHECKING:
    from tickwheel_broker.broker import Broker


_TOPICS_STEP = 256


def answer(
    caller: Caller, correlation: int, request: Request, identity: RequestIdentity | None = None
) -> None:
    """Carry out one request, or answer it again. Raises TickwheelError or StoreError if it is refused."""
    if caller.rights is not None:
        request = rights.admit(caller.rights, request)
    handle = _HANDLERS[type(request)]
    if identity is None:
        handle(caller, correlation, request)
    elif not remembering.carry_out(caller, correlation, request, identity, handle):
        return
    if type(request) in rights.AUDITED:
        caller.tell_of(request)


def _ping(caller: Caller, correlation: int, request: Ping) -> None:
    caller.outgoing.put(encode_frame(FrameType.PONG, correlation))


def _open_topic(caller: Caller, correlation: int, request: OpenTopic) -> None:
    created = request.topic not in caller.broker.store.tables.topic_ids
    topic_id = _topic_id(caller.broker, request.topic, create=request.create)
    when_durable(caller, correlation, request, OpenTopicOk(topic_id, created))


def _topic_id(broker: Broker, name: str, *, create: bool) -> int:
    check_name(name, "topic")
    create = create and broker.settings.auto_create_topics
    return broker.store.open_topic(name, broker.clock.now_ms(), create=create)


def _subscribe(caller: Caller, correlation: int, request: Subscribe) -> None:
    broker = caller.broker
    check_name(request.group, "group")
    _check_credit(broker, request)
    if broker.held_subscriptions >= broker.settings.max_subscriptions:
        raise TooManySubscriptions
    is_new_topic = request.topic not in broker.store.tables.topic_ids
    whole_id = _topic_id(broker, request.topic, create=True)
    is_new_group = request.group not in broker.store.tables.topics[whole_id].groups
    topic_id = _shard(broker, request, whole_id)
    group_id = _open_group(broker, topic_id, request)
    subscription = Subscription(
        number=caller.next_subscription_number(),
        group_id=group_id,
        group_ids=broker.store.parts_of(group_id),
        holder=broker.store.acquire_holder(group_id),
        credit=request.credit,
        batch=request.batch,
        outgoing=caller.outgoing,
    )
    caller.subscriptions[subscription.number] = subscription
    broker.held_subscriptions += 1
    broker.readers.joined(group_id)
    ack_wait_ms = broker.store.ack_wait_ms(group_id)
    subscription.lease_told_ms = ack_wait_ms if request.holds else 0
    body = SubscribeOk(subscription.number, group_id, topic_id, ack_wait_ms, is_new_topic, is_new_group)
    frame = frame_of(correlation, Subscribe, encode_body(body))

    def start(reply: bytes) -> None:
        """Deliver only after SUBSCRIBE_OK: the client cannot know the number before."""
        if caller.subscriptions.get(subscription.number) is subscription:
            caller.outgoing.put(reply)
            if not subscription.is_leaving:
                broker.tell_of_leases([subscription])
                broker.delivery.add(subscription)

    broker.commit.when_durable(broker.store.appended_position, start, frame)


def _open_group(broker: Broker, topic_id: int, request: Subscribe) -> int:
    try:
        return broker.store.open_group(
            topic_id,
            request.group,
            broker.clock.now_ms(),
            request.start,
            create=broker.settings.auto_create_groups,
            ephemeral_ms=request.ephemeral_ms,
        )
    except UnknownGroup as error:
        error.advice = (
            "Create it first (`tickwheel groups create`), or set auto_create_groups = true on the broker."
        )
        raise


def _check_credit(broker: Broker, request: Subscribe | SetCredit) -> None:
    if request.credit > broker.settings.max_credit:
        raise CreditTooLarge(
            f"A credit of {request.credit:,} is more than max_credit, {broker.settings.max_credit:,}."
        )


def _set_credit(caller: Caller, correlation: int, request: SetCredit) -> None:
    broker, subscription = caller.broker, caller.subscriptions.get(request.subscription)
    if subscription is None:
        raise BadRequest(f"This connection has no subscription {request.subscription}.")
    _check_credit(broker, request)
    subscription.credit = request.credit
    broker.delivery.wake_holder(subscription.holder)
    when_durable(caller, correlation, request, SetCreditOk(request.credit))


def _shard(broker: Broker, request: Subscribe, topic_id: int) -> int:
    """The topic itself, or the one shard of it that is asked for. Its group must be that of all shards, too."""
    if request.shard is None:
        return topic_id
    shard_id = broker.store.tables.topic_ids.get(f"{request.topic}/{request.shard}")
    if shard_id is None:
        shards = broker.store.describe_topic(request.topic)["shards"]
        raise UnknownShard(
            f"{request.topic!r} has no shard {request.shard!r}; it has {', '.join(shards) or 'none at all'}."
        )
    _open_group(broker, topic_id, request)
    return shard_id


def _unsubscribe(caller: Caller, correlation: int, request: Unsubscribe) -> None:
    subscription = caller.subscriptions.pop(request.subscription, None)
    if subscription is None:
        raise BadRequest(f"This connection has no subscription {request.subscription}.")
    broker = caller.broker
    if broker.store.outstanding(subscription.holder) <= RELEASE_STEP:
        when_durable(caller, correlation, request, UnsubscribeOk(broker.give_back(subscription)))
        return
    give_back = broker.give_back_in_steps(subscription)

    async def work() -> UnsubscribeOk:
        return UnsubscribeOk(await give_back())

    caller.answer_later(correlation, request, work)


def _return(caller: Caller, correlation: int, request: Return) -> None:
    subscription = caller.subscriptions.get(request.subscription)
    if subscription is None:
        raise BadRequest(f"This connection has no subscription {request.subscription}.")
    returned = caller.broker.return_unseen(subscription, request.ids, request.epochs)
    when_durable(caller, correlation, request, ReturnOk(returned))


def _stats(caller: Caller, correlation: int, request: GetStats) -> None:
    when_durable(caller, correlation, request, encode_map(caller.broker.stats()))


def _topics(caller: Caller, correlation: int, request: GetTopics) -> None:
    """A few topics at a time: there may be thousands."""
    broker, identity = caller.broker, caller.identity

    async def work() -> bytes:
        topics: list[dict[str, Any]] = []
        async with broker.looking:
            for topic_id in list(broker.store.tables.topics):
                topic = broker.store.tables.topics.get(topic_id)
                if topic is not None and identity.sees(topic.record.name):
                    topics.append(broker.topic_entry(topic_id))
                if topic_id % _TOPICS_STEP == 0:
                    await trio.lowlevel.checkpoint()
        return encode_map({"topics": topics})

    caller.answer_later(correlation, request, work)


def _wheel(caller: Caller, correlation: int, request: GetWheel) -> None:
    """A piece at a time: there may be millions of timers."""
    broker = caller.broker

    async def work() -> bytes:
        return encode_map(await broker.forecasts.picture(request.horizons))

    caller.answer_later(correlation, request, work)


def _query(caller: Caller, correlation: int, request: Query) -> None:
    caller.start_soon(caller.broker.queries.answer, caller.outgoing, correlation, request)


_HANDLERS: dict[type[Request], Callable[[Caller, int, Any], None]] = {
    Ping: _ping,
    OpenTopic: _open_topic,
    Subscribe: _subscribe,
    Unsubscribe: _unsubscribe,
    Return: _return,
    SetCredit: _set_credit,
    Cancel: changes.cancel,
    Reschedule: changes.reschedule,
    Redeliver: changes.redeliver,
    Nack: changes.nack,
    Extend: changes.extend,
    Change: changes.change,
    Transaction: changes.transaction,
    SetTopic: topics.set_topic,
    GetTopic: topics.get_topic,
    DeleteTopic: topics.delete_topic,
    Browse: topics.browse,
    ReplayDead: topics.replay_dead,
    Purge: purging.purge,
    Drop: dropping.drop,
    PlanJob: adopting.plan_job,
    ReserveIds: adopting.reserve_ids,
    AdoptJob: adopting.adopt_job,
    Prepare: topics.prepare,
    Decide: topics.decide,
    GetSchedules: schedule_requests.list_schedules,
    SetSchedule: schedule_requests.set_schedule,
    DeleteSchedule: schedule_requests.delete_schedule,
    TriggerSchedule: schedule_requests.trigger_schedule,
    GetGroups: groups.list_groups,
    CreateGroup: groups.create_group,
    DeleteGroup: groups.delete_group,
    SeekGroup: groups.seek_group,
    GetMessages: groups.get_messages,
    GetStats: _stats,
    GetTopics: _topics,
    GetWheel: _wheel,
    Query: _query,
}
