"""A RocketMQ and a gateway with its broker that are set up alike, for the conformance programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.processes.daemon_harness import Daemon
from tests.support.rocketmq.gateway_process import Gateway
from tickwheel_bench.rocketmq.their_server import Group, MessageType, RocketMQ, Topic, rocketmq

STEPS: Final = range(1, 17)
ATTEMPTS: Final = 3
"""Of a message that fails each time, in step 10."""

KINDS: Final[dict[int, tuple[str, ...]]] = {
    5: ("fifo",),
    6: ("delay",),
    7: ("fifo", "nack", "simple"),
    8: ("transaction",),
    10: ("dead",),
    13: ("kept",),
    16: ("priority",),
}
"""The topics of a step besides its normal one: ``diff_STEP_KIND_RUN``."""

_TYPES: Final[dict[str, MessageType]] = {
    "fifo": "FIFO",
    "nack": "FIFO",
    "simple": "FIFO",
    "delay": "DELAY",
    "transaction": "TRANSACTION",
}
_FLAGS: Final = ("--fifo-groups", "diff_7_group*", "--priority-topics", "diff_16_priority_*")


def topics_of(run: str) -> Iterator[Topic]:
    """All that a program uses. There each takes messages of one type; here it needs none."""
    for step in STEPS:
        for kind in ("normal", *KINDS.get(step, ())):
            yield Topic(f"diff_{step}_{kind}_{run}", _TYPES.get(kind, "NORMAL"))


def groups_of(run: str) -> Iterator[Group]:
    """Those that are not as all others."""
    for kind in ("", "nack", "simple"):
        yield Group(f"diff_7_group{kind}_{run}", is_orderly=True)
    yield Group(f"diff_10_groupdead_{run}", retries=ATTEMPTS - 1)


@contextmanager
def theirs(folder: Path, runs: Iterable[str]) -> Iterator[RocketMQ]:
    with rocketmq(folder) as server:
        server.create(
            [topic for run in runs for topic in topics_of(run)],
            [group for run in runs for group in groups_of(run)],
        )
        yield server


@contextmanager
def ours(folder: Path, runs: Iterable[str], *flags: str) -> Iterator[Gateway]:
    attempts = " ".join(f"diff_10_groupdead_{run}={ATTEMPTS}" for run in runs)
    with (
        Daemon(folder / "data") as daemon,
        Gateway(daemon.unix_url, folder, *_FLAGS, "--groups", attempts, *flags) as gateway,
    ):
        yield gateway
