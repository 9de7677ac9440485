"""The message of a task, without a broker."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clients.strange import BODIES, readable
from tickwheel.django.envelope import Envelope, broker_priority, decode
from tickwheel.errors import RemoteProtocolError

JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@dataclass
class Message:
    """As a subscription gives it."""

    body: bytes
    headers: dict[str, Any] = field(default_factory=dict)


@given(args=st.lists(JSON, max_size=3), kwargs=st.dictionaries(st.text(), JSON, max_size=3))
def test_what_was_enqueued_is_what_is_run(args: list[Any], kwargs: dict[str, Any]) -> None:
    envelope = Envelope(
        id="id",
        task_path="a.b",
        args=args,
        kwargs=kwargs,
        backend="default",
        queue="mails",
        priority=7,
        run_after="2031-01-01T00:00:00+00:00",
        enqueued_at=None,
    )
    assert decode(Message(envelope.encode())) == envelope


@given(st.binary() | JSON.map(lambda value: str(value).encode()))
def test_what_is_no_task_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no task of Django"):
        decode(Message(body))


@pytest.mark.parametrize("body", BODIES)
def test_what_others_wrote_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no task of Django"):
        decode(Message(body))


def test_a_slot_whose_headers_cannot_be_read() -> None:
    class Unreadable(Message):
        @property
        def headers(self) -> dict[str, Any]:
            raise RemoteProtocolError("The headers of message 17 are not a MessagePack map.")

        @headers.setter
        def headers(self, _: dict[str, Any]) -> None: ...

    body = Envelope(
        id="",
        task_path="a.b",
        args=[],
        kwargs={},
        backend="default",
        queue="mails",
        priority=0,
        schedule="nightly",
    ).encode()
    with pytest.raises(ValueError, match="no slot"):
        decode(Unreadable(body))
    for headers in readable():  # nothing else is raised
        with suppress(ValueError):
            assert decode(Message(body, {"tickwheel-schedule": headers})).id


def test_the_id_of_a_slot() -> None:
    body = Envelope(
        id="",
        task_path="a.b",
        args=[],
        kwargs={},
        backend="default",
        queue="mails",
        priority=0,
        schedule="nightly",
    ).encode()

    def id_of(slot: Any) -> str:
        return decode(Message(body, {"tickwheel-schedule": slot})).id

    first = {"name": "django.nightly", "slot_ms": 1}
    assert id_of(first) == id_of(dict(reversed(first.items())))
    assert len({id_of(first), id_of({**first, "slot_ms": 2}), id_of({**first, "name": "django.other"})}) == 3
    with pytest.raises(ValueError, match="no slot"):
        decode(Message(body))


def test_priorities_keep_their_order() -> None:
    found = [broker_priority(one) for one in range(100, -101, -1)]
    assert found == sorted(set(found))
    assert (found[0], found[100], found[-1]) == (0, 128, 255)
