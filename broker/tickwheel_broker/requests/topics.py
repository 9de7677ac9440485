"""Requests about topics: open, create, change, show, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tickwheel.protocol.bodies.admin import DeleteTopic, DeleteTopicOk, GetTopic, SetTopic
from tickwheel.protocol.bodies.requests import OpenTopic, OpenTopicOk, encode_map
from tickwheel.protocol.errors import BadArgument, TopicInUse
from tickwheel_broker.background.retention import Retention
from tickwheel_broker.background.schedules import Schedules
from tickwheel_broker.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.delivery import Delivery
from tickwheel_broker.requests.answers import Answers, check_name
from tickwheel_broker.requests.caller import Caller
from tickwheel_broker.requests.remembered import expect
from tickwheel_broker.subscriptions import Subscriptions
from timerlog.commitlog.records import TopicRecord
from timerlog.engine.groups import Holders
from timerlog.engine.look import Look
from timerlog.engine.topics import Topics
from timerlog.tables.tables import Tables


class TopicRequests:
    """What a topic is, and whether it is there."""

    def __init__(
        self,
        topics: Topics,
        holders: Holders,
        look: Look,
        tables: Tables,
        clock: Clock,
        settings: Settings,
        delivery: Delivery,
        subscriptions: Subscriptions,
        schedules: Schedules,
        retention: Retention,
        publish: Callable[[], None],
        answers: Answers,
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
        self._retention = retention
        self._publish = publish
        self._answers = answers

    def open(self, caller: Caller, correlation: int, request: OpenTopic) -> None:
        """OPEN_TOPIC."""
        created = request.topic not in self._tables.topic_ids
        now_ms = self._clock.now_ms()
        topic_id = open_topic(self._topics, self._settings, request.topic, now_ms, create=request.create)
        self._answers.when_durable(caller, correlation, request, OpenTopicOk(topic_id, created))

    def set(self, caller: Caller, correlation: int, request: SetTopic) -> None:
        """SET_TOPIC."""
        now_ms = self._clock.now_ms()
        check_name(request.topic, "topic")
        if request.create:
            if request.unset or request.paused is not None:
                raise BadArgument(
                    "A new topic has nothing to unset, pause or resume.", advice="Create it first."
                )
            expect(caller, correlation, self._described)
            self._topics.create(request.topic, request.settings, request.shards, now_ms)
        else:
            if request.shards:
                raise BadArgument(
                    "The number of shards cannot be changed.",
                    advice="Create another topic with it and let producers change over.",
                )
            expect(caller, correlation, self._described)
            self._topics.set(request.topic, request.settings, request.unset, request.paused, now_ms)
            self._subscriptions.tell_of_leases(self._delivery.subscriptions)
            self._publish()
            self._delivery.wake_all()
        self._retention.topics_changed()
        self._answers.when_durable(caller, correlation, request, self._description(request.topic))

    def get(self, caller: Caller, correlation: int, request: GetTopic) -> None:
        """GET_TOPIC."""
        self._answers.when_durable(caller, correlation, request, self._description(request.topic))

    def _described(self, record: TopicRecord) -> bytes:
        return encode_map(self._look.describe(record))

    def _description(self, name: str) -> bytes:
        description: dict[str, Any] = self._look.describe_topic(name)
        return encode_map(description)

    def delete(self, caller: Caller, correlation: int, request: DeleteTopic) -> None:
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
        messages = int(self._look.describe_topic(request.topic)["messages"])
        expect(caller, correlation, lambda _: DeleteTopicOk(messages))
        self._topics.delete(request.topic)
        self._answers.when_durable(caller, correlation, request, DeleteTopicOk(messages))


def open_topic(topics: Topics, settings: Settings, name: str, now_ms: int, *, create: bool) -> int:
    """The number of a topic; with `create` a new one is made if the settings let it. Raises BadTopicName,
    UnknownTopic."""
    check_name(name, "topic")
    return topics.open(name, now_ms, create=create and settings.auto_create_topics)
