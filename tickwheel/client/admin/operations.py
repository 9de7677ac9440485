"""Watching a broker from outside."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from tickwheel.client.checks import flag, one_id, whole
from tickwheel.client.requests import Requests
from tickwheel.protocol.bodies.operations import (
    MAX_AUDIT_LINES,
    Disconnect,
    DisconnectOk,
    GetAudit,
    GetAuditOk,
    GetClients,
    GetFigures,
)
from tickwheel.protocol.errors import BadFrame, RemoteProtocolError
from tickwheel.stats import AuditLine, AuditTail, ClientInfo, Figures, GroupFigures, TopicFigures


class _Page(msgspec.Struct, frozen=True):
    """Topics and groups, a part of them."""

    topics: list[TopicFigures]
    groups: list[GroupFigures]
    more: bool


class _FirstPage(Figures, frozen=True, kw_only=True):
    """And the broker's own."""

    groups: list[GroupFigures]
    more: bool


class _Clients(msgspec.Struct, frozen=True):
    clients: list[ClientInfo]
    more: bool


class OperationRequests(Requests):
    """Of interest to who runs the broker."""

    async def figures(self, *, totals_only: bool = False) -> Figures:
        """The broker's counters and histograms, as ``/metrics`` has them, and those of every topic and group;
        ``totals_only``: without those of each, which costs little where there are many."""
        asked = GetFigures(totals_only=flag(totals_only, "totals_only"))
        first = await self._ask(asked, _FirstPage)
        page: _FirstPage | _Page = first
        topics, groups = list(page.topics), list(page.groups)
        while page.more:
            after_topic, after_group = topics[-1].topic_id, groups[-1].group_id if groups else 0
            page = await self._ask(GetFigures(after_topic=after_topic, after_group=after_group), _Page)
            if not (page.topics or page.groups):
                raise RemoteProtocolError("An answer about figures was empty.")
            topics += page.topics
            groups += page.groups
        of_topic: defaultdict[int, list[GroupFigures]] = defaultdict(list)
        for group in groups:
            of_topic[group.topic_id].append(group)
        return Figures(
            now_ms=first.now_ms,
            started_ms=first.started_ms,
            totals=first.totals,
            counters=first.counters,
            gauges=first.gauges,
            histograms=first.histograms,
            topics=[msgspec.structs.replace(topic, groups=of_topic[topic.topic_id]) for topic in topics],
        )

    async def clients(self) -> list[ClientInfo]:
        """Who is connected to the broker, this client included. Needs the permission ``admin:*``."""
        found: list[ClientInfo] = []
        while True:
            page = await self._ask(GetClients(after_id=found[-1].id if found else 0), _Clients)
            found += page.clients
            if not page.more:
                return found
            if not page.clients:
                raise RemoteProtocolError("An answer about clients was empty.")

    async def disconnect(self, id: int) -> bool:
        """Closes the connection with this number of ``clients``; False: there is none, or none any more. What it holds
        goes to other subscribers at once. A client that is well connects again: to keep it out, revoke its token. Needs
        the permission ``admin:*``."""
        return (await self._answer(Disconnect(id=one_id(id)), DisconnectOk)).closed

    async def audit(self, *, after: int | None = None, limit: int = 100) -> AuditTail:
        """The last lines of the broker's audit log; or those after the one with a number, as many as there are up to
        ``limit`` (1,000), so that asked again with the last number it is followed. Needs the permission ``admin:*``."""
        request = GetAudit(
            after=None if after is None else one_id(after), limit=whole(limit, "limit", 1, MAX_AUDIT_LINES)
        )
        found = await self._answer(request, GetAuditOk)
        return AuditTail([_audit_line(number, line) for number, line in found.lines], found.has_gap)


def _audit_line(number: int, line: bytes) -> AuditLine:
    """Raises BadFrame."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"An answer was not understood: {error}.") from None
    timestamp, event, outcome = (str(fields.pop(name, "")) for name in ("timestamp", "event", "outcome"))
    return AuditLine(number, timestamp, event, outcome, fields)
