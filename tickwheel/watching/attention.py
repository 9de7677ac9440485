"""What at a broker somebody should look at, as far as its figures tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from tickwheel.protocol.readable import format_duration, noun
from tickwheel.stats import EndpointState, Figures
from tickwheel.watching.between import Between
from tickwheel.watching.numbers import counter, disk_share, gauge

LATE_S: Final = 1.0
SLOW_SYNC_S: Final = 1.0
FULL_DISK: Final = 0.8
_MS: Final = 1_000

Tone = Literal["warn", "bad"]


class Remark(NamedTuple):
    """One thing. ``topic`` and ``group``: what it is about; empty: the broker. ``state`` and ``waits``: what ``text``
    says of a push endpoint, for who writes times otherwise than in UTC."""

    tone: Tone
    text: str
    topic: str = ""
    group: str = ""
    state: EndpointState | None = None
    waits: str = ""

    @property
    def name(self) -> str:
        """Of what it is about."""
        return f"{self.topic} / {self.group}" if self.group else self.topic


def remarks(figures: Figures, hour: Between | None) -> list[Remark]:
    """The worst ones first. ``hour``: what has happened lately, as far as it is known."""
    found = [*_of_broker(figures, hour), *_of_topics(figures)]
    return sorted(found, key=lambda one: one.tone != "bad")


def _of_broker(figures: Figures, hour: Between | None) -> Iterator[Remark]:
    overdue_s = gauge(figures, "oldest_overdue_seconds")
    if overdue_s >= LATE_S:
        yield Remark(
            "bad", f"The broker is behind: the oldest due message is {format_duration(overdue_s * _MS)} late."
        )
    sync_s = gauge(figures, "sync_running_seconds")
    if sync_s >= SLOW_SYNC_S:
        yield Remark("bad", f"The disk has not answered for {format_duration(sync_s * _MS)}.")
    if (share := disk_share(figures)) is not None and share > FULL_DISK:
        yield Remark("warn", f"The disk of the data directory is {share:.0%} full.")
    if waits := counter(figures, "full_disk_waits"):
        yield Remark("bad", f"The disk was full: {noun(int(waits), 'step')} put off since the start.")
    if damaged := counter(figures, "messages_damaged"):
        yield Remark("bad", f"{noun(int(damaged), 'message')} set aside since the start: damaged on disk.")
    if set_back := counter(figures, "clock_set_back"):
        yield Remark("warn", f"The clock was set back {noun(int(set_back), 'time')} since the start.")
    if troubled := int(gauge(figures, "schedules_in_trouble")):
        what = noun(troubled, "schedule has", "schedules have")
        yield Remark("bad", f"{what} not sent what was due; the list of schedules says why.")
    if hour is not None and hour.grown.dead > 0:
        more = noun(int(hour.grown.dead), "more dead letter")
        minutes = noun(max(1, round(hour.seconds / 60)), "minute")
        yield Remark("warn", f"{more} within the last {minutes}.")


def _of_topics(figures: Figures) -> Iterator[Remark]:
    for topic in figures.topics:
        if topic.shard_of:
            continue
        if topic.paused:
            yield Remark("warn", "is paused; nothing of it is delivered.", topic.name)
        for group in topic.groups:
            state = group.endpoint_state
            if state is not None and state.name != "delivering":
                waits = noun(group.backlog, "message waits", "messages wait") if group.backlog else ""
                text = f"{state.text(figures.now)}; {waits}." if waits else f"{state.text(figures.now)}."
                tone: Tone = "warn" if state.name == "paused" else "bad"
                yield Remark(tone, text, topic.name, group.name, state, waits)
            elif group.lacks_consumer:
                waits = noun(group.backlog, "message waits", "messages wait")
                yield Remark("warn", f"has no consumer; {waits}.", topic.name, group.name)
