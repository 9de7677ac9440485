"""The file of tokens: what is written, what is refused, and how secrets are checked."""

import os
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tickwheel.protocol.errors import TokensUnusable, UnknownToken
from tickwheel_broker.errors import ServerExtraMissing
from tickwheel_broker.security import tokens
from tickwheel_broker.security.tokens import Token, changing, find, load, matching, new_token, parse, rotated

NOW_MS = 1_900_000_000_000


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes that take no time; that they take time is no subject here."""
    monkeypatch.setattr(tokens, "_MEMORY_KIB", 8)
    monkeypatch.setattr(tokens, "_TIME_COST", 1)


def record(number: int, **fields: Any) -> Token:
    return Token(f"{number:012x}", f"token-{number}", "$argon2id$x", ["consume:orders"], NOW_MS, **fields)


def save(path: Path, *records: Token) -> None:
    with changing(path) as known:
        known.update({token.id: token for token in records})


def test_written_for_the_owner_alone_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    assert load(path) == {}
    save(path, record(1, labels={"team": "shop"}), record(2, expires_ms=5))
    assert load(path) == {
        f"{1:012x}": record(1, labels={"team": "shop"}),
        f"{2:012x}": record(2, expires_ms=5),
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["tokens.json", "tokens.json.lock"]


def test_what_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.json"
    save(path, record(1))
    before = path.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        save(path, record(2))
    assert path.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["tokens.json", "tokens.json.lock"]


def test_no_link_is_followed_to_somebody_elses_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may make tokens in a directory in which the broker's user can put links."""
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    directory = tmp_path / "data"
    directory.mkdir()
    path = directory / "tokens.json"
    monkeypatch.setattr(tokens.secrets, "token_hex", lambda count: "guessed")
    aside = [directory / f"tokens.json.{name}.new" for name in ("guessed", os.getpid())]
    for link in aside:
        link.symlink_to(theirs)
    with pytest.raises(FileExistsError):
        save(path, record(1))
    aside[0].unlink()
    save(path, record(1))
    path.with_name("tokens.json.lock").unlink()
    path.with_name("tokens.json.lock").symlink_to(theirs)
    with pytest.raises(OSError, match="symbolic links"):
        save(path, record(2))
    assert theirs.read_text() == "precious"
    assert list(load(path)) == [f"{1:012x}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_makes_is_the_brokers(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    os.chown(directory, 65_534, 65_534)
    save(directory / "tokens.json", record(1))
    assert {path.name: path.stat().st_uid for path in directory.iterdir()} == {
        "tokens.json": 65_534,
        "tokens.json.lock": 65_534,
    }


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    threads = [threading.Thread(target=save, args=(path, record(number))) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(load(path)) == 20


def damaged() -> list[tuple[bytes, str]]:
    good = msgspec.json.encode({"format": 1, "tokens": [msgspec.to_builtins(record(1))]})
    twice = msgspec.json.encode({"format": 1, "tokens": [msgspec.to_builtins(record(1))] * 2})
    return [
        (b"", "damaged"),
        (b"{}", "damaged"),
        (b"[]", "damaged"),
        (b'{"format": 2, "tokens": {}, "more": 1}', "newer version"),
        (b'{"format": "1", "tokens": []}', "damaged"),
        (good[:-3], "damaged"),
        (good.replace(b"consume:", b"devour:"), "is no permission"),
        (good.replace(b"$argon2id$", b"plain:"), "no proper id or hash"),
        (good.replace(b'"name"', b'"nome"'), "damaged"),
        (b"[" * 100_000, "damaged"),
        (twice, "an id is there twice"),
    ]


@pytest.mark.parametrize(("data", "message"), damaged())
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(data)
    with pytest.raises(TokensUnusable, match=message):
        load(path)
    with pytest.raises(TokensUnusable):
        save(path, record(2))
    assert path.read_bytes() == data


def test_every_byte_that_is_lost_or_flipped_is_found_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    save(path, record(1))
    good = path.read_bytes()
    for cut in range(len(good)):
        path.write_bytes(good[:cut])
        assert outcome(path) in ("refused", "same")
        flipped = bytearray(good)
        flipped[cut] ^= 1 << cut % 8
        path.write_bytes(flipped)
        assert outcome(path) in ("refused", "same", "one token")


def outcome(path: Path) -> str:
    try:
        found = load(path)
    except TokensUnusable:
        return "refused"
    return "same" if list(found.values()) == [record(1)] else "one token" if len(found) == 1 else "other"


def test_a_secret_and_its_hash(cheap: None) -> None:
    token, text = new_token("shop", ["publish:*"], NOW_MS)
    parsed = parse(text)
    assert parsed is not None
    token_id, secret = parsed
    assert token_id == token.id
    assert len(secret) == 43  # 256 bits
    assert secret not in msgspec.json.encode(token).decode()
    assert matching(secret, token.hashes(NOW_MS)) == token.hash
    assert matching(secret[:-1] + "x", token.hashes(NOW_MS)) == ""
    assert matching(secret, []) == ""
    assert matching(secret, ["no hash"]) == ""
    assert new_token("shop", ["publish:*"], NOW_MS)[1] != text


def test_no_secret_has_the_hash_of_nothing() -> None:
    assert matching("", []) == ""
    assert matching("x" * 43, [tokens.NO_HASH]) == ""


def test_hashes_are_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    token, _ = new_token("shop", ["publish:*"], NOW_MS)
    assert token.hash.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert tokens.NO_HASH.startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def test_both_secrets_count_for_a_while(cheap: None) -> None:
    token, _ = new_token("shop", ["publish:*"], NOW_MS)
    changed, _ = rotated(token, NOW_MS, 1_000)
    assert changed.hashes(NOW_MS + 999) == [changed.hash, token.hash]
    assert changed.hashes(NOW_MS + 1_000) == [changed.hash]
    assert rotated(token, NOW_MS, 0)[0].hashes(NOW_MS) != [token.hash]


def test_states() -> None:
    assert record(1).state(NOW_MS) == "valid"
    assert record(1, expires_ms=NOW_MS + 1).state(NOW_MS) == "valid"
    assert record(1, expires_ms=NOW_MS).state(NOW_MS) == "expired"
    assert record(1, expires_ms=NOW_MS, revoked_ms=1).state(NOW_MS) == "revoked"


def test_found_by_id_or_by_the_one_name() -> None:
    known = {
        token.id: token
        for token in (record(1), record(2), msgspec.structs.replace(record(3), name="token-2"))
    }
    assert find(known, f"{2:012x}") == record(2)
    assert find(known, "token-1") == record(1)
    with pytest.raises(UnknownToken, match="2 tokens are called"):
        find(known, "token-2")
    with pytest.raises(UnknownToken, match="no token 'token-9'"):
        find(known, "token-9")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "twk",
        "twk_x_y",
        "twk_0123456789ab_short",
        f"twk_0123456789AB_{'x' * 43}",
        f"twk_0123456789ab_{'x' * 43}\n",
    ],
)
def test_what_is_no_token(text: str) -> None:
    assert parse(text) is None


def test_without_argon2_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "find_spec", lambda name: None)
    with pytest.raises(ServerExtraMissing, match=r"tickwheel\[server\]"):
        new_token("shop", ["publish:*"], NOW_MS)
