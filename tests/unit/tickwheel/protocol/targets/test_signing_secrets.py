"""Secrets as Standard Webhooks writes them."""

from __future__ import annotations

import base64

import pytest

from tests.support.run.cases import table
from tickwheel.protocol.targets.signing_secrets import new_secret, secret_bytes, shortened


def test_new_ones_are_good_and_never_the_same() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(secret_bytes(one)) for one in made} == {32}


@table("size", [24, 64])
def test_of_these_sizes(size: int) -> None:
    raw = bytes(range(size))
    assert secret_bytes("whsec_" + base64.b64encode(raw).decode()) == raw


@table(
    "wrong",
    [
        "", "secret", "whsec_", "whsec_####", "whsec_" + "A" * 31, "whsec_" + "QUFB" * 7 + "é",
        shortened("whsec_" + "QUFB" * 8),
        *("whsec_" + base64.b64encode(bytes(size)).decode() for size in (0, 23, 65)),
    ],
)  # fmt: skip
def test_what_is_none_is_refused_without_being_told(wrong: str) -> None:
    with pytest.raises(ValueError, match="secret") as refused:
        secret_bytes(wrong)
    assert len(wrong) < 8 or wrong not in str(refused.value)


def test_shortened_it_is_known_again_and_no_secret() -> None:
    secret = new_secret()
    assert shortened(secret) == secret[:10] + "…"
