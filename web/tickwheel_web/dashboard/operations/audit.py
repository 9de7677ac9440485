"""Who did what, and who was refused: the lines of its audit log that the broker keeps at hand."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta
from starlette.responses import Response

from tickwheel import Client
from tickwheel.protocol.limits import MAX_ID
from tickwheel.stats import AuditLine
from tickwheel_web.dashboard.page import Viewed

PAGE: Final = 100
MAX_LINES: Final = 10_000
"""As many as the broker keeps; more are in the file that ``audit_log`` names."""
_AT_ONCE: Final = 1_000
_MAX_REQUESTS: Final = 100
"""An answer has fewer lines where they are long."""


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Lines before one, with an outcome, that contain a text."""

    outcome: Literal["any", "ok", "refused"] = "any"
    search: Annotated[str, Meta(max_length=255)] = ""
    before: Annotated[int, Meta(ge=1, le=MAX_ID)] | None = None

    @property
    def is_filter(self) -> bool:
        """Whether any line is left out."""
        return self.outcome != "any" or bool(self.search) or self.before is not None

    def has(self, line: AuditLine) -> bool:
        """Whether it is one of those."""
        return (
            self.outcome in ("any", line.outcome)
            and (self.before is None or line.number < self.before)
            and (not self.search or self.search.lower() in _text(line).lower())
        )


class Row(NamedTuple):
    """A line, taken apart."""

    line: AuditLine
    at: datetime | None
    who: str
    peer: str
    rest: str
    """All other fields."""


async def audit(viewed: Viewed) -> Response:
    """The newest line first."""
    asked: Asked = viewed.query
    if asked.is_filter:
        found: deque[AuditLine] = deque(maxlen=PAGE + 1)
        async for line in _kept(viewed.client, asked.before):
            if asked.has(line):
                found.append(line)
        lines = list(found)
    else:
        lines = (await viewed.client.audit(limit=PAGE + 1)).lines
    shown = lines[-PAGE:][::-1]
    names = {
        line.fields.get("token"): line.fields["token_name"] for line in shown if "token_name" in line.fields
    }
    return viewed.page(
        "operations/audit.html",
        rows=[_row(line, names) for line in shown],
        before=shown[-1].number if len(lines) > PAGE else None,
    )


async def download(viewed: Viewed) -> Response:
    """One line of JSON for each, the oldest first."""
    asked = viewed.query
    lines = [_json(line) async for line in _kept(viewed.client, asked.before) if asked.has(line)]
    return viewed.download(b"".join(lines), "audit.ndjson")


async def _kept(client: Client, before: int | None) -> AsyncIterator[AuditLine]:
    """All lines that the broker has at hand, the oldest first; lines that come meanwhile are no reason to go on."""
    after, count = 0, 0
    for _ in range(_MAX_REQUESTS):
        tail = await client.audit(after=after, limit=_AT_ONCE)
        for line in tail.lines:
            yield line
        count += len(tail.lines)
        if not tail.lines or count >= MAX_LINES:
            return
        after = tail.lines[-1].number
        if before is not None and after >= before:
            return


def _row(line: AuditLine, names: Mapping[Any, Any]) -> Row:
    """``names``: of tokens, which only some lines have."""
    rest = dict(line.fields)
    token, name, peer = (str(rest.pop(field, "")) for field in ("token", "token_name", "peer"))
    try:
        at = datetime.fromisoformat(line.timestamp)
    except ValueError:
        at = None
    told = ", ".join(f"{field} {value}" for field, value in rest.items() if value not in ("", None))
    return Row(line, at, name or str(names.get(token, token)), peer, told)


def _text(line: AuditLine) -> str:
    return "\n".join([line.timestamp, line.event, line.outcome, *map(str, line.fields.values())])


def _json(line: AuditLine) -> bytes:
    told = {"number": line.number, "timestamp": line.timestamp, "event": line.event, "outcome": line.outcome}
    return msgspec.json.encode({**told, **line.fields}) + b"\n"
