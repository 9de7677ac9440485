"""What has happened to a message, as sentences, and what comes next as far as that is known."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from tickwheel import Client, HistoryEvent, MessageInfo

_WORDS: Final = {
    "cascaded": "moved down the wheel",
    "lease_ended": "lease ended",
    "dead": "given up",
    "nacked": "not acked",
}
_TONES: Final = {"acked": "good", "nacked": "warn", "lease_ended": "warn", "dead": "bad", "damaged": "bad"}
_NEXT: Final = {
    "sent": "due",
    "rescheduled": "due",
    "delivered": "lease until",
    "extended": "lease until",
    "nacked": "next try",
    "released": "goes on",
    "redelivered": "goes on",
}
_MISSING: Final = {
    "purged": "The log begins later: what was before is purged.",
    "limit": "There is more than is shown here.",
    "time": "The log was not read to its end in time.",
    "damaged": "A part of the log cannot be read.",
}


class Step(NamedTuple):
    """Something that happened, or will."""

    text: str
    tone: str = ""
    at: datetime | None = None
    is_after: bool = False
    """It was later than that."""
    group: str = ""
    attempt: int = 0
    next_text: str = ""
    next_at: datetime | None = None
    late_ms: int | None = None
    """How long after it was due."""
    error: str = ""
    is_computed: bool = False


async def steps(client: Client, found: MessageInfo, limit: int) -> list[Step]:
    """In the order of the log."""
    history = await client.history(id=found.id, limit=limit)
    if history is None:
        return []
    done: list[Step] = []
    due_ms = 0
    for event in history.events:
        if event.event in ("sent", "rescheduled") and event.next_ms is not None:
            due_ms = event.next_ms
        done.append(_step(event, due_ms))
    return [*done, *(Step(_MISSING.get(one, one), "warn") for one in history.missing)]


def _step(event: HistoryEvent, due_ms: int) -> Step:
    text = _WORDS.get(event.event, event.event)
    if event.level is not None:
        text += f" to level {event.level}"
    is_delivered = event.event == "delivered" and event.time_ms is not None and event.epoch <= 1
    return Step(
        text=text,
        tone=_TONES.get(event.event, ""),
        at=event.time or event.after,
        is_after=event.time_ms is None,
        group=event.group,
        attempt=event.epoch,
        next_text=_NEXT.get(event.event, "then") if event.next_ms is not None else "",
        next_at=event.next,
        late_ms=max(0, event.time_ms - due_ms)
        if is_delivered and event.time_ms is not None and due_ms
        else None,
        error=event.error,
        is_computed=event.computed,
    )


def ahead(found: MessageInfo) -> list[Step]:
    """What comes next, as the message stands now."""
    if found.state == "scheduled":
        return [
            Step("will be due", at=found.deliver_at, is_computed=True),
            Step("then delivered to each group of the topic", is_computed=True),
        ]
    expected: list[Step] = []
    for group in found.groups:
        if group.state == "waiting":
            expected.append(Step("next try", at=group.until, group=group.group, is_computed=True))
        elif group.state == "leased":
            expected.append(Step("its lease ends", at=group.until, group=group.group, is_computed=True))
        elif group.state == "ready":
            expected.append(Step("waits for a consumer with room", group=group.group, is_computed=True))
    return expected
