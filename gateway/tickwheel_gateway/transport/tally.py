"""What the transport counts, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Of all connections of one server, since it began."""

    stack: str = ""
    """The library for HTTP/2."""
    connections: int = 0
    """Open now."""
    calls: int = 0
    """Running now, or waiting for the rest of their request."""
    accepted: int = 0
    refused_connections: int = 0
    """There were too many."""
    failed_handshakes: int = 0
    ended: Counter[int] = field(default_factory=Counter)
    """Calls by gRPC status; those that the client reset count as 1."""
    abuses: Counter[str] = field(default_factory=Counter)
    """Connections ended with ENHANCE_YOUR_CALM, by reason."""
