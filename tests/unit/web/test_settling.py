"""Settling: as few requests to the broker as there are things to be done, and results in the order of the receipts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from starlette.requests import Request

from tickwheel import Client, ReceiptResult
from tickwheel.errors import RequestTimeout
from tickwheel.protocol.receipts import Receipt, decode_receipt, encode_receipt
from tickwheel_web.consuming.settling import settle_deliveries
from tickwheel_web.credit import Credits
from tickwheel_web.ending import Ending
from tickwheel_web.endpoints import Asked, Shared
from tickwheel_web.limits import limits_of


class Fake:
    """A client whose messages with odd ids are gone."""

    def __init__(self, *, fails: bool = False) -> None:
        self.calls: list[tuple[str, Any, int]] = []
        self._fails = fails

    def _results(
        self, what: str, how: Any, receipts: Sequence[tuple[int, int]], good: ReceiptResult
    ) -> list[ReceiptResult]:
        if receipts:
            self.calls.append((what, how, len(receipts)))
            if self._fails and what == "nack":
                raise RequestTimeout
        return [good if message_id % 2 == 0 else ReceiptResult.STALE_RECEIPT for message_id, _ in receipts]

    async def ack(self, group_id: int, receipts: Sequence[tuple[int, int]]) -> list[ReceiptResult]:
        return self._results("ack", group_id, receipts, ReceiptResult.ACKED)

    async def nack(
        self, group_id: int, receipts: Sequence[tuple[int, int]], **how: Any
    ) -> list[ReceiptResult]:
        return self._results("nack", how["error"], receipts, ReceiptResult.NACKED)

    async def extend(
        self, group_id: int, receipts: Sequence[tuple[int, int]], duration: Any
    ) -> list[ReceiptResult]:
        return self._results("extend", duration.total_seconds(), receipts, ReceiptResult.EXTENDED)


def asked(client: Fake, what: object, credits: Credits | None = None) -> Asked:
    scope = {"type": "http", "path_params": {"topic": "t", "group": "g"}}
    body = msgspec.json.encode(what)
    shared = Shared(limits_of(), Ending(), credits or Credits())
    return Asked(Request(scope), cast(Client, client), None, body, "", shared)


def text(number: int, group_id: int = 7) -> str:
    return encode_receipt("t", "g", Receipt(group_id, number, 1))


async def test_what_is_to_be_done_alike_is_one_request() -> None:
    client = Fake()
    what = {
        "ack": [text(n) for n in range(100)] + [text(1_000, group_id=8)],
        "nack": [{"receipt": text(n), "error": "odd" if n % 3 else "three"} for n in range(100, 200)],
        "extend": [{"receipt": text(n), "by": "60s" if n % 4 else "1m"} for n in range(200, 300)],
    }
    answer = msgspec.json.decode((await settle_deliveries(asked(client, what))).body)
    assert sorted(client.calls, key=str) == [
        ("ack", 7, 100),
        ("ack", 8, 1),
        ("extend", 60.0, 100),
        ("nack", "odd", 67),
        ("nack", "three", 33),
    ]
    pairs = [*["acked", "stale_receipt"] * 50, "acked"]
    assert answer["ack"] == pairs
    assert answer["nack"] == ["nacked", "stale_receipt"] * 50
    assert answer["extend"] == ["extended", "stale_receipt"] * 50


async def test_what_failed_does_not_keep_the_rest_back_and_is_told() -> None:
    client = Fake(fails=True)
    what = {"ack": [text(2)], "nack": [{"receipt": text(4)}], "extend": [{"receipt": text(6), "by": "1m"}]}
    with pytest.raises(RequestTimeout):
        await settle_deliveries(asked(client, what))
    assert {call[0] for call in client.calls} == {"ack", "nack", "extend"}


def test_every_wrong_character_of_a_receipt_is_seen() -> None:
    good = text(1042)
    assert decode_receipt("t", "g", good) == Receipt(7, 1042, 1)
    for at, right in enumerate(good):
        for other in "Az09-_+/=":
            if other != right:
                with pytest.raises(ValueError, match="is no receipt"):
                    decode_receipt("t", "g", good[:at] + other + good[at + 1 :])
    for topic, group in [("t", "h"), ("u", "g"), ("", "t\ng")]:
        with pytest.raises(ValueError, match="is no receipt"):
            decode_receipt(topic, group, good)
