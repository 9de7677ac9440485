"""BASE: everything small that holds at a point of the log. The first record of each segment says it, and so does a
checkpoint, so neither needs what lies before it to be understood.
"""

from __future__ import annotations

import msgspec

from timerlog.commitlog.records import GroupRecord, TopicRecord
from timerlog.errors import UnsupportedFormat
from timerlog.layout import NEWEST_RECORD, RecordType
from timerlog.tables.answers import AnswersBase
from timerlog.tables.histories import Failure
from timerlog.tables.tables import Group, Tables


class TopicBase(msgspec.Struct, frozen=True, array_like=True):
    """A topic, the number of messages that reached it, and what was purged of it."""

    record: TopicRecord
    count: int
    purged_messages: int
    purged_cancelled: int
    first_seq: int  #: everything below is gone


class GroupBase(msgspec.Struct, frozen=True, array_like=True):
    """A group, and what its counters keep of messages that were purged."""

    record: GroupRecord
    purged_acked: int
    purged_dead: int
    purged_deliveries: int
    seen_ms: int = 0
    has_readers: bool = False


class Base(msgspec.Struct, frozen=True, kw_only=True):
    next_id: int
    first_id: int  #: no message below it is there
    tick_ms: int
    last_topic_id: int
    last_group_id: int
    topics: list[TopicBase]
    groups: list[GroupBase]
    documents: dict[str, bytes]
    failures: list[tuple[int, int, list[Failure]]]
    transactions: list[tuple[bytes, list[tuple[int, int]]]]
    answers: AnswersBase = AnswersBase()
    #: (number, fence) of groups that are gone; None: it is from before their numbers were used again.
    free_groups: list[tuple[int, int]] | None = None
    name_fences: tuple[list[tuple[int, str, int]], list[tuple[int, int]]] = ([], [])
    topics_made: dict[str, int] = {}  #: by each token, also those that are deleted
    timeline: int = 0  #: another one after a part of the log was lost
    timeline_position: int = 0
    epoch_floor: int = 0  #: up to this epoch receipts may have been given out in another timeline
    gaps: list[tuple[int, int]] = []  #: message ids that may have been given out there: from, to below
    #: Of a replicated log: who reads it from here on, and nothing before, finds out what it is.
    genesis: bytes | msgspec.UnsetType = msgspec.UNSET
    #: The highest type of a record that was ever in the log; 0: it is from before that was noted.
    newest_record: int = 0

    def check(self) -> None:
        """Raises ``UnsupportedFormat`` where what holds follows from records that this version does not know."""
        if self.newest_record > NEWEST_RECORD:
            raise UnsupportedFormat(
                f"the log has had records of type {self.newest_record}; this version knows those up to {NEWEST_RECORD}"
            )

    @property
    def known_newest(self) -> int:
        """``newest_record``, or the highest type that there was before that was noted."""
        return self.newest_record or RecordType.GROUP_ORDER


def capture(tables: Tables, tick_ms: int, genesis: bytes | msgspec.UnsetType = msgspec.UNSET) -> Base:
    """What holds now."""
    native = tables.native
    assert max(tables.topics, default=0) <= tables.last_topic_id, "a new topic gets a number of its own"
    assert max(tables.groups, default=0) <= tables.last_group_id, "a fresh number is no group's"
    assert tables.free_groups.keys().isdisjoint(tables.groups), "a number that is free has no group"
    assert tables.next_id <= tables.messages.capacity, "each number that is given has a row"
    return Base(
        next_id=tables.next_id,
        first_id=int(native.first_id),
        tick_ms=tick_ms,
        last_topic_id=tables.last_topic_id,
        last_group_id=tables.last_group_id,
        topics=[_topic(topic.record, native.topics[number]) for number, topic in tables.topics.items()],
        groups=[_group(group, native.groups[number]) for number, group in tables.groups.items()],
        documents=dict(tables.documents),
        failures=tables.failures.dump(),
        transactions=tables.transactions.dump(),
        answers=tables.answers.dump(),
        free_groups=list(tables.free_groups.items()),
        name_fences=tables.name_fences.dump(),
        topics_made=dict(tables.topics_made),
        timeline=tables.timeline,
        timeline_position=tables.timeline_position,
        epoch_floor=tables.epoch_floor,
        gaps=tables.gaps,
        genesis=genesis,
        newest_record=int(native.newest_record),
    )


def _topic(record: TopicRecord, counts: object) -> TopicBase:
    names = ("count", "purged_messages", "purged_cancelled", "first_seq")
    return TopicBase(record, *(int(getattr(counts, name)) for name in names))


def _group(group: Group, counts: object) -> GroupBase:
    names = ("purged_acked", "purged_dead", "purged_deliveries")
    acked, dead, deliveries = (int(getattr(counts, name)) for name in names)
    return GroupBase(group.record, acked, dead, deliveries, group.seen_ms, group.has_readers)
