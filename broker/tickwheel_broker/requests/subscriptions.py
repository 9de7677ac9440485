"""Requests about the subscriptions of the connection that asks: begin, change, return what was not looked at, end; and
about messages that are asked for once, without one."""

from __future__ import annotations

import trio

from tickwheel.protocol.bodies.fetching import EndFetch, EndFetchOk, Fetch
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
from tickwheel.protocol.errors import (
    BadRequest,
    CreditTooLarge,
    ShuttingDown,
    TooManySubscriptions,
    UnknownShard,
)
from tickwheel.protocol.messages import encode_no_messages
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.delivery.delivery import Delivery
from tickwheel_broker.delivery.subscriptions import RELEASE_STEP, Fetches, Subscriptions
from tickwheel_broker.delivery.takers import Fetching, Subscription
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.lifetime import Lifetime
from tickwheel_broker.requests.answers import Asked, check_name, frame_of
from tickwheel_broker.requests.caller import Caller, Work
from tickwheel_broker.requests.topics import open_group, open_topic
from timerlog.commitlog.log import CommitLog
from timerlog.engine.deliver import AsAnswer
from timerlog.engine.groups import Groups
from timerlog.engine.look import Look
from timerlog.engine.state import check_time
from timerlog.engine.topics import Topics
from timerlog.tables.tables import Tables


