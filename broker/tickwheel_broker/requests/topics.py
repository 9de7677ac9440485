"""Requests about topics: open, create, change, show, delete."""

from __future__ import annotations

from typing import Any

from tickwheel.protocol.bodies.admin import DeleteTopic, DeleteTopicOk, GetTopic, SetTopic
from tickwheel.protocol.bodies.requests import OpenTopic, OpenTopicOk, encode_map
from tickwheel.protocol.errors import BadArgument, TopicInUse
from tickwheel.protocol.limits import PREPARED_SUFFIX
from tickwheel_broker.background.retention import Retention
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.delivery.delivery import Delivery
from tickwheel_broker.delivery.subscriptions import Subscriptions
from tickwheel_broker.documents.endpoints import Endpoints
from tickwheel_broker.documents.schedules import Schedules
from tickwheel_broker.requests.answers import Asked, check_name
from tickwheel_broker.security.grants import Identity
from timerlog.commitlog.records import TopicRecord
from timerlog.engine.groups import Groups, Holders, Start
from timerlog.engine.look import Look
from timerlog.engine.topics import Maker, Topics
from timerlog.errors import UnknownGroup
from timerlog.tables.tables import Tables


class TopicRequests:
    """What a topic is, and whether it is there."""

    def __init__(
        self,
        *,
        topics: Topics,
        holders: Holders,
        look: Look,
        tables: Tables,
        clock: Clock,
        settings: Settings,
        delivery: Delivery,
        subscriptions: Subscriptions,
        schedules: Schedules,
        endpoints: Endpoints,
        retention: Retention,
    ) -> None:
        self._topics = topics
        self._holders = holders
        self._look = look
        self._tables = tables
        self._clock = clock
        self._settings = settings
        self._delivery = delivery
        self._subscriptions = subscriptions
        self._schedules = schedules
        self._endpoints = endpoints
        self._retention = retention

    def open(self, request: OpenTopic, asked: Asked) -> OpenTopicOk:
        """OPEN_TOPIC."""
        created = request.topic not in self._tables.topic_ids
        now_ms = self._clock.now_ms()
        identity = asked.caller.identity
        topic_id = open_topic(
            self._topics, self._settings, identity, request.topic, now_ms, create=request.create
        )
        return OpenTopicOk(topic_id, created)

    def set(self, request: SetTopic, asked: Asked) -> bytes:
        """SET_TOPIC."""
        now_ms = self._clock.now_ms()
        check_name(request.topic, "topic")
        if request.create:
            if request.unset or request.paused is not None:
                raise BadArgument(
                    "A new topic has nothing to unset, pause or resume.", advice="Create it first."
                )
            asked.expect(self._described)
            maker = maker_of(asked.caller.identity, self._settings)
            self._topics.create(request.topic, request.settings, request.shards, now_ms, maker=maker)
        else:
            if request.shards:
                raise BadArgument(
                    "The number of shards cannot be changed.",
                    advice="Create another topic with it and let producers change over.",
                )
            asked.expect(self._described)
            self._topics.set(request.topic, request.settings, request.unset, request.paused, now_ms)
            self._subscriptions.tell_of_leases(self._delivery.subscriptions)
            self._delivery.wake_all()
        self._retention.topics_changed()
        return self._description(request.topic)

    def get(self, request: GetTopic, asked: Asked) -> bytes:
        """GET_TOPIC."""
        return self._description(request.topic)

    def _described(self, record: TopicRecord) -> bytes:
        return encode_map(self._look.describe(record))

    def _description(self, name: str) -> bytes:
        description: dict[str, Any] = self._look.describe_topic(name)
        return encode_map(description)

    def delete(self, request: DeleteTopic, asked: Asked) -> DeleteTopicOk:
        """DELETE_TOPIC."""
        # Also subscribers that are not started yet, because their SUBSCRIBE_OK waits for the disk.
        subscribers = self._holders.count(self._look.groups_of(request.topic))
        if subscribers:
            raise TopicInUse(f"{request.topic!r} has {subscribers} subscribers.")
        schedules = self._schedules.of_topic(request.topic)
        if schedules:
            raise TopicInUse(
                f"{request.topic!r} gets messages of {len(schedules)} schedules, such as {schedules[0]!r}.",
                advice="Delete these schedules first, or give them another topic; pausing them is not enough.",
            )
        endpoints = self._endpoints.of_topic(request.topic)
        if endpoints:
            raise TopicInUse(
                f"The messages of {request.topic!r} go to {len(endpoints)} endpoints, such as {endpoints[0]!r}.",
                advice="Delete these endpoints first; disabling them is not enough.",
            )
        messages = int(self._look.describe_topic(request.topic)["messages"])
        asked.expect(lambda _: DeleteTopicOk(messages))
        self._topics.delete(request.topic)
        return DeleteTopicOk(messages)


def maker_of(identity: Identity, settings: Settings) -> Maker | None:
    """Who makes a topic, if that counts: a token that may not change everything else anyway. So no program uses up the
    numbers of topics for all others."""
    if identity.grants is None or identity.may_everywhere("admin"):
        return None
    return Maker(identity.login, settings.max_topics_per_token or -(-settings.max_topics // 2))


def open_topic(
    topics: Topics,
    settings: Settings,
    identity: Identity,
    name: str,
    now_ms: int,
    *,
    create: bool = True,
) -> int:
    """The number of a topic; with `create` a new one is made if the settings let it. Raises BadTopicName,
    UnknownTopic, TooManyTopics."""
    check_name(name, "topic")
    values = checks_of(settings) if name.endswith(PREPARED_SUFFIX) else None
    return topics.open(
        name,
        now_ms,
        create=create and settings.auto_create_topics,
        values=values,
        maker=maker_of(identity, settings),
    )


def checks_of(settings: Settings) -> dict[str, Any]:
    """Settings of a new topic of prepared messages, whether it is made by the first of them or by a subscriber that
    wants to be asked after them."""
    return {
        "ack_wait_ms": settings.check_interval_ms,
        "min_backoff_ms": settings.check_interval_ms,
        "max_backoff_ms": settings.check_interval_ms,
        "max_attempts": settings.check_attempts,
    }


def open_group(
    groups: Groups,
    settings: Settings,
    topic_id: int,
    name: str,
    now_ms: int,
    start: Start,
    *,
    ephemeral_ms: int = 0,
) -> int:
    """The number of a topic's group; a new one is made if the settings let it. Raises UnknownGroup."""
    try:
        return groups.open(
            topic_id, name, now_ms, start, create=settings.auto_create_groups, ephemeral_ms=ephemeral_ms
        )
    except UnknownGroup as error:
        error.advice = (
            "Create it first (`tickwheel groups create`), or set auto_create_groups = true on the broker."
        )
        raise
