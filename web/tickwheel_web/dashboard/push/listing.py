"""All push endpoints, and one of them, with what its group and its last attempts tell of its deliveries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec
from starlette.responses import Response

from tickwheel import Endpoint, EndpointAttempt
from tickwheel.errors import TickwheelError
from tickwheel.protocol.targets import signing_secrets
from tickwheel.stats import GroupStats
from tickwheel_web.dashboard.listing import listed
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.dashboard.push.settings import listed_settings
from tickwheel_web.problems import detail_of

ATTEMPTS: Final = 100
TONES: Final = {"acked": "good", "nacked": "warn", "lease_ended": "warn", "dead": "bad"}


class AskedOne(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Which part of its page, and whether its last attempts are to be read from the broker's log."""

    attempts: str = ""
    tab: Literal["now", "settings"] = "now"
    """How it goes, or its settings, secrets, and what cannot be taken back."""


async def endpoints(viewed: Viewed) -> Response:
    """A part of them, by name."""
    found = await viewed.client.endpoints()
    groups = {(one.topic, one.name): one for one in await viewed.client.groups()} if found else {}

    def figure(name: str) -> Callable[[Endpoint], float]:
        return lambda one: getattr(groups.get((one.topic, one.group)), name, 0)

    part = listed(
        viewed,
        found,
        lambda one: one.name,
        lambda one: f"{one.name}\n{one.topic}",
        {"backlog": figure("backlog"), "in flight": figure("leased"), "failed": figure("dead")},
    )
    with_groups = [(one, groups.get((one.topic, one.group))) for one in part.rows]
    return viewed.page(
        "push/list.html",
        rows=[(one, group, None if group is None else success(group)) for one, group in with_groups],
        states=Counter(one.state.label for one in found),
        part=part,
    )


async def endpoint(viewed: Viewed) -> Response:
    """One, with all that can be done with it. Its attempts are read from the broker's log, which takes a while: a
    script asks for them when the page is there."""
    found = await viewed.client.endpoint(viewed.path("endpoint"))
    groups = {one.name: one for one in await viewed.client.groups(found.topic)}
    group = groups.get(found.group)
    attempts: Sequence[EndpointAttempt] = []
    trouble, has_more = "", False
    if viewed.query.attempts and viewed.rights.sees(f"admin:{found.topic}"):
        try:
            told = await viewed.client.endpoint_attempts(found.name, limit=ATTEMPTS)
            attempts, has_more = told.attempts, told.next is not None
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
        settings=listed_settings(found),
        attempts=attempts,
        has_more=has_more,
        trouble=trouble,
        tones=TONES,
    )


def success(group: GroupStats) -> float | None:
    """The share of deliveries that were taken; None: none has ended.

    >>> success(GroupStats("push.shop", 1, delivered=10, acked=6, leased=2, backlog=2, subscribers=1))
    0.75
    """
    ended = group.delivered - group.leased
    return min(1.0, group.acked / ended) if ended > 0 else None


def shortened(endpoint: Endpoint) -> list[str]:
    """Enough of its secrets to tell them apart."""
    return [one if one.endswith("…") else signing_secrets.shortened(one) for one in endpoint.secrets]
