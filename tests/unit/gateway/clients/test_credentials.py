"""Who signs, with what, and the file that says so."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tickwheel.errors import ConfigError
from tickwheel_gateway.clients import credentials
from tickwheel_gateway.clients.credentials import (
    AUTHORIZATION,
    DATE_TIME,
    SESSION_TOKEN,
    Credentials,
    Pair,
    add,
    sign,
)
from tickwheel_gateway.wire.codes import Code, Refused

DATE = "20261123T230000Z"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    path.write_text("# whose\nshop  s3cret twk_shop\n\nmail other twk_mail\n")
    path.chmod(0o640)
    return path


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock by which it is decided when to look at the file."""
    now_s = time.monotonic()

    def move(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(credentials.time, "monotonic", lambda: now_s)
    return move


def headers(text: str, date: str = DATE) -> dict[str, str]:
    return {DATE_TIME: date, AUTHORIZATION: text}


def is_refused(known: Credentials, metadata: dict[str, str]) -> bool:
    with pytest.raises(Refused) as caught:
        known.token_of(metadata)
    return caught.value.code == Code.UNAUTHORIZED


def test_signatures_as_clients_write_them(file: Path) -> None:
    known = Credentials(file)
    digest = hmac.new(b"s3cret", DATE.encode(), hashlib.sha1).hexdigest()
    for name, signature in (("shop", digest), ("shop", digest.upper()), ("shop/cn-hz/RocketMQ", digest)):
        text = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={signature}"
        assert known.token_of(headers(text)) == "twk_shop"
    assert known.token_of(headers(sign(Pair("mail", "other"), DATE))) == "twk_mail"


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        headers(""),
        headers("MQv2-HMAC-SHA1"),
        headers("MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature="),
        headers(sign(Pair("shop", "wrong"), DATE)),
        headers(sign(Pair("nobody", "s3cret"), DATE)),
        headers(sign(Pair("shop", "s3cret"), DATE), "20261123T230001Z"),
        {AUTHORIZATION: sign(Pair("shop", "s3cret"), DATE)},
        headers("Bearer twk_shop"),
        headers(sign(Pair("shop", "s3cret"), DATE) + "ü"),
        {SESSION_TOKEN: "two words"},
    ],
)
def test_others_are_refused(file: Path, metadata: dict[str, str]) -> None:
    assert is_refused(Credentials(file), metadata)


def test_a_session_token_is_a_token(file: Path) -> None:
    assert Credentials(file).token_of({SESSION_TOKEN: "twk_other", **headers("")}) == "twk_other"


def test_it_is_read_again(file: Path, later: Callable[[float], None]) -> None:
    known = Credentials(file)
    pair = add(file, "new", "twk_new")
    assert is_refused(known, headers(sign(pair, DATE)))
    later(1.0)
    assert known.token_of(headers(sign(pair, DATE))) == "twk_new"
    file.chmod(0o644)
    file.write_text(file.read_text() + "# more\n")
    later(1.0)
    assert is_refused(known, headers(sign(pair, DATE)))
    file.chmod(0o600)
    later(1.0)
    assert known.token_of(headers(sign(pair, DATE))) == "twk_new"


@pytest.mark.parametrize(
    ("text", "mode", "what"),
    [
        ("", 0o604, "can be read by every user"),
        ("shop s3cret\n", 0o600, "line 1 than an access key, a secret key and a token"),
        ("a b c\na b c\n", 0o600, "names a twice"),
    ],
)
def test_a_file_that_is_not_as_it_should_be(tmp_path: Path, text: str, mode: int, what: str) -> None:
    path = tmp_path / "credentials"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=what):
        Credentials(path)


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Credentials(tmp_path / "none")


def test_pairs_are_added(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    first, second = add(path, "shop", "twk_1"), add(path, "mail@host", "twk_2")
    assert len(first.secret_key) >= 32
    assert first.secret_key != second.secret_key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [child.name for child in tmp_path.iterdir()] == ["credentials"]
    known = Credentials(path)
    assert known.token_of(headers(sign(first, DATE))) == "twk_1"
    assert known.token_of(headers(sign(second, DATE))) == "twk_2"


@pytest.mark.parametrize(
    ("name", "token", "what"),
    [
        ("shop", "twk_9", "has the access key shop already"),
        ("a/b", "twk_9", "cannot have the access key"),
        ("", "twk_9", "cannot have the access key"),
        ("new", "two words", "no token"),
        ("new", "", "no token"),
    ],
)
def test_pairs_that_are_not_added(file: Path, name: str, token: str, what: str) -> None:
    before = file.read_text()
    with pytest.raises(ConfigError, match=what):
        add(file, name, token)
    assert file.read_text() == before


def test_a_line_that_was_not_ended(file: Path) -> None:
    file.write_text("shop s3cret twk_shop")
    pair = add(file, "new", "twk_new")
    known = Credentials(file)
    assert known.token_of(headers(sign(pair, DATE))) == "twk_new"
    assert known.token_of(headers(sign(Pair("shop", "s3cret"), DATE))) == "twk_shop"
