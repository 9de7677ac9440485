"""Fixtures for tests of the command line that start no program."""

from __future__ import annotations

import pytest

from tickwheel import Client


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clients try for 50 ms to connect, and not for 5 s, where there is no broker."""
    monkeypatch.setitem(Client.__init__.__kwdefaults__, "connect_timeout", 0.05)
