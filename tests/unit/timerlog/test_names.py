"""Names that the engine makes are those that clients know from the protocol."""

from __future__ import annotations

from itertools import pairwise

from tickwheel.protocol import limits
from timerlog import names


def test_the_engine_and_the_wire_agree() -> None:
    assert names.NAME.pattern == limits.NAME_PATTERN.pattern
    assert (names.DEAD_SUFFIX, names.PREPARED_SUFFIX) == (limits.DEAD_SUFFIX, limits.PREPARED_SUFFIX)
    assert names.MAX_NAME_CHARS_WITH_LETTERS == limits.MAX_TOPIC_NAME_CHARS
    for name in ("mails", "n" * 128):
        assert names.dead_topic(name) == limits.dead_topic(name)


def test_shards_share_out_all_routing_bytes() -> None:
    for shards in (2, 3, 7, 16, 256):
        parts = [names.shard_bytes(shard, shards) for shard in range(shards)]
        assert parts[0][0] == 0
        assert parts[-1][1] == 256
        assert all(before[1] == after[0] for before, after in pairwise(parts))
        assert len({names.shard_name(shard, shards) for shard in range(shards)}) == shards
