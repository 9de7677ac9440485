"""For who runs the broker: who is connected, who did what, and the disk space of what is done."""

from __future__ import annotations

from msgspec import UNSET
from starlette.responses import Response

from tickwheel.errors import BadArgument
from tickwheel_web import reading
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.monitoring.shapes import (
    AskPurge,
    AuditEntries,
    AuditEntry,
    Connection,
    Connections,
    Disconnected,
    Purged,
)
from tickwheel_web.paging import page
from tickwheel_web.problems import Refused


async def list_clients(asked: Asked) -> Response:
    """In order of their numbers."""
    rows, following = page(await asked.client.clients(), lambda client: f"{client.id:020}", asked.query)
    return json(Connections([Connection.of(row) for row in rows], following))


async def disconnect_client(asked: Asked) -> Response:
    """What it holds goes to others at once."""
    number = asked.number("client", "connection")
    if not await asked.client.disconnect(number):
        raise Refused(404, "not_found", "There is no such connection, or none any more.")
    return json(Disconnected(str(number)))


async def list_audit(asked: Asked) -> Response:
    """The last lines; asked again with `next`, it is followed."""
    after = None if asked.query.after is UNSET else int(asked.query.after)
    found = await asked.client.audit(after=after, limit=asked.query.limit)
    last = found.lines[-1].number if found.lines else after
    entries = [AuditEntry.of(line) for line in found.lines]
    return json(AuditEntries(entries, None if last is None else str(last), found.has_gap))


async def purge_messages(asked: Asked) -> Response:
    """The broker does it by itself when it is worth it."""
    wanted = reading.decode(AskPurge, asked.body)
    if wanted.confirm is UNSET and not wanted.dry_run:
        raise BadArgument(
            "This cannot be taken back, and confirm is not given.",
            advice='Add "confirm": "purge" if it is meant, or "dry_run": true.',
        )
    return json(Purged.of(await asked.client.purge(dry_run=wanted.dry_run, wait=wanted.wait)))
