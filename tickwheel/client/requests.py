"""What the parts of the client share: how a request is made, and what messages one means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import msgspec

from tickwheel.client.checks import many_ids, many_keys, one_id, one_key
from tickwheel.client.columns import Body, body_bytes, check_name, check_priority
from tickwheel.client.conversation import Conversation
from tickwheel.client.times import Delay, Moment, one_time
from tickwheel.protocol.bodies.base import Answer, Request
from tickwheel.protocol.errors import BadArgument, BadFrame, BadTime
from tickwheel.protocol.limits import MAX_IDS_A_REQUEST

if TYPE_CHECKING:
    from tickwheel.client.tracing import Producing, Sending

A = TypeVar("A", bound=Answer)
R = TypeVar("R", bound=StrEnum)
S = TypeVar("S")


class NewTime(TypedDict, total=False):
    """What a reschedule changes, as in ``Client.reschedule``."""

    deliver_at: Moment | None
    delay: Delay | None
    delay_ms: int | None
    priority: int | None


class Requests:
    """Makes requests on the session of an open client."""

    _producing: Producing | None = None
    """Makes spans of what is sent; None: there are no traces."""

    def _span(
        self, topic: str, operation: str = "send", *, body: Body | None = None, count: int | None = None
    ) -> AbstractContextManager[Sending | None]:
        """A span around one send of a ``body``, or of ``count`` messages; None when there are no traces. Raises
        BadTopicName, BadArgument."""
        if self._producing is None:
            return nullcontext()
        check_name(topic)
        size_bytes = None if body is None else len(body_bytes(body))
        return self._producing.sending(topic, operation, count=count, size_bytes=size_bytes)

    @property
    def _session(self) -> Conversation:
        raise NotImplementedError

    async def _answer(self, request: Request, answer: type[A]) -> A:
        body = await self._session.request(request)
        assert isinstance(body, answer)
        return body

    async def _ask(self, request: Request, struct: type[S], extra_s: float = 0.0) -> S:
        """For answers whose body is a map that only we understand."""
        body = await self._session.request(request, extra_s)
        assert isinstance(body, bytes)
        try:
            return msgspec.msgpack.decode(body, type=struct)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"An answer was not understood: {error}.") from None


def targets(
    topic: str | None,
    id: int | None,
    ids: Sequence[int] | None,
    key: str | None,
    keys: Sequence[str] | None,
) -> list[dict[str, Any]]:
    """The target fields of one request or several, each within the limit. All of them are checked before the first is
    sent. Raises BadArgument, BadTopicName, KeyTooLong."""
    given = [value for value in (id, ids, key, keys) if value is not None]
    by_key = key is not None or keys is not None
    if len(given) != 1 or by_key != (topic is not None):
        raise BadArgument(
            "The messages meant are not clear.", advice="Give id=, ids=, or a topic with key= or keys=."
        )
    if topic is not None:
        check_name(topic)
        by_name = [one_key(key)] if key is not None else many_keys(keys)
        return [{"topic": topic, "keys": chunk} for chunk in chunks(by_name)]
    return [{"ids": chunk} for chunk in chunks([one_id(id)] if id is not None else many_ids(ids))]


def chunks(values: list[S]) -> list[list[S]]:
    """The parts that fit into one request each."""
    return [values[i : i + MAX_IDS_A_REQUEST] for i in range(0, len(values), MAX_IDS_A_REQUEST)]


def typed(result: Callable[[str], R], texts: Sequence[str], count: int) -> list[R]:
    """The results of ``count`` messages. Raises BadFrame."""
    if len(texts) != count:
        raise BadFrame("The number of results is not that of the messages.")
    try:
        return [result(text) for text in texts]
    except ValueError as error:
        raise BadFrame(f"An answer was not understood: {error}.") from None


def size_of(target: dict[str, Any]) -> int:
    """How many messages a target names."""
    return len(target.get("ids") or target["keys"])


def when(deliver_at: Moment | None, delay: Delay | None, delay_ms: int | None) -> dict[str, Any]:
    """The time fields of a request; empty without a time."""
    if deliver_at is None and delay is None and delay_ms is None:
        return {}
    time_ms, relative = one_time(deliver_at, delay, delay_ms)
    return {"delay_ms" if relative else "deliver_at_ms": time_ms}


def time_or_priority(
    deliver_at: Moment | None, delay: Delay | None, delay_ms: int | None, priority: int | None
) -> dict[str, Any]:
    """The fields of a reschedule. Raises BadTime, also when there is nothing to change."""
    change = when(deliver_at, delay, delay_ms)
    if priority is not None:
        change["priority"] = check_priority(priority)
    if not change:
        raise BadTime("No new time was given.", advice="Give deliver_at or delay, or a priority.")
    return change
