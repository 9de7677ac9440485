"""The programs on the page about tables from anywhere, run as they are written, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tickwheel
from tests.support.processes.daemon_harness import Daemon

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "arrow.md"


def test_the_programs_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """But those that need Polars, or a broker with TLS."""
    programs = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(programs) == 7
    around: dict[str, Any] = {}
    with Daemon(tmp_path / "data", flight=True, flight_listen="127.0.0.1:0") as daemon:
        with tickwheel.sync.Client(daemon.url) as client:
            client.send_many("orders", [b"1", b"2", b"3"], delay_ms=3_600_000)
            flight = client.flight_url
        for program in programs:
            if "polars" in program or "broker.example" in program:
                continue
            program = program.replace("tickwheel://127.0.0.1:7411", daemon.url)
            exec(program.replace("grpc://127.0.0.1:7416", flight), around)
        assert around["overdue"].read_all().num_rows == 0
    said = capsys.readouterr().out
    assert "orders  scheduled    3" in said  # pandas
    assert "│ orders  │ scheduled │            3 │" in said  # DuckDB
    assert said.endswith("\n3\n")  # Arrow Flight itself
