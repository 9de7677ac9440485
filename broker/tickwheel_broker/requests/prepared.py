"""Requests about prepared messages, which wait for a decision whether they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
import trio

from tickwheel.protocol.bodies.admin import Decide, DecideOk, Prepare, PrepareOk
from tickwheel.protocol.bodies.requests import DECODE_ERRORS
from tickwheel.protocol.errors import BadArgument, BadTime, TransactionRefused
from tickwheel.protocol.limits import MAX_TIME_MS, PREPARED_SUFFIX
from tickwheel.protocol.messages import SendColumns, decode_send, encode_send, pack_column
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.requests.answers import Asked, check_name
from tickwheel_broker.requests.caller import Work
from tickwheel_broker.requests.remembered import Steps
from tickwheel_broker.requests.topics import checks_of, open_topic
from timerlog.engine.commit import Commit
from timerlog.engine.prepared import Prepared
from timerlog.engine.produce import Produce
from timerlog.engine.select import Select
from timerlog.engine.state import check_time
from timerlog.engine.topics import Topics
from timerlog.errors import TransactionRefused as PartRefused
from timerlog.names import PREPARED_HEADER

_STEP: Final = 64
_KEYS_AT_ONCE: Final = 4_096
"""As many prepared messages are decided at once: each is a record of its own."""


class PreparedRequests:
    """Prepare, and decide."""

    def __init__(
        self,
        *,
        prepared: Prepared,
        topics: Topics,
        select: Select,
        produce: Produce,
        commit: Commit,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._prepared = prepared
        self._topics = topics
        self._select = select
        self._produce = produce
        self._commit = commit
        self._clock = clock
        self._settings = settings

    def prepare(self, request: Prepare, asked: Asked) -> PrepareOk:
        """PREPARE: the messages are sent to the topic of prepared ones, with their time in a header."""
        settings, now_ms = self._settings, self._clock.now_ms()
        open_topic(self._topics, settings, asked.caller.identity, request.topic, now_ms)
        topic_id = self._prepared.open(request.topic, checks_of(settings), now_ms)
        _, columns = decode_send(request.payload)
        after_ms = settings.check_after_ms if request.check_after_ms is None else request.check_after_ms
        check_time(now_ms + after_ms)
        prepared = _as_prepared(columns, request.topic, now_ms, after_ms)
        try:
            send = self._produce.judge(encode_send(topic_id, prepared), now_ms)
            asked.expect(_prepared)
            stored = self._commit.write(bytes(16), [send], [], now_ms, is_answer=True)
        except PartRefused as error:
            refused = TransactionRefused(str(error))
            refused.details = {"id": error.message_id or None, "reason": error.reason}
            raise refused from error
        return _prepared(stored)

    def decide(self, request: Decide, asked: Asked) -> DecideOk | Work:
        """DECIDE: a few at once, in the order of the stream; many in steps, beside everything else."""
        steps = asked.steps()
        if request.ids is not None and len(request.ids) <= _STEP:
            decided = list(steps.done)
            self._decide(request.ids, steps, decided, commit=request.commit)
            return _all_decided(decided)
        if request.topic is not None:
            check_name(request.topic, "topic")

        async def work() -> DecideOk:
            # Which messages the keys mean is said before the first step: none that comes later is touched.
            if request.ids is not None:
                ids, made = request.ids, None
            else:
                ids, made = await steps.plan(partial(self._named, request))
            decided = list(steps.done)
            while len(decided) < len(ids):
                self._decide(ids, steps, decided, commit=request.commit, made=made)
                await steps.rest()
            return _all_decided(decided)

        return asked.bulk(work)

    async def _named(self, request: Decide) -> list[list[int]]:
        """The prepared messages that keys mean, and the messages of their topic that have these keys: a decided one has
        its key no more."""
        assert request.topic is not None, "the request's own check leaves ids, or topic and keys"
        assert request.keys is not None, "the request's own check leaves ids, or topic and keys"
        found: list[int] = []
        made: list[int] = []
        for start in range(0, len(request.keys), _KEYS_AT_ONCE):
            part = request.keys[start : start + _KEYS_AT_ONCE]
            found += self._select.find(request.topic + PREPARED_SUFFIX, part)
            made += self._select.find(request.topic, part)
            await trio.lowlevel.checkpoint()
        return [found, made]

    def _decide(
        self,
        ids: Sequence[int],
        steps: Steps,
        decided: list[tuple[str, int]],
        *,
        commit: bool,
        made: Sequence[int] | None = None,
    ) -> None:
        now_ms = self._clock.now_ms()
        for index in range(len(decided), min(len(decided) + _STEP, len(ids))):
            if made is not None and made[index] and not ids[index]:
                decided.append(steps.take(partial(_already_committed, made[index])))
                continue
            decided.append(
                steps.take(partial(self._prepared.decide_one, ids[index], commit=commit, now_ms=now_ms))
            )


def _already_committed(message_id: int) -> tuple[str, int]:
    return "already_committed", message_id


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


def _all_decided(decided: list[tuple[str, int]]) -> DecideOk:
    return DecideOk([result for result, _ in decided], [became for _, became in decided])
