"""The audit log: a line for each event, not without end, and never more than it should say."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from tickwheel.protocol.errors import ConfigError
from tickwheel_broker.security import audit as auditing
from tickwheel_broker.security.audit import DONE_AT_ONCE, REFUSED_AT_ONCE, REFUSED_PER_S, Audit


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_event_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(str(path))
    audit.done("login", peer="192.0.2.1:5", token="0123456789ab")
    audit.refused("login", peer="192.0.2.1:5", code="bad_token", reason="x" * 5_000 + "\n{}")
    first, second = lines(path)
    assert first.pop("timestamp").endswith("Z")
    assert first == {"event": "login", "outcome": "ok", "peer": "192.0.2.1:5", "token": "0123456789ab"}
    assert second["outcome"] == "refused"
    assert len(second["reason"]) == 200
    assert path.stat().st_mode & 0o777 == 0o600
    audit.close()


async def test_refusals_do_not_fill_the_disk(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(str(path))
    for _ in range(100_000):
        audit.refused("login", code="bad_token")
    assert len(lines(path)) == REFUSED_AT_ONCE
    audit.done("login")  # what was allowed has its own room, and tells what is missing
    assert lines(path)[-1]["suppressed"] == 100_000 - REFUSED_AT_ONCE
    await trio.sleep(1)
    for _ in range(1_000):
        audit.refused("login", code="bad_token")
    assert len(lines(path)) == REFUSED_AT_ONCE + 1 + REFUSED_PER_S
    audit.tell_of_suppressed()
    assert lines(path)[-1]["suppressed"] == 1_000 - REFUSED_PER_S
    for _ in range(100_000):
        audit.done("SetTopic")
    assert len(lines(path)) < REFUSED_AT_ONCE + DONE_AT_ONCE + 100
    audit.close()
    assert (
        sum(line.get("suppressed", 0) + 1 for line in lines(path)) == 201_001 + 2
    )  # two lines say only that


async def test_a_new_file_after_the_old_one_was_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(str(path))
    audit.done("one")
    os.rename(path, tmp_path / "old")
    audit.done("two")
    audit.reopen()
    audit.done("three")
    assert [line["event"] for line in lines(tmp_path / "old")] == ["one", "two"]
    assert [line["event"] for line in lines(path)] == ["three"]
    audit.close()


async def test_what_cannot_be_opened_anew_goes_on_in_the_old_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "logs" / "audit.jsonl"
    path.parent.mkdir()
    audit = Audit(str(path))
    os.rename(path.parent, tmp_path / "moved")
    audit.reopen()
    assert "cannot be opened anew" in caplog.text
    audit.done("one")
    assert [line["event"] for line in lines(tmp_path / "moved" / "audit.jsonl")] == ["one"]
    audit.close()


async def test_without_a_file_it_is_in_the_ordinary_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    audit = Audit()
    audit.done("SetTopic", subject="orders")
    audit.refused("login", code="bad_token")
    assert [(r.name, r.levelname, r.message) for r in caplog.records] == [
        ("tickwheel.broker.audit", "INFO", "SetTopic"),
        ("tickwheel.broker.audit", "INFO", "login"),
    ]


async def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        Audit(str(tmp_path / "gone" / "audit.jsonl"))


async def test_the_last_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "KEPT_LINES", 5)
    audit = Audit()
    assert audit.tail(None, 10, 10_000) == ([], False)
    assert audit.tail(1, 10, 10_000) == ([], True), "before its start there may have been some"
    for number in range(4):
        audit.done("SetTopic", subject=f"topic-{number}")
    subjects = lambda found: [json.loads(line)["subject"] for _, line in found.lines]  # noqa: E731
    last = audit.tail(None, 2, 10_000)
    assert subjects(last) == ["topic-2", "topic-3"]
    (first, _), *_ = audit.tail(None, 4, 10_000).lines
    assert audit.tail(first, 2, 10_000).has_gap is False
    assert subjects(audit.tail(first, 2, 10_000)) == ["topic-1", "topic-2"]
    assert subjects(audit.tail(first, 10, 250)) == ["topic-1"], "as many as there is room for"
    assert subjects(audit.tail(None, 10, 250)) == ["topic-2", "topic-3"]
    assert audit.tail(last.lines[-1][0], 10, 10_000) == ([], False)
    for number in range(4, 7):
        audit.done("SetTopic", subject=f"topic-{number}")
    found = audit.tail(first, 10, 10_000)
    assert subjects(found) == [f"topic-{number}" for number in range(2, 7)]
    assert found.has_gap, "topic-1 is gone"
    numbers = [number for number, _ in found.lines]
    assert numbers == sorted(set(numbers))
