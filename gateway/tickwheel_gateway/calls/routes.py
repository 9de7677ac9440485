"""QueryRoute and QueryAssignment: where the queues of a topic are. It is always here."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any, Final

from tickwheel.errors import UnknownTopic
from tickwheel_gateway.calls.answers import tell
from tickwheel_gateway.calls.service import Asked
from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.clients.registry import Registry
from tickwheel_gateway.clients.rights import CONSUME, check_right
from tickwheel_gateway.config import Config
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.names import group_of, topic_of

BROKER_NAME: Final = "tickwheel"
ANY_QUEUE: Final = -1
MORE_QUEUES: Final = (0, 1)
"""Of a push consumer that is busy: it has a receive open while the answers of two others are on their way."""
_TYPES: Final = (schema.NORMAL, schema.FIFO, schema.DELAY, schema.TRANSACTION)
_KNOWS_PRIORITY_SINCE: Final = {"JAVA": (5, 2, 0), "DOTNET": (5, 2, 0), "DOT_NET": (5, 2, 0)}
"""Older ones do not start when they are told of a type that they do not know; other languages do not mind."""


class Routes:
    """Answers both."""

    def __init__(self, config: Config, registry: Registry) -> None:
        self._config = config
        self._registry = registry

    async def route(self, asked: Asked, request: Any) -> Any:
        """Raises Refused: also for a topic that is not there and is not made by its use."""
        await self._check_topic(asked, request.topic.name)
        response = schema.QueryRouteResponse()
        tell(response.status, Code.OK)
        for number in range(self._config.queues):
            self._fill(response.message_queues.add(), number, asked.caller, request)
        return response

    async def assignment(self, asked: Asked, request: Any) -> Any:
        """One queue, which stands for all, and two more for a push consumer that is busy; or as many as the settings
        say. It has a receive open for each. Orderly groups have one. Raises Refused."""
        topic, group = topic_of(request.topic.name), group_of(request.group.name)
        check_right(asked.client, CONSUME, [topic])
        await self._check_topic(asked, request.topic.name)
        response = schema.QueryAssignmentResponse()
        tell(response.status, Code.OK)
        for number in self._assigned(asked.caller, request.group.name, (topic, group)):
            self._fill(response.assignments.add().message_queue, number, asked.caller, request)
        return response

    def _assigned(self, caller: Caller, group: str, place: tuple[str, str]) -> Iterable[int]:
        """The numbers of the queues that a push consumer receives from."""
        if self._config.is_fifo(group):
            return (0,)
        if self._config.queues > 1:
            return range(self._config.queues)
        known = self._registry.get(caller)
        is_busy = known is not None and known.is_busy(*place)
        return (ANY_QUEUE, *MORE_QUEUES) if is_busy else (ANY_QUEUE,)

    async def _check_topic(self, asked: Asked, name: str) -> None:
        topic = topic_of(name)
        if self._config.creates_topics:
            return
        try:
            await asked.client.topic(topic)
        except UnknownTopic:
            # Clients compare this text.
            raise Refused(
                Code.TOPIC_NOT_FOUND,
                f"CODE: 17  DESC: No topic route info in name server for the topic: {name}",
            ) from None

    def _fill(self, queue: Any, number: int, caller: Caller, request: Any) -> None:
        queue.topic.CopyFrom(request.topic)
        queue.id = number
        queue.permission = schema.READ_WRITE
        queue.broker.name = BROKER_NAME
        queue.broker.id = 0
        _fill_endpoints(queue.broker.endpoints, self._config.advertise, caller, request)
        queue.accept_message_types.extend(_TYPES)
        if self._config.has_priority(request.topic.name) and _knows_priority(caller):
            queue.accept_message_types.append(schema.PRIORITY)


def _knows_priority(caller: Caller) -> bool:
    return caller.version >= _KNOWS_PRIORITY_SINCE.get(caller.language, ())


def _fill_endpoints(endpoints: Any, advertise: tuple[str, int] | None, caller: Caller, request: Any) -> None:
    """Always the same for a client: one that finds others thinks that its own are gone."""
    if advertise is None and request.endpoints.addresses:
        endpoints.CopyFrom(request.endpoints)
        return
    host, port = advertise or caller.local
    endpoints.scheme = _scheme(host)
    address = endpoints.addresses.add()
    address.host, address.port = host, port


def _scheme(host: str) -> int:
    try:
        return schema.IPV4 if ipaddress.ip_address(host).version == 4 else schema.IPV6
    except ValueError:
        return schema.DOMAIN_NAME
