"""That a client is there, and that it goes."""

from __future__ import annotations

import pytest

from tests.support.rocketmq.gateway_call import CALLER, asked
from tickwheel import Client
from tickwheel_gateway.calls.presence import Presence
from tickwheel_gateway.calls.service import Asked
from tickwheel_gateway.clients.caller import Caller
from tickwheel_gateway.clients.registry import Declared, Known, Registry
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused


def without_broker() -> Asked:
    return asked(Client("tickwheel://simulated:1"))


async def test_a_heartbeat() -> None:
    presence = Presence(Registry())
    answered = await presence.heartbeat(
        without_broker(), schema.HeartbeatRequest(client_type=schema.SIMPLE_CONSUMER)
    )
    assert answered.status.code == Code.OK


async def test_a_heartbeat_of_no_known_type() -> None:
    registry = Registry()
    presence = Presence(registry)
    request = schema.HeartbeatRequest()
    with pytest.raises(Refused) as caught:
        await presence.heartbeat(without_broker(), request)
    assert caught.value.code == Code.UNRECOGNIZED_CLIENT_TYPE
    # One whose settings are known has said it there.
    registry.heard(CALLER).declared = Declared(schema.PRODUCER)
    assert (await presence.heartbeat(without_broker(), request)).status.code == Code.OK


async def test_only_so_many_are_known_at_a_time() -> None:
    registry = Registry(most=2)
    registry.heard(Caller("a"))
    registry.heard(Caller("b"))
    with pytest.raises(Refused, match="2 clients are here") as caught:
        registry.heard(Caller("c"))
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    registry.heard(Caller("b"))
    await registry.forget(Caller("a"))
    registry.heard(Caller("c"))


async def test_who_goes_is_forgotten_before_it_is_answered() -> None:
    registry, gone = Registry(), list[str]()

    async def tell(known: Known) -> None:
        gone.append(known.client_id)

    registry.when_gone(tell)
    registry.heard(CALLER)
    request = schema.NotifyClientTerminationRequest()
    for _ in range(2):
        answered = await Presence(registry).terminate(without_broker(), request)
        assert answered.status.code == Code.OK
        assert gone == [CALLER.client_id]
        assert registry.get(CALLER) is None
