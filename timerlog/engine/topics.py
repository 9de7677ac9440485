"""Topics: creating, changing and deleting them, and the shards that a topic may be split into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from timerlog.commitlog.records import TopicRecord
from timerlog.engine.space import Space
from timerlog.engine.state import Engine, LogWriter
from timerlog.errors import BadName, BadTopicSettings, TooManyTopics, TopicExists, UnknownTopic
from timerlog.files.maps import MAPS
from timerlog.layout import MessageState, RecordType
from timerlog.names import DEAD_SUFFIX, MAX_NAME_CHARS_WITH_LETTERS, check_name, shard_name
from timerlog.settings import TopicSettings, check_topic_settings
from timerlog.wheel.timers import MESSAGE_TIMER

MAX_SHARDS: Final = 256
_CHUNK: Final = 65_536


class Maker(NamedTuple):
    """A token whose topics are counted."""

    token: str
    most: int
    """So many topics it may make in its life."""


class Topics:
    """All topics of the store, by their names."""

    def __init__(self, engine: Engine, writer: LogWriter, space: Space) -> None:
        self._engine, self._writer, self._space = engine, writer, space
        self._tables = engine.tables

    def open(
        self,
        name: str,
        now_ms: int,
        *,
        create: bool = True,
        values: Mapping[str, Any] | None = None,
        maker: Maker | None = None,
    ) -> int:
        """The topic's permanent number. ``values``: settings of its own, if it is new; ``maker``: who makes it, if
        topics are counted for that. Raises ``UnknownTopic``, ``BadName``, ``TooManyTopics``, ``DiskFull``."""
        known = self._tables.topic_ids.get(name)
        if known is not None:
            return known
        check_name(name)
        if not create:
            error = UnknownTopic(f"there is no topic {name!r}")
            error.advice = (
                "Create it first (`tickwheel topics create`), or set auto_create_topics = true on the broker."
            )
            raise error
        settings = TopicSettings() if values is None else check_topic_settings(dict(values))
        return self._create(name, settings, 0, now_ms, maker=maker).topic_id

    def record(self, name: str) -> TopicRecord:
        """What holds for a topic now. Raises ``UnknownTopic``."""
        topic_id = self._tables.topic_ids.get(name)
        if topic_id is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return self._tables.topics[topic_id].record

    def create(
        self,
        name: str,
        values: Mapping[str, Any],
        shards: int,
        now_ms: int,
        *,
        maker: Maker | None = None,
    ) -> TopicRecord:
        """Creating what is there with exactly these settings changes nothing, a pause neither: it is how a repeated
        request ends, and how programs declare what they need. Raises ``TopicExists``, ``BadName``,
        ``BadTopicSettings``, ``TooManyTopics``, ``DiskFull``."""
        check_name(name)
        if shards != 0 and not 2 <= shards <= MAX_SHARDS:
            raise BadTopicSettings(f"{shards} shards are not possible: 2 to {MAX_SHARDS}, or none")
        settings = check_topic_settings(dict(values))
        if name not in self._tables.topic_ids:
            return self._create(name, settings, shards, now_ms, is_answer=True, maker=maker)
        known = self.record(name)
        if (known.settings, known.shards) != (settings, shards):
            raise TopicExists(f"there is a topic {name!r} already, and it has other settings")
        return known

    def set(
        self,
        name: str,
        values: Mapping[str, Any],
        unset: Sequence[str],
        paused: bool | None,
        now_ms: int,
    ) -> TopicRecord:
        """Changes some settings of a topic, all or none; those of ``unset`` go back to the broker's. Raises
        ``UnknownTopic``, ``BadTopicSettings``, ``DiskFull``."""
        record = self.record(name)
        unknown = set(unset) - set(TopicSettings.__struct_fields__)
        if unknown:
            raise BadTopicSettings(f"a topic has no setting {sorted(unknown)[0]!r}")
        merged = {**msgspec.to_builtins(record.settings), **values}
        settings = check_topic_settings({key: value for key, value in merged.items() if key not in unset})
        changed = msgspec.structs.replace(
            record, settings=settings, paused=record.paused if paused is None else paused
        )
        self._writer.decided(changed)
        self._change_topics([changed, *self._shards_like(changed)], now_ms)
        return changed

    def delete(self, name: str) -> TopicRecord:
        """Deletes a topic with its messages and groups. Raises ``UnknownTopic``, ``DiskFull``."""
        record = msgspec.structs.replace(self.record(name), deleted=True)
        if record.parent:
            raise BadTopicSettings(f"{name!r} is a shard: delete the topic that it is a part of")
        self._writer.decided(record)
        self._write([*self._shards_like(record), record])
        return record

    def shards_of(self, topic_id: int) -> list[int]:
        """The numbers of the topics in which a topic's messages lie: its shards, or itself."""
        record = self._tables.topics[topic_id].record
        if not record.shards:
            return [topic_id]
        return [
            self._tables.topic_ids[f"{record.name}/{shard_name(i, record.shards)}"]
            for i in range(record.shards)
        ]

    def is_sharded(self, topic_id: int) -> bool:
        """Whether a topic's messages lie in shards."""
        return bool(self._tables.topics[topic_id].record.shards)

    def _shards_like(self, record: TopicRecord) -> list[TopicRecord]:
        """The records of a topic's shards, with what the topic itself says now."""
        if not record.shards:
            return []
        return [
            msgspec.structs.replace(
                self._tables.topics[shard].record,
                settings=record.settings,
                paused=record.paused,
                deleted=record.deleted,
            )
            for shard in self.shards_of(record.topic_id)
        ]

    def _create(
        self,
        name: str,
        settings: TopicSettings,
        shards: int,
        now_ms: int,
        *,
        is_answer: bool = False,
        maker: Maker | None = None,
    ) -> TopicRecord:
        if len(name) > MAX_NAME_CHARS_WITH_LETTERS and not name.endswith(DEAD_SUFFIX):
            raise BadName(
                f"{name!r} is too long: a topic's name has at most {MAX_NAME_CHARS_WITH_LETTERS} characters, "
                f"so that {DEAD_SUFFIX!r} fits behind it for its dead letters"
            )
        topic_id = self._tables.last_topic_id + 1
        most = self._engine.settings.max_topics
        if topic_id + shards > most:
            raise TooManyTopics(
                f"there are {self._tables.last_topic_id} topics of {most} already; those "
                "that were deleted count, for their numbers are not used again"
            )
        if maker is not None:
            self._judge_maker(maker, 1 + shards)
        MAPS.need_room(1 + shards, TooManyTopics)
        token = "" if maker is None else maker.token
        record = TopicRecord(topic_id, name, now_ms, settings, shards=shards, maker=token)
        parts = [
            TopicRecord(
                topic_id + 1 + i,
                f"{name}/{shard_name(i, shards)}",
                now_ms,
                settings,
                parent=topic_id,
                shard=i,
                maker=token,
            )
            for i in range(shards)
        ]
        known = self._tables.topics.keys()
        assert known.isdisjoint(range(topic_id, topic_id + 1 + shards)), "no number is given twice"
        self._space.promise_topics(1 + shards)
        if is_answer:
            self._writer.decided(record)
        self._write([record, *parts])
        assert self._tables.last_topic_id == topic_id + shards, "the numbers that were given are used"
        return record

    def _judge_maker(self, maker: Maker, topics: int) -> None:
        made = self._tables.topics_made.get(maker.token, 0)
        if made + topics > maker.most:
            error = TooManyTopics(
                f"this token has made {made} topics of {maker.most}; those that were deleted count, for their numbers "
                "are not used again"
            )
            error.advice = (
                "Raise max_topics_per_token, have topics made with a token that has the grant admin:*, or use fewer "
                "topics and more keys."
            )
            raise error

    def _change_topics(self, records: list[TopicRecord], now_ms: int) -> None:
        """A message's timer stands where its spread put it, so another spread needs other timers first. The old ones
        are passed over when they fire."""
        structs = [self._engine.native.topics[record.topic_id] for record in records]
        before = [struct_.spread_ms for struct_ in structs]
        try:
            for record, struct_ in zip(records, structs, strict=True):
                after = record.settings.spread_ms or 0
                if struct_.spread_ms != after and not record.shards:
                    struct_.spread_ms, self._tables.has_spread = after, True
                    self._link_again(record.topic_id, now_ms)
            self._write(records)
        except BaseException:
            # The timers that were set already are passed over when they fire; those from before are still there.
            for struct_, spread_ms in zip(structs, before, strict=True):
                struct_.spread_ms = spread_ms
            raise

    def _link_again(self, topic_id: int, now_ms: int) -> None:
        self._engine.wheel.advance(now_ms)
        first_id, end_id = int(self._engine.native.first_id), self._engine.enqueued_id
        for start, stop in self._tables.spans(first_id, end_id, _CHUNK):
            part = self._tables.messages.between(start, stop)
            found = np.flatnonzero((part["topic_id"] == topic_id) & (part["state"] == MessageState.SCHEDULED))
            if len(found):
                ids = (found + start).astype(np.uint64)
                due_ms = np.maximum(
                    self._engine.spread(part["deliver_at_ms"][found], ids), self._engine.wheel.tick_ms + 1
                )
                self._engine.link(due_ms, ids, part["version"][found].astype(np.uint32), MESSAGE_TIMER)

    def _write(self, records: Sequence[TopicRecord]) -> None:
        self._writer.write_together(
            [(RecordType.TOPIC, record.topic_id, msgspec.msgpack.encode(record)) for record in records]
        )
