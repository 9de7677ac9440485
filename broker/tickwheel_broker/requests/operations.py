"""Requests of who runs the broker: who is connected, closing a connection, and what the audit log says."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import Any, Final, Protocol

import msgspec
import trio

from tickwheel.protocol.bodies.operations import Disconnect, DisconnectOk, GetAudit, GetAuditOk, GetClients
from tickwheel.protocol.bodies.requests import encode_entry, encode_map
from tickwheel.protocol.errors import Disconnected, TickwheelError
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.delivery.subscriptions import Subscriptions
from tickwheel_broker.delivery.takers import Fetching, Subscription
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.requests.answers import Asked
from tickwheel_broker.requests.caller import Work
from tickwheel_broker.security.audit import Audit
from tickwheel_broker.security.grants import Identity
from timerlog.tables.tables import Tables

SHOWN: Final = 100
"""Of a client that has more subscriptions, or fetches for messages of more groups, so many are told."""

_ENTRY_BYTES: Final = 512
_TAKER_BYTES: Final = 128
_ROOM_LEFT_BYTES: Final = 4_096
_LINE_BYTES: Final = 16


class Client(Protocol):
    """A connection that is logged in."""

    number: int
    """No other connection since the broker started had it."""
    name: str
    """What it calls itself."""
    since_ms: int
    identity: Identity
    outgoing: Outgoing
    subscriptions: dict[int, Subscription]
    fetches: dict[int, Fetching]
    """Those that wait."""

    @property
    def peer(self) -> str:
        """Where it comes from."""

    def dismiss(self, error: TickwheelError) -> None:
        """Do nothing more for it, tell it why, and close it."""


class Clients:
    """Those that are logged in, the oldest first."""

    def __init__(self) -> None:
        self._clients: dict[int, Client] = {}

    def came(self, client: Client) -> None:
        """It has logged in."""
        self._clients[client.number] = client

    def left(self, client: Client) -> None:
        """Its connection has ended, if it was one of these."""
        self._clients.pop(client.number, None)

    def get(self, number: int) -> Client | None:
        """The one with a number; None: there is none, or none any more."""
        return self._clients.get(number)

    def after(self, number: int) -> list[Client]:
        """Those with higher numbers, in order."""
        return [client for client in self._clients.values() if client.number > number]


class OperationRequests:
    """Show, close, tell."""

    def __init__(
        self,
        *,
        clients: Clients,
        subscriptions: Subscriptions,
        tables: Tables,
        settings: Settings,
        audit: Audit,
    ) -> None:
        self._clients = clients
        self._subscriptions = subscriptions
        self._tables = tables
        self._settings = settings
        self._audit = audit

    def clients(self, request: GetClients, asked: Asked) -> Work:
        """CLIENTS: one after the other, as many as fit into one frame."""

        async def work() -> bytes:
            found: list[msgspec.Raw] = []
            room_bytes = self._settings.max_frame_bytes - _ROOM_LEFT_BYTES
            for client in self._clients.after(request.after_id):
                if self._clients.get(client.number) is None:  # it left meanwhile
                    continue
                entry = self._described(client)
                room_bytes -= _size(entry)
                if room_bytes < 0:
                    return encode_map({"clients": found, "more": True})
                found.append(encode_entry(entry))
                await trio.lowlevel.checkpoint()
            return encode_map({"clients": found, "more": False})

        return asked.looking(work)

    def disconnect(self, request: Disconnect, asked: Asked) -> DisconnectOk:
        """DISCONNECT: what it holds goes to others at once."""
        client = self._clients.get(request.id)
        if client is None:
            return DisconnectOk(closed=False)
        self._clients.left(client)
        client.dismiss(Disconnected())
        return DisconnectOk(closed=True)

    def audit(self, request: GetAudit, asked: Asked) -> GetAuditOk:
        """AUDIT."""
        room_bytes = self._settings.max_frame_bytes - _ROOM_LEFT_BYTES - _LINE_BYTES * request.limit
        return GetAuditOk(*self._audit.tail(request.after, request.limit, room_bytes))

    def _described(self, client: Client) -> dict[str, Any]:
        """See `tickwheel.stats.ClientInfo`."""
        shown = islice(client.subscriptions.values(), SHOWN)
        fetches: defaultdict[int, list[int]] = defaultdict(list)
        for fetching in client.fetches.values():
            fetches[fetching.group_id].append(fetching.since_ms)
        return {
            "id": client.number,
            "peer": client.peer,
            "name": client.name,
            "token": client.identity.login,
            "token_name": client.identity.name,
            "since_ms": client.since_ms,
            "queued_bytes": client.outgoing.queued_bytes,
            "subscriptions": [self._subscription(one) for one in shown],
            "more_subscriptions": max(0, len(client.subscriptions) - SHOWN),
            "fetches": [
                self._named(group_id) | {"count": len(since), "since_ms": min(since)}
                for group_id, since in islice(fetches.items(), SHOWN)
            ],
            "more_fetches": sum(len(since) for since in islice(fetches.values(), SHOWN, None)),
        }

    def _named(self, group_id: int) -> dict[str, Any]:
        group = self._tables.groups.get(group_id)
        topic = None if group is None else self._tables.topics.get(group.record.topic_id)
        return {
            "topic": "" if topic is None else topic.record.name,
            "group": "" if group is None else group.record.name,
            "group_id": group_id,
        }

    def _subscription(self, subscription: Subscription) -> dict[str, Any]:
        return self._named(subscription.group_id) | {
            "credit": subscription.credit,
            "batch": subscription.batch,
            "leases": self._subscriptions.outstanding(subscription),
        }


def _size(entry: dict[str, Any]) -> int:
    """More than it takes."""
    words = sum(len(entry[name].encode()) for name in ("peer", "name", "token", "token_name"))
    takers = sum(
        _TAKER_BYTES + len(one["topic"]) + len(one["group"])
        for one in (*entry["subscriptions"], *entry["fetches"])
    )
    return _ENTRY_BYTES + words + takers
