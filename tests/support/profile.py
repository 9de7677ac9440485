"""How much the tests try, in three profiles: `make test`, which runs before each commit, `.ci/run`, and `make soak`.

``TICKWHEEL_PROFILE`` names one: ``quick`` (the default), ``ci`` or ``soak``. What a test proves is the same in each, on
more examples or fewer. A single amount is set by a variable of its own: ``TICKWHEEL_KILLS=350``.
`docs/reliability.md` has the table, and `tests/unit/test_profile.py` compares it with this one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

QUICK, CI, SOAK = "quick", "ci", "soak"
PROFILES: Final = (QUICK, CI, SOAK)
PROFILE: Final = os.environ.get("TICKWHEEL_PROFILE", QUICK)
if PROFILE not in PROFILES:
    raise ValueError(f"TICKWHEEL_PROFILE is {PROFILE!r}: it is one of {', '.join(PROFILES)}")


class Amount(NamedTuple):
    """How many of something each profile tries."""

    what: str
    quick: int
    ci: int
    soak: int


AMOUNTS: Final = {
    "seeds": Amount("seeds of the simulator", 48, 200, 200),
    "kills": Amount("kills of the daemon under load", 10, 50, 1_000),
    "purge_kills": Amount("kills while it purges", 5, 15, 300),
    "flips": Amount("flipped bits in each kind of file, after each kind of end", 6, 12, 10_000),
    "torn_places": Amount("places at which a file is torn, in three ways each", 2, 6, 5_000),
    "examples": Amount("examples of hypothesis, where a test says nothing else", 15, 50, 1_000),
    "parser_examples": Amount("examples for each parser", 30, 100, 20_000),
    "damaged_files": Amount("damaged files for each reader", 30, 100, 3_000),
    "hostile_connections": Amount("connections that send nonsense to the daemon", 50, 150, 5_000),
    "consumer_kills": Amount("kills of consumers of a message table", 3, 3, 200),
    "server_kills": Amount("kills of the database under them", 1, 2, 20),
    "key_space_kills": Amount("rounds of kills of a key space's services", 2, 5, 60),
    "queue_kills": Amount("rounds of kills of a queue's consumers", 2, 5, 100),
    "overload_s": Amount("seconds of each kind of overload", 2, 2, 30),
}


def amount(name: str) -> int:
    """How many of it this run tries."""
    return int(os.environ.get(f"TICKWHEEL_{name.upper()}", getattr(AMOUNTS[name], PROFILE)))


def examples(full: int) -> int:
    """How many examples of hypothesis, for a test whose examples cost more or less than usual: ``full`` in ``ci``."""
    usual = AMOUNTS["examples"]
    return max(1, full * amount("examples") // usual.ci) if PROFILE != CI else full


def limit_s(seconds: float) -> float:
    """How long a test may take: as long as it likes in a soak."""
    return 0 if PROFILE == SOAK else seconds


def some_of(places: Sequence[T], one_in: int) -> Sequence[T]:
    """All of them, but in a quick run one in so many: each day others, so that all have their turn."""
    return places[today() % one_in :: one_in] if PROFILE == QUICK else places


def every(step: int) -> int:
    """From which place to the next, where it is not known how many there are: see ``some_of``."""
    return step if PROFILE == QUICK else 1


def today() -> int:
    """The number of the day, for what begins elsewhere each day."""
    return int(os.environ.get("TICKWHEEL_DAY", datetime.now(UTC).toordinal()))
