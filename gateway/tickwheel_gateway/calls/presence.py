"""Heartbeat and NotifyClientTermination: that a client is there, and that it goes."""

from __future__ import annotations

from typing import Any

from tickwheel_gateway.calls.answers import tell
from tickwheel_gateway.calls.service import Asked
from tickwheel_gateway.clients.registry import Registry
from tickwheel_gateway.clients.settings import CLIENT_TYPES
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused


class Presence:
    """Answers both. That a client was heard of is remembered with each of its calls."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def heartbeat(self, asked: Asked, request: Any) -> Any:
        """Raises Refused."""
        known = self._registry.get(asked.caller)
        is_declared = known is not None and known.declared is not None
        if not is_declared and request.client_type not in CLIENT_TYPES:
            raise Refused(
                Code.UNRECOGNIZED_CLIENT_TYPE, f"the type of client {request.client_type} is not known"
            )
        response = schema.HeartbeatResponse()
        tell(response.status, Code.OK)
        return response

    async def terminate(self, asked: Asked, request: Any) -> Any:
        """What was kept for the client is given back when it is answered."""
        await self._registry.forget(asked.caller)
        response = schema.NotifyClientTerminationResponse()
        tell(response.status, Code.OK)
        return response
