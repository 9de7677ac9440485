"""Tests of the blocking client that are run with the short way of sends, and without it."""

from __future__ import annotations

import pytest

from tickwheel.blocking import short_way

WAYS = ("short", "usual")


def choose(way: str, patch: pytest.MonkeyPatch) -> None:
    """For this process, and for programs that it starts from now on."""
    is_open = way == "short"
    patch.setattr(short_way, "is_open", is_open)
    patch.setenv("TICKWHEEL_TEST_SHORT_WAY", "on" if is_open else "off")
