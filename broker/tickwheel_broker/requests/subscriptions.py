"""Requests about the subscriptions of the connection that asks: begin, change, return what was not looked at, end."""

from __future__ import annotations

from tickwheel.protocol.bodies.requests import (
    SetCredit,
    SetCreditOk,
    Subscribe,
    SubscribeOk,
    Unsubscribe,
    UnsubscribeOk,
    encode_body,
)
from tickwheel.protocol.bodies.settling import Return, ReturnOk
from tickwheel.protocol.errors import BadRequest, CreditTooLarge, TooManySubscriptions, UnknownShard
from tickwheel_broker.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.delivery import Delivery, Subscription
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.requests.answers import Answers, check_name, frame_of
from tickwheel_broker.requests.caller import Caller
from tickwheel_broker.requests.topics import open_topic
from tickwheel_broker.subscriptions import RELEASE_STEP, Subscriptions
from timerlog.commitlog.log import CommitLog
from timerlog.engine.groups import Groups
from timerlog.engine.look import Look
from timerlog.engine.topics import Topics
from timerlog.errors import UnknownGroup
from timerlog.tables.tables import Tables


class SubscriptionRequests:
    """A subscription ends with its connection; requests of other ones do not reach it."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        look: Look,
        tables: Tables,
        log: CommitLog,
        clock: Clock,
        settings: Settings,
        commit: GroupCommit,
        delivery: Delivery,
        subscriptions: Subscriptions,
        answers: Answers,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._look = look
        self._tables = tables
        self._log = log
        self._clock = clock
        self._settings = settings
        self._commit = commit
        self._delivery = delivery
        self._subscriptions = subscriptions
        self._answers = answers

    def subscribe(self, caller: Caller, correlation: int, request: Subscribe) -> None:
        """SUBSCRIBE."""
        tables = self._tables
        check_name(request.group, "group")
        self._check_credit(request)
        if self._subscriptions.held >= self._settings.max_subscriptions:
            raise TooManySubscriptions
        is_new_topic = request.topic not in tables.topic_ids
        whole_id = open_topic(self._topics, self._settings, request.topic, self._clock.now_ms(), create=True)
        is_new_group = request.group not in tables.topics[whole_id].groups
        topic_id = self._shard(request, whole_id)
        group_id = self._open_group(topic_id, request)
        subscription = self._subscriptions.begin(
            number=caller.next_subscription_number(),
            group_id=group_id,
            credit=request.credit,
            batch=request.batch,
            outgoing=caller.outgoing,
        )
        caller.subscriptions[subscription.number] = subscription
        ack_wait_ms = self._subscriptions.ack_wait_ms(group_id)
        subscription.lease_told_ms = ack_wait_ms if request.holds else 0
        body = SubscribeOk(subscription.number, group_id, topic_id, ack_wait_ms, is_new_topic, is_new_group)

        def start(reply: bytes) -> None:
            """Deliver only after SUBSCRIBE_OK: the client cannot know the number before."""
            if caller.subscriptions.get(subscription.number) is subscription:
                caller.outgoing.put(reply)
                self._subscriptions.start(subscription)

        frame = frame_of(correlation, Subscribe, encode_body(body))
        self._commit.when_durable(self._log.appended_position, start, frame)

    def _shard(self, request: Subscribe, topic_id: int) -> int:
        """The topic itself, or the one shard of it that is asked for. Its group must be that of all shards, too."""
        if request.shard is None:
            return topic_id
        shard_id = self._tables.topic_ids.get(f"{request.topic}/{request.shard}")
        if shard_id is None:
            shards = self._look.describe_topic(request.topic)["shards"]
            raise UnknownShard(
                f"{request.topic!r} has no shard {request.shard!r}; it has {', '.join(shards) or 'none at all'}."
            )
        self._open_group(topic_id, request)
        return shard_id

    def _open_group(self, topic_id: int, request: Subscribe) -> int:
        try:
            return self._groups.open(
                topic_id,
                request.group,
                self._clock.now_ms(),
                request.start,
                create=self._settings.auto_create_groups,
                ephemeral_ms=request.ephemeral_ms,
            )
        except UnknownGroup as error:
            error.advice = (
                "Create it first (`tickwheel groups create`), or set auto_create_groups = true on the broker."
            )
            raise

    def set_credit(self, caller: Caller, correlation: int, request: SetCredit) -> None:
        """CREDIT."""
        subscription = _own(caller, request.subscription)
        self._check_credit(request)
        subscription.credit = request.credit
        self._delivery.wake_holder(subscription.holder)
        self._answers.when_durable(caller, correlation, request, SetCreditOk(request.credit))

    def _check_credit(self, request: Subscribe | SetCredit) -> None:
        if request.credit > self._settings.max_credit:
            raise CreditTooLarge(
                f"A credit of {request.credit:,} is more than max_credit, {self._settings.max_credit:,}."
            )

    def give_back(self, caller: Caller, correlation: int, request: Return) -> None:
        """RETURN."""
        subscription = _own(caller, request.subscription)
        returned = self._subscriptions.return_unseen(subscription, request.ids, request.epochs)
        self._answers.when_durable(caller, correlation, request, ReturnOk(returned))

    def unsubscribe(self, caller: Caller, correlation: int, request: Unsubscribe) -> None:
        """UNSUBSCRIBE: with many messages in steps, beside everything else."""
        subscription = _own(caller, request.subscription)
        del caller.subscriptions[request.subscription]
        if self._subscriptions.outstanding(subscription) <= RELEASE_STEP:
            released = self._subscriptions.give_back(subscription)
            self._answers.when_durable(caller, correlation, request, UnsubscribeOk(released))
            return
        give_back = self._subscriptions.give_back_in_steps(subscription)

        async def work() -> UnsubscribeOk:
            return UnsubscribeOk(await give_back())

        caller.answer_later(correlation, request, work)


def _own(caller: Caller, number: int) -> Subscription:
    subscription = caller.subscriptions.get(number)
    if subscription is None:
        raise BadRequest(f"This connection has no subscription {number}.")
    return subscription
