"""All push endpoints, and one of them, with what its group and its last attempts tell of its deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from starlette.responses import Response

from tickwheel import Endpoint, EndpointAttempt
from tickwheel.errors import TickwheelError
from tickwheel.protocol import signing_secrets
from tickwheel.protocol.breaker import Breaker
from tickwheel.stats import GroupStats, datetime_of
from tickwheel_web.dashboard.listing import listed
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.problems import detail_of

ATTEMPTS: Final = 100
_MS_PER_S: Final = 1_000
_FAILED: Final = ("nacked", "dead")
TONES: Final = {"acked": "good", "nacked": "warn", "lease_ended": "warn", "dead": "bad"}


class AskedOne(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Whether its last attempts are to be read from the broker's log."""

    attempts: str = ""


class Circuit(NamedTuple):
    """What the circuit breaker of ``tickwheel push`` makes of attempts."""

    failures: int
    """In a row, up to the last answer."""
    open_since: datetime | None = None
    """None: it is closed."""
    next_try: datetime | None = None


async def endpoints(viewed: Viewed) -> Response:
    """A part of them, by name."""
    found = await viewed.client.endpoints()
    part = listed(viewed, found, lambda one: one.name, lambda one: f"{one.name}\n{one.topic}")
    groups = {(one.topic, one.name): one for one in await viewed.client.groups()} if part.rows else {}
    with_groups = [(one, groups.get((one.topic, one.group))) for one in part.rows]
    return viewed.page(
        "push/list.html",
        rows=[(one, group, None if group is None else success(group)) for one, group in with_groups],
        disabled=sum(not one.enabled for one in found),
        part=part,
    )


async def endpoint(viewed: Viewed) -> Response:
    """One, with all that can be done with it. Its attempts are read from the broker's log, which takes a while: a
    script asks for them when the page is there."""
    found = await viewed.client.endpoint(viewed.path("endpoint"))
    groups = {one.name: one for one in await viewed.client.groups(found.topic)}
    group = groups.get(found.group)
    attempts: Sequence[EndpointAttempt] = []
    trouble = ""
    if viewed.query.attempts and viewed.rights.sees(f"admin:{found.topic}"):
        try:
            told = await viewed.client.endpoint_attempts(found.name, limit=ATTEMPTS)
            attempts = told.attempts
            trouble = (
                "Only a part of the broker's log was read: less is known of these." if told.missing else ""
            )
        except TickwheelError as error:
            trouble = detail_of(error)
    return viewed.page(
        "push/one.html",
        endpoint=found,
        group=group,
        success=None if group is None else success(group),
        secrets=shortened(found),
        attempts=attempts,
        most=ATTEMPTS,
        trouble=trouble,
        tones=TONES,
        circuit=circuit(attempts, found.give_up_on),
    )


def success(group: GroupStats) -> float | None:
    """The share of deliveries that were taken; None: none has ended.

    >>> success(GroupStats("push.shop", 1, delivered=10, acked=6, leased=2, backlog=2, subscribers=1))
    0.75
    """
    ended = group.delivered - group.leased
    return min(1.0, group.acked / ended) if ended > 0 else None


def circuit(attempts: Sequence[EndpointAttempt], give_up_on: Sequence[int]) -> Circuit:
    """By the same rule as ``tickwheel push``, which keeps it to itself but for its metrics. Newest first. A status on
    which it gives up judged the message, so the endpoint works.

    >>> failed = [EndpointAttempt(epoch=1, time_ms=ms, outcome="nacked") for ms in range(20_000, 0, -1_000)]
    >>> circuit(failed, [])[0], str(circuit(failed, [])[1]), str(circuit(failed, [])[2])
    (20, '1970-01-01 00:00:20+00:00', '1970-01-01 00:00:25+00:00')
    >>> circuit([EndpointAttempt(epoch=1, outcome="acked"), *failed], [])
    Circuit(failures=0, open_since=None, next_try=None)
    """
    breaker, failures, since = Breaker(), 0, None
    for one in reversed(attempts):
        if one.outcome == "acked" or (one.outcome == "dead" and one.status in give_up_on):
            breaker.succeeded()
            failures, since = 0, None
        elif one.outcome in _FAILED and one.time_ms is not None:
            breaker.failed(one.time_ms / _MS_PER_S)
            failures += 1
            since = since or (one.time if breaker.is_open else None)
    if since is None:
        return Circuit(failures)
    return Circuit(failures, since, datetime_of(int(breaker.probe_at * _MS_PER_S)))


def shortened(endpoint: Endpoint) -> list[str]:
    """Enough of its secrets to tell them apart."""
    return [one if one.endswith("…") else signing_secrets.shortened(one) for one in endpoint.secrets]
