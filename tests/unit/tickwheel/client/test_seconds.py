"""Epoch seconds are no moment, wherever a client takes a moment: in milliseconds they would be January 1970."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from tests.unit.tickwheel.both import on_both
from tests.unit.tickwheel.fake_server import serving
from tickwheel import Client
from tickwheel.client.admin.changes import Where
from tickwheel.client.admin.transactions import Transaction
from tickwheel.client.options import SendOptions, SendTime
from tickwheel.errors import BadTime

SECONDS: Final = 1_935_392_400
GIVEN: Final[list[Any]] = [SECONDS, np.int64(SECONDS), 0, 10**12 - 1]
NAMES: Final = {"Moment", "Moments", "Start"}
#: Where the parameters are those of another call.
UNPACKED: Final = {"Where": Where, "SendOptions": SendOptions, "SendTime": SendTime}
#: Calls of a client by the name of the method; what else each needs.
NEEDED: Final[dict[str, tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "browse": (("t",), {}),
    "cancel_where": (("t",), {}),
    "create_group": (("t", "g"), {}),
    "create_schedule": (("s", "t"), {"cron": "@daily"}),
    "drop": (("0" * 32, [(1, 2)]), {}),
    "fetch": (("t",), {"group": "g"}),
    "prepare": (("t", b"x"), {}),
    "preview_schedule": ((), {"cron": "@daily"}),
    "redeliver": (("t",), {"key": "k"}),
    "redeliver_where": (("t",), {}),
    "reschedule": (("t",), {"key": "k"}),
    "reschedule_where": (("t",), {"priority": 5}),
    "schedule": (("s",), {}),
    "seek_group": (("t", "g"), {}),
    "send": (("t", b"x"), {}),
    "send_json": (("t", 1), {}),
    "send_many": (("t", [b"x"]), {}),
    "set_endpoint": (("e",), {"topic": "t", "url": "https://shop.example"}),
    "set_schedule": (("s",), {}),
    "subscribe": (("t",), {"group": "g"}),
    "work": (("t", print), {"group": "g"}),
}
#: It asks for the endpoint first, and then sends as `send` does.
SENDS_AS_SEND: Final = "send_http_task"
OF_TRANSACTIONS: Final[dict[str, tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "reschedule": ((1,), {}),
    "send": (("t", b"x"), {}),
    "send_many": (("t", [b"x"]), {}),
}


def moments_of(function: Callable[..., Any]) -> list[str]:
    """The parameters that take a moment."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        words = set(str(parameter.annotation).replace("[", " ").replace("]", " ").split())
        found += [parameter.name] if words & NAMES else []
        for name in words & UNPACKED.keys():
            fields = UNPACKED[name].__annotations__.items()
            found += [field for field, kind in fields if "Moment" in str(kind)]
    return found


def takers(owner: type) -> dict[str, list[str]]:
    """Its public methods that take a moment, and where."""
    methods = inspect.getmembers(owner, inspect.isfunction)
    found = {name: moments_of(one) for name, one in methods if not name.startswith("_")}
    return {name: where for name, where in found.items() if where}


def test_each_call_that_takes_a_moment_is_tried() -> None:
    assert takers(Client).keys() - {SENDS_AS_SEND} == NEEDED.keys()
    assert takers(Transaction).keys() == OF_TRANSACTIONS.keys()
    assert {"due_from", "done_until"} <= set(takers(Client)["browse"])
    assert takers(Client)["send_json"] == takers(Transaction)["send"] == ["deliver_at"]


async def ask(called: Any) -> None:
    """Whatever a method answers: a coroutine, or what is entered."""
    if hasattr(called, "__aenter__"):
        async with called:
            raise AssertionError("it was entered")
    if inspect.isawaitable(called):
        await called


@on_both
async def test_a_client_refuses_seconds() -> None:
    async with serving() as (server, client):
        taken = takers(Client)
        for name, (words, options) in NEEDED.items():
            for parameter in taken[name]:
                for moment in GIVEN:
                    with pytest.raises(BadTime, match=r"in milliseconds. Are seconds meant\?") as refused:
                        await ask(getattr(client, name)(*words, **options, **{parameter: moment}))
                    assert "A moment before September 2001 needs a datetime." in refused.value.advice, name
        assert server.messages == []


@on_both
async def test_a_transaction_refuses_seconds() -> None:
    async with serving() as (server, client):
        for name, where in takers(Transaction).items():
            words, options = OF_TRANSACTIONS[name]
            for parameter in where:
                for moment in GIVEN:
                    with pytest.raises(BadTime, match=r"in milliseconds. Are seconds meant\?"):
                        await ask(
                            getattr(client.transaction(), name)(*words, **options, **{parameter: moment})
                        )
        assert server.messages == []
