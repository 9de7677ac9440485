"""Topics and groups of RocketMQ's clients, and what a seed makes likely among them."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Final

from tickwheel_gateway.config import Config, Group
from tickwheel_gateway.wire.names import DEAD, topic_of
from tickwheel_simulation.network import NetworkFaults

TOPIC, ORDERLY = "rockets", "steps"
PUSH, CHOOSY, SIMPLE, FIFO = "workers", "choosy", "pollers", "steppers"
GROUPS: Final[dict[str, tuple[str, ...]]] = {TOPIC: (PUSH, CHOOSY, SIMPLE), ORDERLY: (FIFO,)}
"""Those of each topic. Their names are the same in Tickwheel."""
BURIERS: Final = "buriers"
"""The group that reads all dead letters."""
WANTED_TAGS: Final = ("a", "b")
TAGS: Final = (*WANTED_TAGS, "c", "")

RENEW_LEASE_MS: Final = 20_000
RENEW_MAX_MS: Final = 120_000
INVISIBLE_MIN_MS: Final = 1_000
POLL_MS: Final = 4_000
CHECK_AFTER_MS: Final = 2_000
CHECK_INTERVAL_MS: Final = 3_000
CHECK_ATTEMPTS: Final = 1_000


def all_groups() -> list[tuple[str, str]]:
    """(topic, group) of each."""
    return [(topic, group) for topic, groups in GROUPS.items() for group in groups]


def dead_letters_of(group: str) -> str:
    """The topic of what a group has given up, in Tickwheel."""
    return topic_of(DEAD + group)


def _rarely(rng: random.Random, most: float) -> float:
    return 0.0 if rng.random() < 0.4 else rng.random() * most


@dataclass(frozen=True)
class Profile:
    """Rates are per ten simulated seconds, the rest are probabilities, sizes and times."""

    network: NetworkFaults
    gateways: int
    producers: int
    consumers_a_group: int
    pause_s: float
    kills: float
    stops: float
    cuts: float
    lost_answers: float
    """Of the answers: the connection of the client breaks when this one arrives."""
    cancels: float
    """How likely a call is taken back soon."""
    vanish: float
    """How likely a client vanishes after a step, to come back with the same id."""
    says_goodbye: float
    """How likely it says so before."""
    fails: float
    slow: float
    """How likely a handler takes longer than a lease."""
    forgets: float
    undecided: float
    """How likely a producer leaves a transaction to the check-back."""
    max_attempts: int
    by_sql: bool
    """How the choosy group chooses."""
    fifo_batch: int

    @staticmethod
    def draw(rng: random.Random) -> Profile:
        """The profile of a seed."""
        network = NetworkFaults(
            delay_s=rng.choice((0.0, 0.002, 0.05, 0.4)),
            slow_piece=_rarely(rng, 0.03),
            partial=_rarely(rng, 0.5),
            cut_after_bytes=_rarely(rng, 0.4),
            silent=_rarely(rng, 0.05),
            refused=_rarely(rng, 0.3),
        )
        return Profile(
            network=network,
            gateways=rng.choice((1, 1, 2)),
            producers=rng.randint(1, 2),
            consumers_a_group=rng.randint(1, 2),
            pause_s=rng.choice((0.2, 0.8, 3.0)),
            kills=_rarely(rng, 0.5),
            stops=_rarely(rng, 0.3),
            cuts=_rarely(rng, 3.0),
            lost_answers=_rarely(rng, 0.2),
            cancels=_rarely(rng, 0.1),
            vanish=_rarely(rng, 0.05),
            says_goodbye=rng.random(),
            fails=_rarely(rng, 0.4),
            slow=_rarely(rng, 0.2),
            forgets=_rarely(rng, 0.2),
            undecided=rng.random() * 0.7,
            max_attempts=rng.randint(1, 4),
            by_sql=rng.random() < 0.5,
            fifo_batch=rng.choice((1, 4)),
        )

    def described(self) -> dict[str, object]:
        """For people."""
        return asdict(self)

    def config(self) -> Config:
        """Of the gateway: times are shorter than usual, so that more happens in less time."""
        return Config(
            long_polling_max_ms=POLL_MS,
            invisible_min_ms=INVISIBLE_MIN_MS,
            renew_lease_ms=RENEW_LEASE_MS,
            renew_max_ms=RENEW_MAX_MS,
            max_attempts=self.max_attempts,
            retry_delays_ms=(1_000, 2_000, 5_000),
            # Who buries has no dead letters of its own.
            groups={BURIERS: Group(max_attempts=1_000)},
            fifo_groups=(FIFO,),
        )
