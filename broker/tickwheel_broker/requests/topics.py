"""Requests about topics: create, change, show, delete; browse, dead letters, prepared messages."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from tickwheel.protocol.bodies.admin import (
    Browse,
    Decide,
    DecideOk,
    DeleteTopic,
    DeleteTopicOk,
    GetTopic,
    Prepare,
    PrepareOk,
    ReplayDead,
    ReplayDeadOk,
    SetTopic,
)
from tickwheel.protocol.bodies.requests import DECODE_ERRORS, encode_map
from tickwheel.protocol.errors import BadArgument, BadTime, TopicInUse
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.protocol.messages import SendColumns, decode_send, encode_send, pack_column
from tickwheel_broker.requests import remembered as remembering
from tickwheel_broker.requests.answers import Caller, check_name, when_durable
from timerlog.commitlog.records import TopicRecord
from timerlog.engine.select import Filter
from timerlog.errors import UnknownTopic
from timerlog.names import PREPARED_HEADER, dead_topic

if TYPE_CHECKING:
    from tickwheel_broker.broker import Broker

_REPLAY_STEP = 64
"""As many letters are replayed at once: each is a record of its own."""


_DECIDE_STEP = 128
"""As many prepared messages are decided at once: each is a record of its own."""

_BROWSE_STEP = 128
"""As many messages are looked at at once."""


def set_topic(caller: Caller, correlation: int, request: SetTopic) -> None:
    """SET_TOPIC."""
    broker, store, now_ms = caller.broker, caller.broker.store, caller.broker.clock.now_ms()
    check_name(request.topic, "topic")
    if request.create:
        if request.unset or request.paused is not None:
            raise BadArgument("A new topic has nothing to unset, pause or resume.", advice="Create it first.")
        remembering.expect(caller, correlation, partial(_described, broker))
        store.create_topic(request.topic, request.settings, request.shards, now_ms)
    else:
        if request.shards:
            raise BadArgument(
                "The number of shards cannot be changed.",
                advice="Create another topic with it and let producers change over.",
            )
        remembering.expect(caller, correlation, partial(_described, broker))
        store.set_topic(request.topic, request.settings, request.unset, request.paused, now_ms)
        broker.tell_of_leases(broker.delivery.subscriptions)
        broker.services.timers_changed()
        broker.delivery.wake_all()
    broker.topics_changed.ring()
    when_durable(caller, correlation, request, encode_map(_description(broker, request.topic)))


def get_topic(caller: Caller, correlation: int, request: GetTopic) -> None:
    """GET_TOPIC."""
    when_durable(caller, correlation, request, encode_map(_description(caller.broker, request.topic)))


def _described(broker: Broker, record: TopicRecord) -> bytes:
    return encode_map(broker.store.describe(record))


def _description(broker: Broker, name: str) -> dict[str, Any]:
    return broker.store.describe_topic(name)


def delete_topic(caller: Caller, correlation: int, request: DeleteTopic) -> None:
    """DELETE_TOPIC."""
    broker = caller.broker
    # Also subscribers that are not started yet, because their SUBSCRIBE_OK waits for the disk.
    subscribers = broker.store.holders_of(broker.store.groups_of(request.topic))
    if subscribers:
        raise TopicInUse(f"{request.topic!r} has {subscribers} subscribers.")
    schedules = broker.schedules.of_topic(request.topic)
    if schedules:
        raise TopicInUse(
            f"{request.topic!r} gets messages of {len(schedules)} schedules, such as {schedules[0]!r}.",
            advice="Delete these schedules first, or give them another topic; pausing them is not enough.",
        )
    messages = int(broker.store.describe_topic(request.topic)["messages"])
    remembering.expect(caller, correlation, lambda _: DeleteTopicOk(messages))
    broker.store.delete_topic(request.topic)
    when_durable(caller, correlation, request, DeleteTopicOk(messages))


def browse(caller: Caller, correlation: int, request: Browse) -> None:
    """BROWSE: in steps, beside everything else; as many messages as fit into one frame."""
    broker = caller.broker
    topic_id = broker.store.topic(request.topic).topic_id

    async def work() -> bytes:
        async with broker.looking:
            return encode_map({"messages": await _browse(broker, topic_id, request)})

    caller.answer_later(correlation, request, work)


async def _browse(broker: Broker, topic_id: int, request: Browse) -> list[dict[str, Any]]:
    wanted = Filter(states=None if request.states is None else frozenset(request.states))
    now_ms = broker.clock.now_ms()
    room_bytes = broker.settings.max_frame_bytes - 4096
    found: list[dict[str, Any]] = []
    for ids in broker.store.select(topic_id, wanted, now_ms, request.after_id):
        for start in range(0, len(ids), _BROWSE_STEP):
            for entry in broker.store.browse(
                ids[start : start + _BROWSE_STEP], now_ms, request.max_body_bytes
            ):
                room_bytes -= _size(entry)
                if room_bytes < 0 or len(found) == request.limit:
                    return found
                found.append(entry)
            await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
    return found


def _size(entry: dict[str, Any]) -> int:
    return 512 + len(entry["body"]) + len(entry["headers"]) + 128 * len(entry["groups"])


def replay_dead(caller: Caller, correlation: int, request: ReplayDead) -> None:
    """REPLAY_DEAD: in steps, beside everything else; the answer comes after the last one."""
    broker = caller.broker
    dead_id = _dead_topic_id(broker, request.topic)
    steps = remembering.Steps(caller, correlation)

    async def work() -> ReplayDeadOk:
        if dead_id is None:
            return ReplayDeadOk({"not_found": len(request.ids)} if request.ids else {})
        async with broker.bulk:
            return await _replay_all(broker, dead_id, request, steps)

    caller.answer_later(correlation, request, work)


def _dead_topic_id(broker: Broker, topic: str) -> int | None:
    """None when the topic never had a dead letter. Raises UnknownTopic."""
    try:
        return broker.store.topic(dead_topic(topic)).topic_id
    except UnknownTopic:
        broker.store.topic(topic)
        return None


async def _replay_all(
    broker: Broker, dead_id: int, request: ReplayDead, steps: remembering.Steps
) -> ReplayDeadOk:
    async def make_plan() -> list[int]:
        return [] if request.ids is not None else await _letters(broker, dead_id, request.limit)

    planned = await steps.plan(make_plan)
    ids = planned if request.ids is None else request.ids
    results = list(steps.done)
    while len(results) < len(ids):
        for message_id in ids[len(results) : len(results) + _REPLAY_STEP]:
            replay = partial(broker.store.replay_letter, request.topic, message_id, broker.clock.now_ms())
            results.append(steps.take(replay))
        broker.after_change()
        await trio.lowlevel.checkpoint()
    return ReplayDeadOk(dict(Counter(results)))


async def _letters(broker: Broker, dead_id: int, limit: int) -> list[int]:
    ids: list[int] = []
    for part in broker.store.select(dead_id, Filter(), broker.clock.now_ms()):
        ids += part[: limit - len(ids)].tolist()
        if len(ids) >= limit:
            break
        await trio.lowlevel.checkpoint()
    return ids


# Prepared messages ----------------------------------------------------------------------------------------


def prepare(caller: Caller, correlation: int, request: Prepare) -> None:
    """PREPARE: the messages are sent to the topic of prepared ones, with their time in a header."""
    broker, now_ms = caller.broker, caller.broker.clock.now_ms()
    settings = broker.settings
    check_name(request.topic, "topic")
    broker.store.open_topic(request.topic, now_ms, create=settings.auto_create_topics)
    checks = {
        "ack_wait_ms": settings.check_interval_ms,
        "min_backoff_ms": settings.check_interval_ms,
        "max_backoff_ms": settings.check_interval_ms,
        "max_attempts": settings.check_attempts,
    }
    topic_id = broker.store.open_prepared(request.topic, checks, now_ms)
    _, columns = decode_send(request.payload)
    payload = encode_send(topic_id, _as_prepared(columns, request.topic, now_ms, settings.check_after_ms))
    send = broker.store.judge_send(payload, now_ms)
    remembering.expect(caller, correlation, _prepared)
    stored = broker.store.commit_records(bytes(16), [send], [], now_ms, is_answer=True)
    when_durable(caller, correlation, request, _prepared(stored))


def _prepared(stored: list[tuple[int, int]]) -> PrepareOk:
    first_id, count = stored[0]
    return PrepareOk(list(range(first_id, first_id + count)))


def _as_prepared(columns: SendColumns, topic: str, now_ms: int, check_after_ms: int) -> SendColumns:
    count = len(columns.bodies)
    times = columns.deliver_at_ms
    each = memoryview(times).cast("q").tolist() if isinstance(times, bytes) else [times] * count
    due = [now_ms + time if columns.relative and time else time for time in each]
    if not all(0 <= time <= MAX_TIME_MS for time in due):
        raise BadTime("The message could not be committed: its time is outside of the years 1970 to 9999.")
    headers = [
        _with_time(columns.headers[i] if columns.headers is not None else b"", topic, due[i])
        for i in range(count)
    ]
    return SendColumns(
        bodies=columns.bodies,
        deliver_at_ms=pack_column("q", [check_after_ms] * count),
        relative=True,
        priority=columns.priority,
        keys=columns.keys,
        headers=headers,
        order_keys=columns.order_keys,
    )


def _with_time(headers: bytes, topic: str, deliver_at_ms: int) -> bytes:
    try:
        fields = msgspec.msgpack.decode(headers, type=dict[str, Any]) if headers else {}
    except DECODE_ERRORS as error:
        raise BadArgument(f"The headers of a prepared message are not a map: {error}.") from error
    return msgspec.msgpack.encode(
        {**fields, PREPARED_HEADER: {"topic": topic, "deliver_at_ms": deliver_at_ms}}
    )


def decide(caller: Caller, correlation: int, request: Decide) -> None:
    """DECIDE: a few at once, in the order of the stream; many in steps, beside everything else."""
    steps = remembering.Steps(caller, correlation)
    decided = list(steps.done)
    if len(request.ids) <= _DECIDE_STEP:
        _decide(caller.broker, request, steps, decided)
        when_durable(caller, correlation, request, _all_decided(decided))
        return

    async def work() -> DecideOk:
        async with caller.broker.bulk:
            while len(decided) < len(request.ids):
                _decide(caller.broker, request, steps, decided)
                await trio.lowlevel.checkpoint()
        return _all_decided(decided)

    caller.answer_later(correlation, request, work)


def _decide(
    broker: Broker, request: Decide, steps: remembering.Steps, decided: list[tuple[str, int]]
) -> None:
    now_ms = broker.clock.now_ms()
    for message_id in request.ids[len(decided) : len(decided) + _DECIDE_STEP]:
        decided.append(
            steps.take(partial(broker.store.decide_one, message_id, commit=request.commit, now_ms=now_ms))
        )
    broker.after_change()


def _all_decided(decided: list[tuple[str, int]]) -> DecideOk:
    return DecideOk([result for result, _ in decided], [became for _, became in decided])
