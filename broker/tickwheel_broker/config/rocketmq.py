"""Settings of the gateway for RocketMQ that are texts: what they mean, and whether they fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tickwheel.protocol.units import delay_levels_ms, parse_duration_ms
from tickwheel_broker.config.places import is_loopback, place_of
from tickwheel_broker.config.settings import Settings

_MOST_ATTEMPTS = 10_000


def groups_of(text: str) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Attempts, and delays in milliseconds before retries (none: the usual ones), by the name of a group. Raises
    ValueError.

    >>> groups_of("billing=3 mails=5:10s,1m")
    {'billing': (3, ()), 'mails': (5, (10000, 60000))}
    """
    found: dict[str, tuple[int, tuple[int, ...]]] = {}
    for part in text.split():
        name, equals, rest = part.partition("=")
        attempts, colon, delays = rest.partition(":")
        is_count = attempts.isascii() and attempts.isdecimal() and len(attempts) <= 5
        if not name or not equals or not is_count or not 1 <= int(attempts) <= _MOST_ATTEMPTS:
            raise ValueError(
                f"{part!r} is no group with its attempts; write it like billing=3 or mails=5:10s,1m"
            )
        if name in found:
            raise ValueError(f"{name} is there twice")
        found[name] = int(attempts), tuple(map(parse_duration_ms, delays.split(","))) if colon else ()
    return found


def rocketmq_conflicts(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with them, if the gateway is wanted or not."""
    for name, read in (
        ("rocketmq_listen", place_of),
        ("rocketmq_advertise", lambda text: place_of(text or "localhost:0")),
        ("rocketmq_metrics", lambda text: place_of(text or "localhost:0")),
        ("rocketmq_retry_delays", delay_levels_ms),
        ("rocketmq_groups", groups_of),
    ):
        try:
            read(getattr(settings, name))
        except ValueError as error:
            yield f"{name} ({origins[name]}): {error}"
    if settings.rocketmq_invisible_max_ms < settings.rocketmq_invisible_min_ms:
        yield (
            f"rocketmq_invisible_max ({origins['rocketmq_invisible_max']}) is below rocketmq_invisible_min "
            f"({origins['rocketmq_invisible_min']})"
        )
    if settings.rocketmq:
        yield from _serving_conflicts(settings, origins)


def _serving_conflicts(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    if settings.rocketmq_max_pending_bytes < settings.max_frame_bytes:
        yield (
            f"rocketmq_max_pending_bytes ({origins['rocketmq_max_pending_bytes']}) must be at least max_frame_bytes "
            f"({origins['max_frame_bytes']}), so that one such request can arrive"
        )
    if is_rocketmq_exposed(settings) and not settings.insecure:
        missing = [
            name for name in ("tls_certificate", "rocketmq_credentials_file") if not getattr(settings, name)
        ]
        if missing:
            yield (
                f"rocketmq_listen is {settings.rocketmq_listen!r} ({origins['rocketmq_listen']}), which other machines "
                f"may reach. Set {' and '.join(missing)}, listen on 127.0.0.1, or set insecure = true"
            )


def is_rocketmq_exposed(settings: Settings) -> bool:
    """Whether other machines may reach the gateway."""
    try:
        return not is_loopback(place_of(settings.rocketmq_listen)[0])
    except ValueError:
        return False
