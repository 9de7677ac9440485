"""What became of a job, for its caller: counts, and some of the rows that were refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec

from tickwheel.spark.writing.reasons import REASONS

Staged: TypeAlias = Literal["flight", "in place"]
"""How files come to the broker."""
BY_FLIGHT: Final = "flight"
IN_PLACE: Final = "in place"
INSIDE: Final = "key_twice"
TAKEN: Final = "key_taken"
#: What only the broker finds: codes, and what they say.
FOUND_BY_BROKER: Final = {
    INSIDE: "the key is that of another row",
    TAKEN: "the key is that of a message that the broker has",
}


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A row that was not scheduled. ``partition`` and ``row`` (from 0): its place in the DataFrame as this job read it;
    None when the broker found it. ``detail``: the value that is wrong, cut. ``earlier_id``: the message that has its
    key."""

    reason: str
    detail: str | None = None
    key: str | None = None
    topic: str | None = None
    partition: int | None = None
    row: int | None = None
    earlier_id: int | None = None

    @property
    def text(self) -> str:
        """The reason in words."""
        return reason_text(self.reason)


def reason_text(code: str) -> str:
    """A reason in words."""
    return FOUND_BY_BROKER.get(code) or REASONS[code][1]


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """What became of a job. ``rows``: all that were looked at; of them ``messages`` are scheduled, and ``counts`` says
    by reason how many are not (``samples``: some of them). ``repeated``: the job had been taken in before, and only
    ``messages`` and ``rejected`` are known. ``rejects``: the file with the samples. ``staged``: whether tasks wrote
    into the broker's directory, or some of them put their files by Arrow Flight; None: nothing was written."""

    job: str
    messages: int = 0
    rejected: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    samples: list[Rejected] = field(default_factory=list)
    repeated: bool = False
    rows: int = 0
    files: int = 0
    written_bytes: int = 0
    write_s: float = 0.0
    adopt_s: float = 0.0
    rejects: str | None = None
    staged: Staged | None = None

    def summary(self) -> list[str]:
        """Lines for people: how many rows were refused and why, with some of them."""
        lines = []
        for code, count in sorted(self.counts.items(), key=lambda item: -item[1]):
            lines.append(f"{count:,} × {reason_text(code)}")
            lines += [f"    {_line(one)}" for one in self.samples if one.reason == code][:3]
        return lines


def _line(one: Rejected) -> str:
    place = "" if one.row is None else f"partition {one.partition}, row {one.row:,}"
    key = "" if one.key is None else f"key {one.key!r}"
    topic = "" if one.topic is None else f"topic {one.topic}"
    detail = "" if one.detail is None or one.detail in (one.key, one.topic) else repr(one.detail)
    earlier = "" if one.earlier_id is None else f"message {one.earlier_id}"
    return ", ".join(part for part in (place, key, topic, detail, earlier) if part)
