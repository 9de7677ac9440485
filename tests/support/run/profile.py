"""How much the tests try, in three profiles: `make test`, which runs before each commit, `.ci/run`, and `make soak`.

``TICKWHEEL_PROFILE`` names one: ``quick`` (the default), ``ci`` or ``soak``. What a test proves is the same in each, on
more examples or fewer. A single amount is set by a variable of its own: ``TICKWHEEL_KILLS=350``.
`docs/reliability.md` has the table, and `tests/unit/test_profile.py` compares it with this one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar
from zlib import crc32

T = TypeVar("T")

QUICK, CI, SOAK = "quick", "ci", "soak"
PROFILES: Final = (QUICK, CI, SOAK)
PROFILE: Final = os.environ.get("TICKWHEEL_PROFILE", QUICK)
if PROFILE not in PROFILES:
    raise ValueError(f"TICKWHEEL_PROFILE is {PROFILE!r}: it is one of {', '.join(PROFILES)}")

LOOPS: Final = ("trio", "asyncio")
DATABASES: Final = ("sqlite", "postgresql", "mariadb")

TAKE_TURNS: Final = (
    "tests/fuzz/",
    "tests/integration/",
    "tests/outbox/",
    "tests/simulation/test_cluster_mutations.py",
    "tests/simulation/test_mutations.py",
    "tests/spark/",
)
"""Tests of whole processes, and defects that are planted, take longer than all the rest of a quick run."""
TURNS: Final = {QUICK: 6, CI: 2, SOAK: 1}
"""One in so many of them is in each day's runs."""


class Amount(NamedTuple):
    """How many of something each profile tries."""

    what: str
    quick: int
    ci: int
    soak: int


AMOUNTS: Final = {
    "seeds": Amount("seeds of the simulator", 24, 80, 200),
    "cluster_seeds": Amount("seeds of the simulator with a cluster", 24, 60, 200),
    "endpoint_seeds": Amount("seeds of the simulator with an endpoint", 2, 8, 200),
    "gateway_seeds": Amount("seeds of the simulator with clients of RocketMQ", 2, 6, 200),
    "repeated_s": Amount("simulated seconds of a seed that is run twice", 12, 36, 72),
    "kills": Amount("kills of the daemon under load", 10, 25, 1_000),
    "web_kills": Amount("kills of the web process, and of the broker under it", 3, 6, 200),
    "gateway_kills": Amount(
        "kills of the gateway for RocketMQ, of the broker under it, and of both", 3, 6, 200
    ),
    "purge_kills": Amount("kills while it purges", 5, 10, 300),
    "flips": Amount("flipped bits in each kind of file, after each kind of end", 6, 9, 10_000),
    "torn_places": Amount("places at which a file is torn, in three ways each", 2, 4, 5_000),
    "examples": Amount("examples of hypothesis, where a test says nothing else", 15, 50, 1_000),
    "parser_examples": Amount("examples for each parser", 30, 100, 20_000),
    "damaged_files": Amount("damaged files for each reader", 30, 100, 3_000),
    "hostile_connections": Amount("connections that send nonsense to the daemon", 50, 150, 5_000),
    "consumer_kills": Amount("kills of consumers of a message table", 3, 3, 200),
    "server_kills": Amount("kills of the database under them", 1, 2, 20),
    "key_space_kills": Amount("rounds of kills of a key space's services", 2, 3, 60),
    "queue_kills": Amount("rounds of kills of a queue's consumers", 2, 3, 100),
    "cluster_kills": Amount("kills of nodes of a cluster, and of Kafka", 4, 10, 300),
    "cluster_runs": Amount("runs of three nodes on an arbitrary assigner", 4, 10, 1_000),
    "rotting_runs": Amount("runs of three nodes whose disks damage what they have", 1, 4, 200),
    "cluster_harms": Amount("harms of each of nine kinds to the daemons of a cluster", 1, 2, 20),
    "queries": Amount("queries beside purges", 2, 5, 50),
    "overload_s": Amount("seconds of each kind of overload", 2, 2, 30),
    "idle_hours": Amount("simulated hours of a broker that has little to do", 1, 2, 3),
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
    """One in so many, in ci four times as many, in a soak all: each day others, so that all have their turn."""
    step = _step(one_in, 4)
    return places[today() % step :: step]


def every(step: int) -> int:
    """From which place to the next, where it is not known how many there are: see ``some_of``; in ci half as far."""
    return _step(step, 2)


def _step(quick: int, shorter_in_ci: int) -> int:
    return {QUICK: quick, CI: max(1, quick // shorter_in_ci), SOAK: 1}[PROFILE]


def is_left_out(test: str, parameters: Collection[object]) -> bool:
    """Whether a quick run leaves out these parameters of a test that runs on each database and on each event loop: it
    has each database, with one of the loops, and each loop. Which go together changes with the test and the day."""
    words = {one for one in parameters if isinstance(one, str)}
    loops, databases = ([one for one in kinds if one in words] for kinds in (LOOPS, DATABASES))
    if PROFILE != QUICK or len(loops) != 1 or len(databases) != 1:
        return False
    turn = LOOPS.index(loops[0]) + DATABASES.index(databases[0]) + crc32(test.encode()) + today()
    return bool(turn % 2)


def has_its_day(node: str) -> bool:
    """Whether this run has a test. Of those of ``TAKE_TURNS`` a run has one in ``TURNS``, each day others, and all
    examples of a test or none."""
    test = node.partition("[")[0]
    return not test.startswith(TAKE_TURNS) or (crc32(test.encode()) + today()) % TURNS[PROFILE] == 0


def today() -> int:
    """The number of the day, for what begins elsewhere each day."""
    return int(os.environ.get("TICKWHEEL_DAY", datetime.now(UTC).toordinal()))
