"""How requests are answered: when what the answer tells of is on disk, or when longer work is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import trio

from tickwheel.protocol.bodies.base import Answer, Request
from tickwheel.protocol.bodies.requests import FRAME_TYPE_OF_REQUEST, encode_body
from tickwheel.protocol.errors import BadTopicName
from tickwheel.protocol.frames import ANSWER_OF, encode_frame
from tickwheel.protocol.limits import is_valid_name
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.requests.caller import Caller, Work
from tickwheel_broker.requests.remembered import Remembered, Steps
from timerlog.tables.answers import Answering

MAX_AT_ONCE: Final = 4
"""So many requests that change many messages work beside each other, and as many that look at many; the others wait for
their turn."""


class Answers:
    """Shared by all requests of a broker."""

    def __init__(self, commit: GroupCommit, remembered: Remembered) -> None:
        self._commit = commit
        self.remembered = remembered
        self.bulk = trio.CapacityLimiter(MAX_AT_ONCE)
        """The turns of requests that change many messages."""
        self.looking = trio.CapacityLimiter(MAX_AT_ONCE)
        """The turns of those that look at many."""

    def when_durable(self, caller: Caller, correlation: int, request: Request, body: Answer | bytes) -> None:
        """Answers as soon as everything is durable that the answer can tell of: what it has changed, and what it has
        only seen. At once if that is so already."""
        payload = _payload(body)
        answering = caller.answerings.get(correlation)
        if answering is not None:
            self.remembered.remember(answering, payload)
            self.remembered.forget(caller, correlation)
        self._commit.tell(caller.outgoing, frame_of(correlation, type(request), payload))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a handler needs beside the request: who asks, and how the answer is to come about."""

    caller: Caller
    correlation: int
    _answers: Answers

    @property
    def answering(self) -> Answering | None:
        """The answer that is being made; None: the request has no identity, and its answer is not remembered."""
        return self.caller.answerings.get(self.correlation)

    def expect(self, encode: Callable[[Any], Answer | bytes]) -> None:
        """Says what the next results of the store look like as the whole answer."""
        if self.answering is not None:
            self.answering.expect(lambda result: _payload(encode(result)))

    def steps(self) -> Steps:
        """For a request that is carried out in steps."""
        return self._answers.remembered.steps(self.answering)

    def bulk(self, work: Work) -> Work:
        """Work that changes many messages, when it is its turn."""
        return _in_turn(self._answers.bulk, work)

    def looking(self, work: Work) -> Work:
        """Work that looks at many, when it is its turn."""
        return _in_turn(self._answers.looking, work)


Handler: TypeAlias = Callable[[Any, Asked], Answer | bytes | Work | None]
"""Carries out a request and returns its answer, or the work that makes it and takes longer; None: it answers by itself.
Raises TickwheelError or StoreError to refuse the request."""


def _in_turn(turns: trio.CapacityLimiter, work: Work) -> Work:
    async def in_turn() -> Answer | bytes:
        async with turns:
            return await work()

    return in_turn


def _payload(body: Answer | bytes) -> bytes:
    return body if isinstance(body, bytes) else encode_body(body)


def frame_of(correlation: int, request: type[Request], payload: bytes) -> bytes:
    """The whole frame that answers a request."""
    return encode_frame(ANSWER_OF[FRAME_TYPE_OF_REQUEST[request]], correlation, payload)


def check_name(name: str, what: str) -> None:
    """Raises BadTopicName."""
    if not is_valid_name(name):
        raise BadTopicName(f"{name!r} is not a valid name of a {what}.")
