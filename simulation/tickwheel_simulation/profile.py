"""What a seed makes likely: drawn once, and printed when something is wrong."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace

from tickwheel_simulation.network import NetworkFaults

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS


def _rarely(rng: random.Random, most: float) -> float:
    """Often 0, so that runs differ in kind: a fault that is always there hides others."""
    return 0.0 if rng.random() < 0.4 else rng.random() * most


@dataclass(frozen=True)
class Profile:
    """Rates are per ten simulated seconds, the rest are probabilities, sizes and times."""

    network: NetworkFaults
    producers: int
    consumers_a_group: int
    pause_s: float
    sync_delay_s: float
    slow_sync: float
    kills: float
    kills_in_calls: float
    power_losses: float
    stops: float
    sync_errors: float
    write_errors: float
    read_error_at_start: float
    disk_full: float
    cuts: float
    jumps: float
    largest_jump_ms: int
    night_ms: int
    nights: int
    nack: float
    silence: float
    extend: float
    leave: float
    large_bodies: float
    longest_delay_ms: int
    purge_after_ms: int
    ack_wait_ms: int
    max_backoff_ms: int
    max_attempts: int
    max_topics: int
    slow: float
    """How likely a handler takes longer than a lease."""
    cancels: float = 0.0
    stills: float = 0.0
    """How often a client stands still."""

    @staticmethod
    def draw(rng: random.Random) -> Profile:
        """The profile of a seed."""
        network = NetworkFaults(
            delay_s=rng.choice((0.0, 0.002, 0.05, 0.5)),
            slow_piece=_rarely(rng, 0.05),
            partial=_rarely(rng, 0.5),
            cut_after_bytes=_rarely(rng, 0.5),
            silent=_rarely(rng, 0.1),
            refused=_rarely(rng, 0.3),
        )
        ack_wait_ms = rng.choice((300, 2_000, 10_000))
        profile = Profile(
            network=network,
            producers=rng.randint(1, 3),
            consumers_a_group=rng.randint(1, 3),
            pause_s=rng.choice((0.5, 2.0, 8.0)),
            sync_delay_s=rng.choice((0.0, 0.001, 0.02)),
            slow_sync=_rarely(rng, 0.05),
            kills=_rarely(rng, 0.6),
            kills_in_calls=_rarely(rng, 0.6),
            power_losses=_rarely(rng, 0.6),
            stops=_rarely(rng, 0.4),
            sync_errors=_rarely(rng, 0.2),
            write_errors=_rarely(rng, 0.2),
            read_error_at_start=_rarely(rng, 0.3),
            disk_full=_rarely(rng, 0.5),
            cuts=_rarely(rng, 4.0),
            jumps=_rarely(rng, 0.6),
            largest_jump_ms=rng.choice((2_000, 10 * MINUTE_MS, DAY_MS)),
            night_ms=rng.choice((HOUR_MS, 30 * DAY_MS, 3 * YEAR_MS)),
            nights=rng.randint(0, 2),
            nack=_rarely(rng, 0.3),
            silence=_rarely(rng, 0.2),
            extend=_rarely(rng, 0.2),
            leave=_rarely(rng, 0.1),
            large_bodies=_rarely(rng, 0.1),
            longest_delay_ms=rng.choice((10_000, 10 * MINUTE_MS, 60 * DAY_MS, 5 * YEAR_MS)),
            purge_after_ms=rng.choice((2 * DAY_MS, 10 * DAY_MS)),
            ack_wait_ms=ack_wait_ms,
            max_backoff_ms=ack_wait_ms * rng.choice((1, 4)),
            max_attempts=rng.randint(1, 4),
            max_topics=16,
            slow=_rarely(rng, 0.3),
        )
        # What came later is drawn last, so that the profile of a seed stays what it was.
        network = replace(network, lost_answers=_rarely(rng, 0.5))
        return replace(profile, network=network, cancels=_rarely(rng, 0.3), stills=_rarely(rng, 4.0))

    def described(self) -> dict[str, object]:
        """For people."""
        return asdict(self)
