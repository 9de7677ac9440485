"""Handles that clients bring back."""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.handles import (
    Recall,
    Receipt,
    decode_recall,
    decode_receipt,
    encode_recall,
    encode_receipt,
)

U64 = st.integers(0, 2**64 - 1)


@given(U64, U64, U64, U64)
def test_a_receipt_there_and_back(group_id: int, id: int, epoch: int, until_ms: int) -> None:
    receipt = Receipt(group_id, id, epoch, until_ms)
    text = encode_receipt(receipt)
    assert decode_receipt(text) == receipt
    assert text.isascii()
    assert " " not in text
    assert text != encode_receipt(receipt), "each that is issued differs"


@given(st.text())
@example("")
@example("tw1.1.2.3.4")
@example("tw1.1.2.3.4.5.6")
@example("tw1.1.2.-3.4.5")
@example("tw1.1.2.٣.4.5")
@example("tw1.1.2." + "9" * 5_000 + ".4.5")
@example("tw1.1.2.99999999999999999999.4.5")
@example("tw2.1.2.3.4.5")
def test_any_other_text_is_no_receipt(text: str) -> None:
    with pytest.raises(Refused) as refused:
        decode_receipt(text)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE


def test_when_a_receipt_has_expired() -> None:
    kept = Receipt(1, 2, 3, 0)
    assert (kept.is_renewed, kept.has_expired(2**60)) == (True, False)
    until = Receipt(1, 2, 3, 5_000)
    assert [until.has_expired(now_ms) for now_ms in (4_999, 5_000, 5_001)] == [False, True, True]
    assert not until.is_renewed


@given(
    st.from_regex(r"\A[%A-Za-z0-9_-]{1,40}\Z"),
    st.integers(0, 2**53),
    st.integers(0, 2**63 - 1),
    st.text(min_size=1),
)
def test_a_recall_handle_there_and_back(topic: str, deliver_at_ms: int, number: int, message_id: str) -> None:
    recall = Recall(topic, deliver_at_ms, number, message_id)
    assert decode_recall(encode_recall(recall)) == recall


@given(st.one_of(st.text(), st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode())))
@example(base64.urlsafe_b64encode(b"v1 orders rocketmq 17 1 key").decode())
@example(base64.urlsafe_b64encode(b"v2 orders tickwheel 17 1 key").decode())
@example(base64.urlsafe_b64encode(b"v1 orders tickwheel never 1 key").decode())
@example(base64.urlsafe_b64encode(b"v1 orders tickwheel 17 1 ").decode())
@example(base64.urlsafe_b64encode(b"v1 orders tickwheel 17 one key").decode())
@example(base64.urlsafe_b64encode(b"v1 orders tickwheel 17 9223372036854775808 key").decode())
def test_any_other_text_is_no_recall_handle(text: str) -> None:
    with pytest.raises(Refused) as refused:
        decode_recall(text)
    assert refused.value.code == Code.BAD_REQUEST
