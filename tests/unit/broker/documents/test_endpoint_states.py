"""The one state of an endpoint, out of what several processes of `tickwheel push` tell."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.native.driver import NOW_MS, SMALL
from tickwheel.protocol.bodies.endpoints import Endpoint
from tickwheel.protocol.endpoint_states import EndpointState, ToldState
from tickwheel_broker.background.readers import Readers
from tickwheel_broker.clock.clock import ManualClock
from tickwheel_broker.documents.endpoint_states import NOBODY, EndpointStates, counted
from tickwheel_broker.documents.endpoints import Endpoints
from timerlog.store import Store

DELIVERING = EndpointState(name="delivering")
FAILING = EndpointState(name="failing", reason="HTTP 503", since_ms=5, next_ms=9)
REFUSED = EndpointState(name="not_served", reason="port 9 is not allowed")


def endpoint(**fields: Any) -> Endpoint:
    return Endpoint(**{"name": "shop", "topic": "orders", "url": "https://shop.example/", **fields})


def told(state: EndpointState) -> ToldState:
    fields: dict[str, Any] = {name: getattr(state, name) for name in EndpointState.__struct_fields__}
    return ToldState(endpoint="shop", **fields)


def test_an_endpoint_of_which_nothing_is_told() -> None:
    states = EndpointStates()
    assert states.of(endpoint(), is_read=False) == NOBODY
    assert states.of(endpoint(), is_read=True) == DELIVERING, "by a process that does not tell"
    states.tell("other", [ToldState(endpoint="other", name="failing")])
    assert states.of(endpoint(), is_read=False) == NOBODY


def test_what_is_told_holds_until_who_told_it_is_gone() -> None:
    states = EndpointStates()
    states.tell("one", [told(FAILING)])
    assert states.knows("one")
    assert states.of(endpoint(), is_read=False) == FAILING
    states.tell("one", [told(DELIVERING)])
    assert states.of(endpoint(), is_read=False) == DELIVERING
    states.forget("one")
    states.forget("one")
    assert states.of(endpoint(), is_read=False) == NOBODY
    assert not states.knows("one")


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (FAILING, DELIVERING, FAILING),
        (REFUSED, DELIVERING, DELIVERING),
        (REFUSED, FAILING, FAILING),
        (REFUSED, REFUSED, REFUSED),
    ],
)
def test_of_two_processes(first: EndpointState, second: EndpointState, wanted: EndpointState) -> None:
    for pair in ((first, second), (second, first)):
        states = EndpointStates()
        for teller, state in enumerate(pair):
            states.tell(teller, [told(state)])
        assert states.of(endpoint(), is_read=False) == wanted


def test_one_that_is_disabled_is_paused_whatever_is_told() -> None:
    states = EndpointStates()
    states.tell("one", [told(FAILING)])
    found = states.of(endpoint(enabled=False, disabled_reason="it moves", disabled_ms=7), is_read=True)
    assert found == EndpointState(name="paused", reason="it moves", since_ms=7)


def test_what_was_told_of_an_endpoint_goes_with_it() -> None:
    states = EndpointStates()
    states.tell("one", [told(FAILING), ToldState(endpoint="other", name="failing")])
    states.tell("two", [told(REFUSED)])
    states.forget_endpoint("shop")
    states.forget_endpoint("shop")
    assert states.of(endpoint(), is_read=False) == NOBODY
    assert states.of(endpoint(name="other"), is_read=False).name == "failing"
    assert states.knows("two"), "it is still connected"


def test_an_endpoint_that_is_made_anew_has_no_state_of_before(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    clock = ManualClock(datetime.fromtimestamp(NOW_MS / 1_000, UTC))
    readers = Readers(store.groups, clock)
    endpoints = Endpoints(
        change=store.change, groups=store.groups, tables=store.tables, readers=readers, clock=clock
    )
    store.topics.open("orders", NOW_MS)
    for keep_group in (False, True):
        endpoints.put(endpoint(), "latest")
        assert endpoints.state_of(endpoint()) == NOBODY
        endpoints.states.tell("one", [told(FAILING)])
        assert endpoints.state_of(endpoint()) == FAILING
        endpoints.remove("shop", keep_group=keep_group)
    endpoints.put(endpoint(), "latest")
    assert endpoints.state_of(endpoint()) == NOBODY
    assert endpoints.states.knows("one")
    store.close()


def test_how_many_there_are_of_each() -> None:
    assert counted([FAILING, REFUSED, FAILING]) == {
        "delivering": 0.0,
        "failing": 2.0,
        "not_served": 1.0,
        "paused": 0.0,
    }
