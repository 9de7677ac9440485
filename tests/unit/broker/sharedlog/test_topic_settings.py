"""Which settings of a cluster's topic endanger the log in it."""

from __future__ import annotations

import pytest

from tickwheel_broker.sharedlog.kafka.topic import MESSAGE_BYTES, TopicSettings, judge_config

GOOD: dict[str, str | None] = {**TopicSettings().config(), "max.message.bytes": "1048588"}


@pytest.mark.parametrize(
    ("changed", "copies", "found"),
    [
        ({}, 3, []),
        ({"min.insync.replicas": "3"}, 3, []),  # safer than it must be
        ({"min.insync.replicas": "1"}, 1, []),
        ({"message.timestamp.type": "LogAppendTime"}, 3, []),
        ({"min.insync.replicas": "1"}, 3, ["min.insync.replicas is 1, below 2"]),
        ({"cleanup.policy": "compact"}, 3, ["cleanup.policy is compact, not delete"]),
        ({"cleanup.policy": "compact,delete"}, 3, ["cleanup.policy is compact,delete, not delete"]),
        ({"retention.ms": "604800000"}, 3, ["retention.ms is 604800000, not -1"]),
        ({"retention.bytes": "1000"}, 3, ["retention.bytes is 1000, not -1"]),
        (
            {"unclean.leader.election.enable": "true"},
            3,
            ["unclean.leader.election.enable is true, not false"],
        ),
        ({"max.message.bytes": "1000"}, 3, [f"max.message.bytes is 1000, below {MESSAGE_BYTES}"]),
    ],
)
def test_what_is_found(changed: dict[str, str | None], copies: int, found: list[str]) -> None:
    assert judge_config(GOOD | changed, copies) == found
