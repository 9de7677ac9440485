"""A RocketMQ that is not there: what is missing, and what to do, are said."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tickwheel_bench.rocketmq.their_server import HERE, VERSION, fetch, missing


def test_without_its_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path / "bin", monkeypatch, "java", "javac")
    assert str(tmp_path / "lib") in (missing(tmp_path / "lib") or "")
    assert "make rocketmq-server" in (missing(tmp_path / "lib") or "")


def test_without_a_jdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path / "bin", monkeypatch, "java")
    assert "javac is not on this machine" in (missing(tmp_path) or "")


def test_without_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path / "bin", monkeypatch)
    assert "mvn is not on this machine" in (fetch(tmp_path / "lib") or "")


def test_a_fetch_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path / "bin", monkeypatch, "mvn", body="echo no such artifact; exit 1")
    assert "no such artifact" in (fetch(tmp_path / "lib") or "")
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_all_parts_have_its_version() -> None:
    found = ElementTree.parse(HERE / "pom.xml").getroot()
    ours = "{http://maven.apache.org/POM/4.0.0}"
    parts = found.findall(f".//{ours}dependency")
    assert len(parts) == 3
    assert {part.findtext(f"{ours}version") for part in parts} == {VERSION}


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str, body: str = "exit 0") -> None:
    """The machine has these, and no others."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
