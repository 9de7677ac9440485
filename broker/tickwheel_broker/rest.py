"""What work of many steps does between two of them."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

Rest: TypeAlias = Callable[[], Awaitable[None]]
"""Publishes what the engine has changed, then lets others have their turn: see `Broker.rest`."""
