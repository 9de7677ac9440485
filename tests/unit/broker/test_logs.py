"""The broker's own log, as people read it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from tickwheel_broker import logs
from tickwheel_broker.config.settings import Settings


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    """Leaves the loggers as they were."""
    root = logging.getLogger("tickwheel.broker")
    before = (root.handlers[:], root.level, root.propagate)
    yield
    root.handlers[:], root.level, root.propagate = before


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_nobody_writes_a_line_of_the_log_from_outside(log_format: str) -> None:
    stream = io.StringIO()
    logs.configure(Settings(log_format=log_format, log_level="debug"), stream)
    forged = "app\n12:00:00.000\u2028info\x1b[2Jstarted\r"
    logs.get_logger("connection").warning("greeted", client=forged, plain="two words")
    (line,) = stream.getvalue().split("\n")[:-1]
    assert not set(line) & {"\x1b", "\r", "\u2028"}
    assert "two words" in line
