"""What came of a request: an answer with a status, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

EXCERPT_BYTES: Final = 1_024
"""So much of an answer stands in a dead letter."""

Reason: TypeAlias = Literal["timeout", "dns", "refused", "tls", "connection", "protocol"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The server answered."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """By names in small letters."""
    excerpt: bytes = b""
    """The beginning of its body."""

    @property
    def text(self) -> str:
        """For people: the status, and the beginning of the body without what steers terminals."""
        body = self.excerpt[:EXCERPT_BYTES].decode(errors="replace")
        shown = "".join(char if char.isprintable() else " " for char in body)
        return f"HTTP {self.status} {' '.join(shown.split())}".strip()


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """There was none in time, or none that can be understood."""

    reason: Reason
    detail: str
    is_ours: bool = False
    """This process could not ask, for want of files, memory or ports: that says nothing of who was to be asked."""

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


Result: TypeAlias = Answer | NoAnswer
