"""`tickwheel tokens`: what it prints and keeps, and how it says what is wrong."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tickwheel_broker.security import tokens
from tickwheel_cli.main import root

TOKEN = re.compile(r"twk_[0-9a-f]{12}_[A-Za-z0-9_-]{43}")


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes that take no time; that they take time is no subject here."""
    monkeypatch.setattr(tokens, "_MEMORY_KIB", 8)
    monkeypatch.setattr(tokens, "_TIME_COST", 1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "new" / "data"


def run(data: Path, *arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(root, ["tokens", *arguments, "--data", str(data)])
    assert done.exit_code == code, done.output
    return done


def shown(data: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(data, "show", name, "--json").stdout)
    return found


def test_the_token_is_printed_once_and_alone_on_standard_output(data: Path) -> None:
    made = run(
        data, "create", "shop", "--grant", "publish:orders.*", "--label", "team=pay", "--expires-in", "90d"
    )
    assert TOKEN.fullmatch(made.stdout.strip())
    assert "cannot be shown again" in made.stderr
    entry = shown(data, "shop")
    assert (entry["state"], entry["grants"], entry["labels"]) == (
        "valid",
        ["publish:orders.*"],
        {"team": "pay"},
    )
    assert entry["expires"] > entry["created"]
    for text in (run(data, "list").stdout, run(data, "show", "shop").stdout, json.dumps(entry)):
        assert not TOKEN.search(text)
        assert "argon2" not in text
    assert "publish:orders.*" in run(data, "list").stdout
    assert json.loads(run(data, "list", "--json").stdout) == [shown(data, entry["id"])]
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_into_a_file_that_was_not_there(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "shop.token"
    made = run(data, "create", "shop", "--grant", "all:*", "--out", str(out))
    assert not TOKEN.search(made.output)
    assert TOKEN.fullmatch(out.read_text().strip())
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    before = (data / "tokens.json").read_bytes()
    assert (
        f"{out} cannot be written: File exists"
        in run(data, "rotate", "shop", "--out", str(out), code=1).output
    )
    run(data, "create", "other", "--grant", "all:*", "--out", str(out), code=1)
    assert (data / "tokens.json").read_bytes() == before


def test_a_place_without_tokens_is_named(data: Path) -> None:
    """So that a misspelt directory is seen."""
    assert f"There are no tokens in {data / 'tokens.json'}" in run(data, "list").output
    assert json.loads(run(data, "list", "--json").output) == []


def test_a_life(data: Path) -> None:
    first = run(data, "create", "shop", "--grant", "publish:a").stdout.strip()
    second = run(data, "rotate", "shop", "--grace", "2h").stdout.strip()
    assert first.split("_")[1] == second.split("_")[1] == shown(data, "shop")["id"]
    assert first != second
    assert shown(data, "shop")["old_valid_until"] > shown(data, "shop")["rotated"]
    run(data, "grant", "shop", "consume:b", "publish:a")
    assert shown(data, "shop")["grants"] == ["consume:b", "publish:a"]
    run(data, "grant", "shop", "--remove", "publish:a")
    assert shown(data, "shop")["grants"] == ["consume:b"]
    run(data, "revoke", "shop", "--yes")
    assert shown(data, "shop")["state"] == "revoked"
    assert shown(data, "shop")["old_valid_until"] == ""
    assert "was revoked" in run(data, "rotate", "shop", code=2).output
    assert "was revoked" in run(data, "grant", "shop", "publish:c", code=2).output
    run(data, "create", "shop", "--grant", "publish:a")  # the name is free again
    assert shown(data, "shop")["state"] == "valid"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("create", "shop"), "at least one --grant"),
        (("create", "shop", "--grant", "orders"), "'orders' is no grant"),
        (("create", "shop", "--grant", "fly:orders"), "'fly' is no permission"),
        (("create", "shop", "--grant", "all:*", "--label", "x"), "'x' is no label"),
        (("create", "shop", "--grant", "all:*", "--expires-in", "soon"), "soon"),
        (("create", "there", "--grant", "all:*"), "there is a token 'there' already"),
        (("grant", "there", "--remove", "publish:x"), "there has no grant publish:x"),
        (("grant", "there", "fly:x"), "'fly' is no permission"),
        (("revoke", "there"), "give --yes"),
        (("list", "--tokens-file", "x"), "give one of them"),
    ],
)
def test_wrong_usage(data: Path, arguments: tuple[str, ...], problem: str) -> None:
    run(data, "create", "there", "--grant", "all:*")
    before = (data / "tokens.json").read_bytes()
    done = run(data, *arguments, code=2)
    assert problem in done.output
    assert (data / "tokens.json").read_bytes() == before
