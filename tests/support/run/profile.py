"""What a run of the tests holds and how much it tries: `make test`, `.ci/run`, `make nightly` and `make soak`.

``TICKWHEEL_PROFILE`` names the profile: ``quick`` (the default), ``ci``, ``nightly`` or ``soak``. ``quick`` and ``ci``
are the same on every day: the same tests, the same seeds. ``nightly`` and ``soak`` draw a number, which the first line
of their run shows; ``TICKWHEEL_SEED`` repeats it. A single amount has a variable of its own: ``TICKWHEEL_KILLS=350``.
`docs/reliability.md` has the table, and `tests/unit/test_profile.py` compares it with this module.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from zlib import crc32

T = TypeVar("T")

QUICK, CI, NIGHTLY, SOAK = "quick", "ci", "nightly", "soak"
PROFILES: Final = (QUICK, CI, NIGHTLY, SOAK)
PROFILE: Final = os.environ.get("TICKWHEEL_PROFILE", QUICK)
if PROFILE not in PROFILES:
    raise ValueError(f"TICKWHEEL_PROFILE is {PROFILE!r}: it is one of {', '.join(PROFILES)}")

DRAWS: Final = PROFILE in (NIGHTLY, SOAK)
"""Whether this run tries what no run before it has tried."""
SEED: Final = int(os.environ.get("TICKWHEEL_SEED") or (secrets.randbelow(1 << 31) if DRAWS else 0))
if DRAWS:
    os.environ["TICKWHEEL_SEED"] = str(SEED)  # the processes of a run have the same

LOOPS: Final = ("trio", "asyncio")
DATABASES: Final = ("sqlite", "postgresql", "mariadb")

PROCESSES: Final = (
    "tests/browser/",
    "tests/cluster/",
    "tests/crash/",
    "tests/fuzz/",
    "tests/integration/",
    "tests/interop/",
    "tests/outbox/",
    "tests/spark/",
)
"""Folders whose tests start programs. ``quick`` has the tests there that are marked ``promise`` or ``quick``, unless
they are marked ``ci``."""
PROMISE: Final = "promise"
"""Tests that show what the pages promise: see `tests/support/run/evidence.py`."""
INTEROP: Final = "interop"
"""Clients of other languages, and suites of other projects: `make interop` and `make nightly` ask for them."""


class Amount(NamedTuple):
    """How many of something each profile tries."""

    what: str
    quick: int
    ci: int
    nightly: int
    soak: int


AMOUNTS: Final = {
    "seeds": Amount("seeds of the simulator", 10, 40, 80, 200),
    "cluster_seeds": Amount("seeds of the simulator with a cluster", 8, 30, 60, 200),
    "cut_seeds": Amount("seeds of the simulator with cut links of a cluster", 6, 10, 20, 200),
    "restore_seeds": Amount("seeds of the simulator with restores", 2, 3, 6, 100),
    "endpoint_seeds": Amount("seeds of the simulator with an endpoint", 2, 4, 8, 200),
    "gateway_seeds": Amount("seeds of the simulator with clients of RocketMQ", 2, 4, 6, 200),
    "repeated_s": Amount("simulated seconds of a seed that is run twice", 12, 24, 36, 72),
    "kills": Amount("kills of the daemon under load", 10, 15, 25, 1_000),
    "web_kills": Amount("kills of the web process, and of the broker under it", 3, 4, 6, 200),
    "gateway_kills": Amount(
        "kills of the gateway for RocketMQ, of the broker under it, and of both", 3, 4, 6, 200
    ),
    "put_kills": Amount(
        "kills of `tickwheel flight`, and of the broker under it, in each phase of a bulk job that is put",
        1,
        1,
        2,
        20,
    ),
    "purge_kills": Amount("kills while it purges", 5, 6, 10, 300),
    "flips": Amount("flipped bits in each kind of file, after each kind of end", 6, 8, 9, 10_000),
    "torn_places": Amount("places at which a file is torn, in three ways each", 2, 3, 4, 5_000),
    "examples": Amount("examples of hypothesis, where a test says nothing else", 15, 30, 50, 1_000),
    "parser_examples": Amount("examples for each parser", 30, 60, 100, 20_000),
    "damaged_files": Amount("damaged files for each reader", 30, 60, 100, 3_000),
    "hostile_connections": Amount("connections that send nonsense to the daemon", 50, 100, 150, 5_000),
    "consumer_kills": Amount("kills of consumers of a message table", 3, 3, 3, 200),
    "server_kills": Amount("kills of the database under them", 1, 1, 2, 20),
    "key_space_kills": Amount("rounds of kills of a key space's services", 2, 2, 3, 60),
    "queue_kills": Amount("rounds of kills of a queue's consumers", 2, 2, 3, 100),
    "django_kills": Amount("kills of two of Django's producer, relay and worker", 2, 3, 6, 100),
    "cluster_kills": Amount("kills of nodes of a cluster, and of Kafka", 4, 6, 10, 300),
    "cluster_runs": Amount("runs of three nodes on an arbitrary assigner", 4, 6, 10, 1_000),
    "rotting_runs": Amount("runs of three nodes whose disks damage what they have", 1, 2, 4, 200),
    "cluster_harms": Amount("harms of each of nine kinds to the daemons of a cluster", 1, 1, 2, 20),
    "bulk_kills": Amount("kills of nodes of a cluster that takes a bulk job in", 3, 4, 6, 60),
    "queries": Amount("queries beside purges", 2, 3, 5, 50),
    "overload_s": Amount("seconds of each kind of overload", 2, 2, 2, 30),
    "idle_hours": Amount("simulated hours of a broker that has little to do", 1, 1, 2, 3),
}


def amount(name: str) -> int:
    """How many of it this run tries."""
    return int(os.environ.get(f"TICKWHEEL_{name.upper()}", getattr(AMOUNTS[name], PROFILE)))


def examples(full: int) -> int:
    """How many examples of hypothesis, for a test whose examples cost more or less than usual: ``full`` in
    ``nightly``."""
    return max(1, full * amount("examples") // AMOUNTS["examples"].nightly)


def limit_s(seconds: float) -> float:
    """How long a test may take: as long as it likes in a soak."""
    return 0 if PROFILE == SOAK else seconds


def seed(name: str) -> int:
    """The seed of what ``name`` draws: the same each day, another in a run that draws."""
    return crc32(name.encode()) ^ SEED


def some_of(places: Sequence[T], one_in: int) -> Sequence[T]:
    """The first, then one in so many, and the last; in ci four times as many, in a soak all."""
    chosen = [*places[:: _step(one_in, 4)]]
    return chosen if not places or chosen[-1] == places[-1] else [*chosen, places[-1]]


def every(step: int) -> int:
    """From which place to the next, where it is not known how many there are: see ``some_of``; in ci half as far."""
    return _step(step, 2)


def _step(quick: int, shorter_in_ci: int) -> int:
    return {QUICK: quick, SOAK: 1}.get(PROFILE, max(1, quick // shorter_in_ci))


def may_hold(file: str, path: Path) -> bool:
    """Whether this profile may hold a test of a file, by its place and its text: what it cannot hold is not loaded."""
    if PROFILE != QUICK or not file.startswith(PROCESSES) or not path.name.startswith("test_"):
        return True
    text = path.read_text(encoding="utf-8")
    return any(f"pytest.mark.{mark}" in text for mark in (QUICK, PROMISE))


def holds(node: str, marks: Collection[str], parameters: Collection[object], *, is_asked_for: bool) -> bool:
    """Whether this run holds a test. ``node``: its id; ``marks``: the names of its markers; ``parameters``: what its
    fixtures and arguments are given. A test that somebody asks for is in each profile, unless it is marked ``soak``."""
    if SOAK in marks:
        return PROFILE == SOAK
    if is_asked_for:
        return True
    if NIGHTLY in marks:
        return PROFILE in (NIGHTLY, SOAK)
    if INTEROP in marks:
        return False
    if PROFILE != QUICK:
        return True
    test = node.partition("[")[0]
    if CI in marks:
        return False
    if test.startswith(PROCESSES) and not {QUICK, PROMISE} & {*marks}:
        return False
    return not _is_another_pair(test, parameters)


def means_something(databases: Collection[str] | None, parameters: Collection[object]) -> bool:
    """Whether a test that is marked with the only databases on which it means something is given no other database."""
    given = {each for each in parameters if isinstance(each, str)} & {*DATABASES}
    return databases is None or given <= {*databases}


def _is_another_pair(test: str, parameters: Collection[object]) -> bool:
    """Whether ``quick`` leaves out these parameters of a test that runs on each database and on each event loop: it
    has each database, with one of the loops, and each loop. Which go together depends on the test's name."""
    words = {each for each in parameters if isinstance(each, str)}
    loops, databases = ([each for each in kinds if each in words] for kinds in (LOOPS, DATABASES))
    if len(loops) != 1 or len(databases) != 1:
        return False
    return bool((LOOPS.index(loops[0]) + DATABASES.index(databases[0]) + crc32(test.encode())) % 2)
