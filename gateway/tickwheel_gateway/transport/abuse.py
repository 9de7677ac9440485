"""What no client does that means well. Each ends its connection with ENHANCE_YOUR_CALM."""

from __future__ import annotations

from typing import Final

MOST_PARTS: Final = 60
"""Frames of one header block: also empty ones cost something."""
SETTINGS_WEIGHT: Final = 10
"""A SETTINGS frame may change the window of every stream."""


class Abuse(Exception):
    """`reason` is short: it is counted by it, and the peer is told."""

    def __init__(self, reason: str, *, is_said: bool = False) -> None:
        """``is_said``: the engine says the GOAWAY itself."""
        super().__init__(reason)
        self.reason = reason
        self.is_said = is_said
