"""Who may read metrics, and why a broker is not ready."""

from typing import Protocol


class Gate(Protocol):
    """Who may see more than whether the broker lives."""

    async def lets_in(self, authorization: str, peer: str) -> bool:
        """Whether who sent this Authorization header (empty: there was none) may read metrics and reasons."""
