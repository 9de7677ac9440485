"""How handlers answer: when what they tell of is on disk, or when longer work is done."""

from __future__ import annotations

from typing import Final

import trio

from tickwheel.protocol.bodies.base import Answer, Request
from tickwheel.protocol.bodies.requests import FRAME_TYPE_OF_REQUEST, encode_body
from tickwheel.protocol.errors import BadTopicName
from tickwheel.protocol.frames import ANSWER_OF, encode_frame
from tickwheel.protocol.limits import is_valid_name
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.requests.caller import Caller
from tickwheel_broker.requests.remembered import Remembered, Steps

MAX_AT_ONCE: Final = 4
"""So many requests that change many messages work beside each other, and as many that look at many; the others wait for
their turn."""


class Answers:
    """Shared by all handlers of a broker."""

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
        payload = body if isinstance(body, bytes) else encode_body(body)
        answering = caller.answerings.get(correlation)
        if answering is not None:
            self.remembered.remember(answering, payload)
            self.remembered.forget(caller, correlation)
        self._commit.tell(caller.outgoing, frame_of(correlation, type(request), payload))

    def steps(self, caller: Caller, correlation: int) -> Steps:
        """For a request that is carried out in steps."""
        return self.remembered.steps(caller, correlation)


def frame_of(correlation: int, request: type[Request], payload: bytes) -> bytes:
    """The whole frame that answers a request."""
    return encode_frame(ANSWER_OF[FRAME_TYPE_OF_REQUEST[request]], correlation, payload)


def check_name(name: str, what: str) -> None:
    """Raises BadTopicName."""
    if not is_valid_name(name):
        raise BadTopicName(f"{name!r} is not a valid name of a {what}.")