class SubscriptionRequests:
    """A subscription ends with its connection; requests of other ones do not reach it."""

    def __init__(
        self,
        *,
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

    def subscribe(self, request: Subscribe, asked: Asked) -> None:
        """SUBSCRIBE."""
        tables, caller = self._tables, asked.caller
        check_name(request.group, "group")
        self._check_credit(request)
        if self._subscriptions.held >= self._settings.max_subscriptions:
            raise TooManySubscriptions
        is_new_topic = request.topic not in tables.topic_ids
        now_ms = self._clock.now_ms()
        whole_id = open_topic(self._topics, self._settings, caller.identity, request.topic, now_ms)
        is_new_group = request.group not in tables.topics[whole_id].groups
        topic_id = self._shard(request, whole_id)
        group_id = self._open_group(topic_id, request)
        subscription = self._subscriptions.begin(
            number=caller.next_subscription_number(),
            group_id=group_id,
            credit=request.credit,
            batch=request.batch,
            outgoing=caller.outgoing,
            pulse=caller.pulse,
            tells_attempts=request.attempts,
        )
        caller.pulse.answers_probes |= request.probes
        caller.subscriptions[subscription.number] = subscription
        ack_wait_ms = self._subscriptions.ack_wait_ms(group_id)
        subscription.lease_told_ms = ack_wait_ms if request.holds else 0
        body = SubscribeOk(subscription.number, group_id, topic_id, ack_wait_ms, is_new_topic, is_new_group)

        def start(reply: bytes) -> None:
            """Deliver only after SUBSCRIBE_OK: the client cannot know the number before."""
            if caller.subscriptions.get(subscription.number) is subscription:
                caller.outgoing.put(reply)
                self._subscriptions.start(subscription)

        frame = frame_of(asked.correlation, Subscribe, encode_body(body))
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
        return open_group(
            self._groups,
            self._settings,
            topic_id,
            request.group,
            self._clock.now_ms(),
            request.start,
            ephemeral_ms=request.ephemeral_ms,
        )

    def set_credit(self, request: SetCredit, asked: Asked) -> SetCreditOk:
        """CREDIT."""
        subscription = _own(asked.caller, request.subscription)
        self._check_credit(request)
        subscription.credit = request.credit
        self._delivery.wake_holder(subscription.holder)
        return SetCreditOk(request.credit)

    def _check_credit(self, request: Subscribe | SetCredit) -> None:
        if request.credit > self._settings.max_credit:
            raise CreditTooLarge(
                f"A credit of {request.credit:,} is more than max_credit, {self._settings.max_credit:,}."
            )

    def give_back(self, request: Return, asked: Asked) -> ReturnOk:
        """RETURN of a subscription."""
        assert request.subscription is not None, "the table sends the others elsewhere"
        subscription = _own(asked.caller, request.subscription)
        returned = self._subscriptions.return_unseen(subscription, request.ids, request.epochs)
        return ReturnOk(returned)

    def unsubscribe(self, request: Unsubscribe, asked: Asked) -> UnsubscribeOk | Work:
        """UNSUBSCRIBE: with many messages in steps, beside everything else."""
        subscription = _own(asked.caller, request.subscription)
        del asked.caller.subscriptions[request.subscription]
        if self._subscriptions.outstanding(subscription) <= RELEASE_STEP:
            return UnsubscribeOk(self._subscriptions.give_back(subscription))
        give_back = self._subscriptions.give_back_in_steps(subscription)

        async def work() -> UnsubscribeOk:
            return UnsubscribeOk(await give_back())

        return work


class FetchRequests:
    """One that waits ends with its connection; requests of other ones do not reach it."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        clock: Clock,
        settings: Settings,
        commit: GroupCommit,
        lifetime: Lifetime,
        subscriptions: Subscriptions,
        fetches: Fetches,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._settings = settings
        self._commit = commit
        self._lifetime = lifetime
        self._subscriptions = subscriptions
        self._fetches = fetches

    def fetch(self, request: Fetch, asked: Asked) -> bytes | None:
        """FETCH: at once what is ready, else it waits beside everything else. What it is given is the answer."""
        now_ms, caller = self._clock.now_ms(), asked.caller
        check_name(request.group, "group")
        if request.count > self._settings.max_credit:
            raise CreditTooLarge(
                f"{request.count:,} messages are more than max_credit, {self._settings.max_credit:,}."
            )
        if request.lease_ms is not None:
            check_time(now_ms + request.lease_ms)
        if asked.correlation in caller.fetches:
            raise BadRequest(f"Another FETCH waits under the correlation {asked.correlation}.")
        if self._lifetime.is_draining:
            raise ShuttingDown
        topic_id = open_topic(self._topics, self._settings, caller.identity, request.topic, now_ms)
        group_id = open_group(self._groups, self._settings, topic_id, request.group, now_ms, request.start)
        if not request.count:
            return encode_no_messages(group_id)
        fetching = Fetching(
            group_id=group_id,
            group_ids=self._groups.parts_of(group_id),
            asked=AsAnswer(asked.correlation, request.lease_ms, request.ordered_batch),
            count=request.count,
            max_bytes=request.max_bytes,
            outgoing=caller.outgoing,
            unwritten=caller.unwritten,
            pulse=caller.pulse,
        )
        caller.pulse.answers_probes |= request.probes
        self._fetches.offer(fetching)
        if fetching.is_answered:
            return None
        if not request.wait_ms:
            return encode_no_messages(group_id)
        if self._subscriptions.held >= self._settings.max_subscriptions:
            raise TooManySubscriptions
        self._fetches.begin_to_wait(fetching)
        caller.fetches[asked.correlation] = fetching
        caller.start_soon(self._wait, fetching, caller, request.wait_ms / 1_000)
        return None

    async def _wait(self, fetching: Fetching, caller: Caller, wait_s: float) -> None:
        correlation = fetching.asked.correlation
        try:
            with trio.move_on_after(wait_s):
                await fetching.over.wait()
        finally:
            self._fetches.stop(fetching)
            del caller.fetches[correlation]
        if not fetching.is_answered:
            payload = encode_no_messages(fetching.group_id)
            self._commit.tell(caller.outgoing, frame_of(correlation, Fetch, payload))

    def end(self, request: EndFetch, asked: Asked) -> EndFetchOk:
        """END_FETCH."""
        fetching = asked.caller.fetches.get(request.correlation)
        if fetching is None or fetching.over.is_set():
            return EndFetchOk(ended=False)
        self._fetches.stop(fetching)
        return EndFetchOk(ended=True)


def _own(caller: Caller, number: int) -> Subscription:
    subscription = caller.subscriptions.get(number)
    if subscription is None:
        raise BadRequest(f"This connection has no subscription {number}.")
    return subscription
