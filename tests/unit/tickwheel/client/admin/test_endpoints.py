"""Endpoints at a broker from before they had descriptions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.tickwheel.both import on_both
from tickwheel import Endpoint
from tickwheel.client.admin.endpoints import EndpointRequests
from tickwheel.errors import BadEndpoint


class OldBroker(EndpointRequests):
    """Refuses the field, as any that it does not know."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def _ask(self, request: Any, struct: Any, extra_s: float = 0.0) -> Any:
        self.asked.append(dict(request.fields))
        if "description" in request.fields:
            raise BadEndpoint("'description' is no field of an endpoint that can be set.")
        return struct(endpoint=Endpoint(name="shop", topic="orders"))


@on_both
async def test_a_description_that_is_unset_is_left_out() -> None:
    old = OldBroker()
    assert (await old.set_endpoint("shop", rate=5.0, unset=["description"])).name == "shop"
    assert old.asked == [{"rate_per_s": 5.0, "description": ""}, {"rate_per_s": 5.0}]


@on_both
async def test_a_description_that_is_given_is_refused() -> None:
    old = OldBroker()
    with pytest.raises(BadEndpoint):
        await old.set_endpoint("shop", description="Call Ada")
    assert len(old.asked) == 1
