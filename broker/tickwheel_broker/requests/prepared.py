"""Requests about prepared messages, which wait for somebody to decide whether they are sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
import trio

from tickwheel.protocol.bodies.admin import Decide, DecideOk, Prepare, PrepareOk
from tickwheel.protocol.bodies.requests import DECODE_ERRORS
from tickwheel.protocol.errors import BadArgument, BadTime
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.protocol.messages import SendColumns, decode_send, encode_send, pack_column
from tickwheel_broker.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.requests.answers import Answers, check_name
from tickwheel_broker.requests.caller import Caller
from tickwheel_broker.requests.remembered import Steps, expect
from timerlog.engine.commit import Commit
from timerlog.engine.prepared import Prepared
from timerlog.engine.produce import Produce
from timerlog.engine.topics import Topics
from timerlog.names import PREPARED_HEADER

_STEP: Final = 128
"""As many prepared messages are decided at once: each is a record of its own."""


class PreparedRequests:
    """Prepare, and decide."""

    def __init__(
        self,
        prepared: Prepared,
        topics: Topics,
        produce: Produce,
        commit: Commit,
        clock: Clock,
        settings: Settings,
        publish: Callable[[], None],
        answers: Answers,
    ) -> None:
        self._prepared = prepared
        self._topics = topics
        self._produce = produce
        self._commit = commit
        self._clock = clock
        self._settings = settings
        self._publish = publish
        self._answers = answers

    def prepare(self, caller: Caller, correlation: int, request: Prepare) -> None:
        """PREPARE: the messages are sent to the topic of prepared ones, with their time in a header."""
        settings, now_ms = self._settings, self._clock.now_ms()
        check_name(request.topic, "topic")
        self._topics.open(request.topic, now_ms, create=settings.auto_create_topics)
        checks = {
            "ack_wait_ms": settings.check_interval_ms,
            "min_backoff_ms": settings.check_interval_ms,
            "max_backoff_ms": settings.check_interval_ms,
            "max_attempts": settings.check_attempts,
        }
        topic_id = self._prepared.open(request.topic, checks, now_ms)
        _, columns = decode_send(request.payload)
        prepared = _as_prepared(columns, request.topic, now_ms, settings.check_after_ms)
        send = self._produce.judge(encode_send(topic_id, prepared), now_ms)
        expect(caller, correlation, _prepared)
        stored = self._commit.write(bytes(16), [send], [], now_ms, is_answer=True)
        self._answers.when_durable(caller, correlation, request, _prepared(stored))

    def decide(self, caller: Caller, correlation: int, request: Decide) -> None:
        """DECIDE: a few at once, in the order of the stream; many in steps, beside everything else."""
        steps = self._answers.steps(caller, correlation)
        decided = list(steps.done)
        if len(request.ids) <= _STEP:
            self._decide(request, steps, decided)
            self._answers.when_durable(caller, correlation, request, _all_decided(decided))
            return

        async def work() -> DecideOk:
            async with self._answers.bulk:
                while len(decided) < len(request.ids):
                    self._decide(request, steps, decided)
                    await trio.lowlevel.checkpoint()
            return _all_decided(decided)

        caller.answer_later(correlation, request, work)

    def _decide(self, request: Decide, steps: Steps, decided: list[tuple[str, int]]) -> None:
        now_ms = self._clock.now_ms()
        for message_id in request.ids[len(decided) : len(decided) + _STEP]:
            decided.append(
                steps.take(
                    partial(self._prepared.decide_one, message_id, commit=request.commit, now_ms=now_ms)
                )
            )
        self._publish()


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
