"""What the side that writes a bulk job has to know before it begins: message numbers, and the topics."""

from __future__ import annotations

from collections.abc import Sequence

from timerlog.bulk.write import Plan, TopicPlan
from timerlog.engine.state import Engine, LogWriter
from timerlog.engine.topics import Maker, Topics
from timerlog.layout import RecordType


class Plans:
    """Gives out plans for bulk jobs, and the numbers of their messages."""

    def __init__(self, engine: Engine, writer: LogWriter, topics: Topics) -> None:
        self._engine = engine
        self._writer, self._topics = writer, topics

    def reserve_ids(self, count: int) -> int:
        """The first of ``count`` message numbers that no other message is given, once the log is on the disk up to
        here. Raises ``DiskFull``."""
        assert count > 0, "numbers are reserved for messages"
        first_id = self._engine.tables.next_id
        next_id = first_id + count
        with self._engine.reserve.closed():
            self._engine.tables.ensure_rows(next_id)
        self._writer.decided(first_id)
        self._writer.append(RecordType.RESERVED, 0, next_id.to_bytes(8, "little"))
        self._engine.applier.reserved(next_id)
        assert self._engine.tables.next_id == next_id, "no other message is given these numbers"
        return first_id

    def plan(self, job: str, topics: Sequence[str], now_ms: int, maker: Maker | None = None) -> Plan:
        """What a job for these topics, which ``maker`` makes where they are missing, has to know. Raises ``BadName``,
        ``TooManyTopics``, ``DiskFull``."""
        planned = {name: self._plan_topic(self._topics.open(name, now_ms, maker=maker)) for name in topics}
        log = self._engine.log
        return Plan(
            job=job,
            log_id=log.log_id,
            segment_bytes=log.segment_bytes,
            created_ms=now_ms,
            topics=planned,
            timeline=self._engine.tables.timeline,
        )

    def _plan_topic(self, topic_id: int) -> TopicPlan:
        topic = self._engine.native.topics[topic_id]
        assert topic.exists, "a plan names topics that are there"
        assert not topic.shards or all(topic.shard_of_byte), "each first byte of a routing hash has a shard"
        return TopicPlan(
            topic_id=topic_id,
            priority=int(topic.default_priority),
            max_body_bytes=int(topic.max_body_bytes) or self._engine.settings.max_body_bytes,
            shard_of_byte=list(topic.shard_of_byte) if topic.shards else [],
        )
