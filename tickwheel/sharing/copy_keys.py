"""Keys of further messages of one name, such as a task id under which a program sends twice.

The first message of a name has the name as its key. A further message takes a key from a short list that follows from
the name, so whoever cancels by the name can ask the broker for each of them. When many of these keys are taken, a
message gets a unique key; then some keys of the list are known to the broker, which says that a search is needed.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Iterator
from typing import Final

from tickwheel.client.results import CancelResult

COPY_KEYS: Final = 48
"""How many keys the list of a name has."""
_TRIED: Final = 16
"""How many keys of the list a sender tries, each with a request."""

_WEIGHT: Final = (
    CancelResult.CANCELLED,
    CancelResult.STOPPED,
    CancelResult.ALREADY_DELIVERED,
    CancelResult.ALREADY_ACKED,
    CancelResult.ALREADY_CANCELLED,
    CancelResult.EXPIRED,
    CancelResult.NOT_FOUND,
)


def copy_keys(name: str) -> list[str]:
    """The keys by which further messages of a name are found."""
    return [f"{name}:copy:{number}" for number in range(1, COPY_KEYS + 1)]


def copy_keys_to_try(name: str) -> Iterator[str]:
    """Keys for one further message, of which a sender takes the first that is free; the last is unique.

    They are drawn, so that a sender finds a free key soon, however many are taken."""
    yield from random.sample(copy_keys(name), _TRIED)
    yield f"{name}:copy:{secrets.token_hex(8)}"


def answer_for_all(results: Iterable[CancelResult]) -> CancelResult:
    """What became of a name whose messages have these results: it was cancelled if a message was."""
    return min(results, key=_WEIGHT.index)
